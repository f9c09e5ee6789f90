"""Search by words and by meaning: hits with their time, users, and recall against exact search."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from clip_providers import JSON_TYPE, ClipProviders, make_scraped_video
from clips_harness import CLIPS_PATH, ClipsHarness

from holdfast.engine.connection import Connection
from holdfast.systems import clips
from holdfast.systems.clips.passages import compute_signature, normalize_vector
from holdfast.systems.providers import UsageAccount
from holdfast.systems.providers.local_embeddings import LocalEmbeddingProvider

URL = "https://www.youtube.com/watch?v=knife"
BREAD = (
    "Knead the dough for ten minutes.",
    "Let the bread rise near the oven.",
    "Bake until the crust is brown.",
)


async def search(system: ClipsHarness, user: Any, text: str, **options: Any) -> dict[str, Any]:
    response = await user.get(f"{CLIPS_PATH}/search", params={"q": text, **options})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_hits_point_into_the_transcript_and_belong_to_the_user(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann, bob = system.create_user(), system.create_user()
    long_text = tuple(f"{sentence} {'Filler words follow here. ' * 20}" for sentence in BREAD)
    answers.scraped["https://youtu.be/bread"] = make_scraped_video("https://youtu.be/bread", long_text)
    knife, bread = await system.add(ann, URL), await system.add(ann, "https://youtu.be/bread")
    hidden = await system.add(bob, URL)
    async with system.run_clip_worker():
        for user, clip in ((ann, knife), (ann, bread), (bob, hidden)):
            await system.wait_for(user, clip["id"], "done")
    result = await search(system, ann, "bread near the oven")
    assert result["by_meaning"] is True
    best = result["hits"][0]
    assert (best["clip"]["id"], best["start_s"], best["matches_words"]) == (bread["id"], 10, True)
    assert "Let the bread rise" in best["passage"]
    assert {hit["clip"]["user_id"] for hit in result["hits"]} == {ann.id}
    assert [hit["clip"]["id"] for hit in (await search(system, bob, "sharpen a knife"))["hits"]] == [
        hidden["id"]
    ]
    prefix = (await search(system, ann, "danger slip"))["hits"][0]
    assert (prefix["clip"]["id"], prefix["matches_words"]) == (knife["id"], True)
    assert (await search(system, ann, "zebra'); drop table clipnest_videos; --", limit=1))["hits"] is not None
    for query in ("", "x" * 2000, "\0"):
        answer = await ann.get(f"{CLIPS_PATH}/search", params={"q": query})
        assert answer.status_code == 422
    assert (await ann.get(f"{CLIPS_PATH}/search", params={"q": "x", "limit": 0})).status_code == 422


async def test_words_are_searched_when_the_embeddings_server_is_away(
    system: ClipsHarness, answers: ClipProviders
) -> None:
    ann = system.create_user()
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        await system.wait_for(ann, clip["id"], "done")
    answers.failures["embeddings"] = [(500, JSON_TYPE, b"{}")]
    result = await search(system, ann, "stone")
    assert (result["by_meaning"], len(result["hits"])) == (False, 1)
    assert "Only words were searched" in result["notice"]


async def test_a_user_searches_in_sql_only_the_own_clips(system: ClipsHarness) -> None:
    ann, bob = system.create_user(), system.create_user()
    clip = await system.add(ann, URL)
    async with system.run_clip_worker():
        await system.wait_for(ann, clip["id"], "done")
    for user, count in ((ann, 1), (bob, 0)):
        async with system.db.connection() as connection, connection.transaction():
            await connection.execute("select set_config('request.jwt.claim.sub', $1, true)", user.id)
            await connection.execute("set local role authenticated")
            rows = await connection.fetch(
                "select * from search_clips('knife', p_user_id => $1)", uuid.UUID(ann.id)
            )
            assert len(rows) == count


TOPICS = ("bread", "knife", "garden", "rocket", "piano", "tax law", "football", "river", "photos", "yoga",
          "python code", "cat", "coffee", "mountain", "surgery", "sailing", "chess", "wine", "bicycle",
          "desert")  # fmt: skip
PHRASES = ("how to begin with {}", "the history of {} in one hour", "mistakes that beginners make with {}",
           "why {} is harder than it looks", "my favourite {} of the year", "a beginner meets {} and {other}",
           "{} for children", "the economics of {}", "an interview about {} and {other}",
           "{} at night")  # fmt: skip


def make_texts(count: int) -> list[str]:
    numbers = random.Random(7)
    return [
        f"{numbers.choice(PHRASES)} {numbers.choice(PHRASES)} part {number}".replace(
            "{other}", numbers.choice(TOPICS)
        ).replace("{}", numbers.choice(TOPICS))
        for number in range(count)
    ]


@pytest.mark.parametrize(("mode", "count"), [("signatures", 3_000), ("pgvector", 3_000), ("hnsw", 3_000)])
async def test_recall_of_the_ten_nearest(conn: Connection, mode: str, count: int) -> None:
    """Compare with exact search, with embeddings of real texts by the local model."""
    await conn.execute("set search_path = public")
    await clips.install(conn)
    provider = LocalEmbeddingProvider()
    texts = make_texts(count)
    answer = await provider.embed_texts(texts, account=UsageAccount())
    vectors = [normalize_vector(vector) for vector in answer.vectors]
    owner = uuid.uuid4()
    clip = await conn.fetchval(
        "insert into clipnest_videos (user_id, video_url, processing_status) values ($1, 'x', 'done')"
        " returning id",
        owner,
    )
    if mode == "hnsw":
        await conn.execute("select ensure_clip_index(256)")
        # The threshold is for large collections; here the index is used for a small one.
        await conn.execute(
            "do $$ begin execute replace(pg_get_functiondef("
            "'find_near_passages(uuid, real[], bit, text, integer, text)'::regprocedure),"
            " 'constant integer := 20000', 'constant integer := 20'); end $$"
        )
    await conn.executemany(
        "insert into clip_passages (clip_id, number, user_id, body, embedding, embedding_model,"
        " embedding_dimension, signature) values ($1, $2, $3, $4, $5, 'm', 256, $6::text::bit(256))",
        [(clip, number, owner, texts[number], vector, compute_signature(vector))
         for number, vector in enumerate(vectors)],
    )  # fmt: skip
    await conn.execute("analyze clip_passages")
    shown = hit = 0
    for query in ("baking bread at home", "learning chess", "how to photograph mountains", "cats",
                  "the tax of wine", "riding a bicycle through the desert", "yoga in the garden",
                  "python"):  # fmt: skip
        [raw] = (await provider.embed_texts([query], account=UsageAccount())).vectors
        vector = normalize_vector(raw)
        exact = sorted(
            range(count), key=lambda n: -sum(a * b for a, b in zip(vector, vectors[n], strict=True))
        )
        rows = await conn.fetch(
            "select number from find_near_passages($1, $2, $3::text::bit(256), 'm', 10, $4)",
            owner, vector, compute_signature(vector), "signatures" if mode == "signatures" else None,
        )  # fmt: skip
        shown += 10
        hit += len({row[0] for row in rows} & set(exact[:10]))
    assert hit / shown >= 0.95, (hit, shown)


async def test_doctor_says_how_search_works(system: ClipsHarness) -> None:
    from holdfast import Client  # noqa: PLC0415
    from holdfast.systems.clips.doctor import check_clips  # noqa: PLC0415

    async with Client(system.db.url.reveal(), settings=system.db.settings) as client:
        texts = [finding.text for finding in await check_clips(client)]
        assert any("pgvector" in text for text in texts)
        assert "scrape_jobs: 0 messages." in texts
        await system.fetch("drop extension vector cascade")
        assert "signatures of 256 bits" in (await check_clips(client))[0].text
