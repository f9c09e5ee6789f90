"""List, search, delete, import and stream bookmarks; row-level security, views and installation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest
from api_clients import bearer_headers, open_event_stream
from bookmarks_harness import CONSUMER_PATH, BookmarksHarness
from system_harness import SERVICE_KEY

from holdfast.systems import bookmarks

SERVICE = bearer_headers(SERVICE_KEY)
LIST_PATH = "/api/v1/bookmarks"
BOOKMARKS_FILE = """<!DOCTYPE NETSCAPE-Bookmark-file-1>
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<DL><p>
  <DT><H3>Folder</H3>
  <DL><p>
    <DT><A HREF="https://example.com/?a=1&amp;b=2" ADD_DATE="1" ICON="data:image/png;base64,AAAA">One</A>
    <DT><A HREF="https://example.com/two">Two</A>
    <DT><A HREF="HTTPS://EXAMPLE.COM/two#again">Two again</A>
    <DT><A HREF="javascript:alert(1)">Bookmarklet</A>
    <DT><A HREF="https://exa mple.com/">Broken</A>
  </DL><p>
</DL><p>"""


async def test_list_search_and_pages(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    ids: list[int] = []
    for number in range(5):
        fields: dict[str, Any] = {"category_id": number % 2, "update_access": True}
        ids.append((await system.add(ann, f"https://example.com/page{number}", **fields))["id"])
    await system.add(bob, "https://example.com/other")
    await system.http.post(CONSUMER_PATH, headers=SERVICE)

    async def search(**query: Any) -> list[int]:
        response = await ann.get(LIST_PATH, params=query)
        assert response.status_code == 200, response.text
        return [row["id"] for row in response.json()["bookmarks"]]

    assert await search() == ids[::-1]
    assert await search(q="reada WORDS") == ids[::-1]
    assert await search(q="picture") == ids[::-1]
    assert await search(q="page3") == [ids[3]]
    assert await search(q="nothing & | ! ' :* \\") == []
    assert await search(q="' :* & |") == ids[::-1]
    assert await search(category=1) == [ids[3], ids[1]]
    page = (await ann.get(LIST_PATH, params={"limit": 2})).json()
    assert (page["next"], page["total"], page["categories"]) == (ids[3], 5, [0, 1])
    assert await search(limit=2, before=ids[3]) == [ids[2], ids[1]]
    for query in ({"limit": 0}, {"limit": 1000}, {"before": -1}, {"nonsense": 1}, {"category": "x"}):
        assert (await ann.get(LIST_PATH, params=query)).status_code == 422, query


async def test_bookmarks_of_others_do_not_exist(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    row = await system.add(ann, "https://example.com/")
    path = f"{LIST_PATH}/{row['id']}"
    assert (await bob.get(path)).status_code == 404
    assert (await bob.delete(path)).status_code == 404
    assert (await bob.post(f"{path}/retry")).status_code == 404
    assert (await bob.get(LIST_PATH)).json()["bookmarks"] == []
    for missing in ("0", "x", "99999999999999999999", "-1"):
        assert (await ann.get(f"{LIST_PATH}/{missing}")).status_code == 404
    assert (await system.http.get(path)).status_code == 401


async def test_deleting_a_bookmark_deletes_files_and_message(system: BookmarksHarness) -> None:
    ann = system.create_user()
    done = await system.add(ann, "https://example.com/a")
    await system.http.post(CONSUMER_PATH, headers=SERVICE)
    waiting = await system.add(ann, "https://example.com/b")
    files = [(await system.get(ann, done["id"]))[name] for name in ("screenshot", "og_image", "favicon")]
    for row in (done, waiting):
        assert (await ann.delete(f"{LIST_PATH}/{row['id']}")).status_code == 204
    for file in files:
        assert (await system.http.get(file)).status_code in (404, 410)
    visible = "select count(*) from holdfast.artifacts where status = 'visible'"
    assert (await system.fetch(visible))[0][0] == 0
    assert await system.count_messages() == 0


async def test_row_level_security_protects_rows(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    await system.add(ann, "https://example.com/")
    statements = {
        "select count(*) from bookmarks": 0,
        "select count(*) from bookmark_imports": 0,
        "delete from bookmarks": None,
        "update bookmarks set title = 'mine'": None,
        f"insert into bookmarks (user_id, url, url_key) values ('{bob.id}', 'https://a.test/', 'x')": None,
        "select count(*) from pgmq_public.add_bookmark_url_queue": None,
        "select count(*) from pgmq_public.add_bookmark_url_queue_archive": None,
    }
    for statement, expected in statements.items():
        async with system.db.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            claims = json.dumps({"sub": bob.id, "role": "authenticated"})
            await connection.execute("select set_config('request.jwt.claims', $1, true)", claims)
            await connection.execute("set local role authenticated")
            if expected is None:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
            else:
                assert await connection.fetchval(statement) == expected, statement
            await transaction.rollback()
    secured = await system.fetch(
        "select relname from pg_class where relname in ('bookmarks', 'bookmark_imports')"
        " and relkind = 'r' and relrowsecurity and relforcerowsecurity"
    )
    assert len(secured) == 2


async def test_the_monitoring_views_are_for_services(system: BookmarksHarness) -> None:
    ann = system.create_user()
    await system.add(ann, "https://example.com/a.png")
    await system.http.post(CONSUMER_PATH, headers=SERVICE)
    await system.add(ann, "https://example.com/b.png")
    async with system.db.transaction() as connection:
        await connection.execute("set local role service_role")
        assert await connection.fetchval("select count(*) from pgmq_public.add_bookmark_url_queue") == 1
        archived = (
            "select * from pgmq_public.add_bookmark_url_queue_archive order by archived_at desc limit 10"
        )
        assert [row["msg_id"] for row in await connection.fetch(archived)] == [1]


async def test_install_can_be_repeated_and_keeps_a_changed_policy(system: BookmarksHarness) -> None:
    ann = system.create_user()
    row = await system.add(ann, "https://example.com/")
    await system.fetch("select holdfast.put_message_policy('add-bookmark-url-queue', p_max_reads => 9)")
    async with system.db.connection() as connection:
        await bookmarks.install(connection)
        await bookmarks.install(connection, "apart")
        await bookmarks.install_if_needed(connection)
        policy = "select (holdfast.get_message_policy('add-bookmark-url-queue')).max_reads"
        assert await connection.fetchval(policy) == 9
    assert (await system.get(ann, row["id"]))["status"] == "pending"


async def test_import_a_bookmarks_file(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    await system.add(ann, "https://example.com/two")
    response = await system.http.post(
        f"{LIST_PATH}/import", content=BOOKMARKS_FILE, headers={**ann.headers, "content-type": "text/html"}
    )
    assert response.status_code == 202, response.text
    started = response.json()
    assert (started["total"], started["alreadySaved"], started["refused"]) == (2, 1, 1)
    assert (started["percent"], started["unfinished"]) == (0, 1)
    await system.http.post(CONSUMER_PATH, headers=SERVICE)
    path = response.headers["location"]
    ended = (await ann.get(path)).json()
    assert (ended["percent"], ended["complete"], ended["unfinished"]) == (100, 1, 0)
    assert (await bob.get(path)).status_code == 404


async def test_import_a_thousand_urls(system: BookmarksHarness) -> None:
    ann = system.create_user()
    urls = [f"https://example.com/{n}" for n in range(1000)]
    answer = await ann.post(f"{LIST_PATH}/import", {"urls": urls})
    assert (answer.status_code, answer.json()["unfinished"]) == (202, 1000)
    assert await system.count_messages() == 1000
    again = await ann.post(f"{LIST_PATH}/import", {"urls": urls})
    assert (again.json()["alreadySaved"], again.json()["percent"]) == (1000, 100)
    too_many = [*urls, "https://example.com/x"]
    bodies: list[Any] = [{"urls": too_many}, {"urls": []}, {"urls": ["x"]}, {"urls": [1]}, {}]
    for body in bodies:
        assert (await ann.post(f"{LIST_PATH}/import", body)).status_code == 422
    assert await system.count_messages() == 1000


async def test_the_stream_shows_each_change_to_its_owner_only(system: BookmarksHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    await system.add(bob, "https://example.com/secret")
    async with open_event_stream(system.http, f"{LIST_PATH}/stream", headers=ann.headers) as stream:
        row = await system.add(ann, "https://example.com/")
        await system.http.post(CONSUMER_PATH, headers=SERVICE)
        seen: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while not seen or seen[-1]["status"] != "complete":
                frame = await stream.read_next()
                assert frame is not None
                assert frame.event == "bookmark"
                seen.append(frame.data)
    assert {each["id"] for each in seen} == {row["id"]}
    assert [each["version"] for each in seen] == sorted({each["version"] for each in seen})
    assert seen[-1]["screenshot"].startswith("/files/")
