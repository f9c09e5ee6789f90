"""Plant the data of a user: jobs, files, batches, webhooks, schedules, and objects of every system."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
from system_harness import EXPORT_PATH, FINAL_EXPORT_STATUSES

from attack.identities import User
from attack.target import Product
from holdfast.systems.exports.resumes import load_sample_documents
from holdfast.testing import wait_until

QUEUE_OF_ANN = "planted-letters"
EXPORT_TIMEOUT = timedelta(seconds=180)
SHARE_TIMEOUT = timedelta(minutes=2)


async def plant_user(product: Product, name: str) -> User:
    """Create a user with one object of every kind. Every text contains the marker of the user."""
    user = User(name)
    await _plant_jobs(product, user)
    await _plant_batch(product, user)
    await _plant_webhook_and_schedule(product, user)
    for system in product.systems:
        plant = PLANTERS_BY_SYSTEM.get(system)
        if plant is None:
            product.systems_without_data.add(system)  # the attack on routes reports it
        else:
            await plant(product, user)
    product.users[name] = user
    return user


async def _post(
    product: Product, path: str, body: Any, headers: dict[str, str], expected: int
) -> dict[str, Any]:
    response = await product.http.post(path, json=body, headers=headers)
    assert response.status_code == expected, f"POST {path}: {response.status_code} {response.text}"
    created: dict[str, Any] = response.json()
    return created


async def _plant_jobs(product: Product, user: User) -> None:
    for kind, body in {
        "job": {"type": "planted", "params": {"text": user.marker}},
        "failed_job": {"type": "planted", "params": {"text": user.marker, "fail": True}},
        "waiting_job": {"type": "planted-waiting", "params": {"text": user.marker}},
    }.items():
        body["labels"] = {"label": user.marker}
        body["key"] = f"{kind} {user.marker}"
        user.ids[kind] = (await _post(product, "/api/jobs/start", body, user.headers, 202))["id"]
    await product.wait_for_job(user.ids["job"], "succeeded")
    await product.wait_for_job(user.ids["failed_job"], "failed", "partial")
    job = (await product.http.get(f"/api/jobs/{user.ids['failed_job']}", headers=product.service)).json()
    for task in job["tasks"]:
        user.ids["task" if task["type"] == "store_texts" else "failed_task"] = task["id"]
    path = f"/api/jobs/{user.ids['job']}/artifacts"
    files = (await product.http.get(path, headers=user.headers)).json()
    user.ids["artifact"] = (files["artifacts"] if isinstance(files, dict) else files)[0]["id"]


async def _plant_batch(product: Product, user: User) -> None:
    batch = await _post(product, "/api/batches", {"name": user.marker}, user.headers, 201)
    user.ids["batch"] = batch["id"]
    body = {"type": "planted", "params": {"text": user.marker}, "batch": batch["id"]}
    job = await _post(product, "/api/jobs/start", body, user.headers, 202)
    await product.wait_for_job(job["id"], "succeeded")


async def _plant_webhook_and_schedule(product: Product, user: User) -> None:
    # No host has the address, and no worker of the attack delivers webhooks.
    webhook = {"url": f"https://attack.invalid/{user.marker}", "events": ["job.failed"]}
    user.ids["webhook"] = (await _post(product, "/api/webhooks", webhook, user.headers, 201))["id"]
    user.names["schedule"] = f"nightly {user.marker}"
    schedule = {
        "cron": "0 3 1 1 *",
        "job": {"type": "probe", "queue": "probe", "args": {"number": 1, "text": user.marker}},
        "owner": user.id,
    }
    path = f"/api/schedules/{user.names['schedule']}"
    response = await product.http.put(path, json=schedule, headers=product.service)
    assert response.status_code == 200, response.text


async def _plant_exports(product: Product, user: User) -> None:
    """Add a document with the marker in its texts, export it alone and in a batch."""
    sample = dict(load_sample_documents())["amara"]
    profile = {**sample.data["profile"], "summary": user.marker}
    body = {"title": f"Title {user.marker}", "data": {**sample.data, "profile": profile}}
    document = await _post(product, "/api/v1/export/documents", body, user.headers, 201)
    user.ids["document"] = document["id"]
    export = await _post(product, EXPORT_PATH, {"documentId": document["id"]}, user.headers, 202)
    user.ids["export_job"] = export["jobId"]
    batch = await _post(product, "/api/v1/export/batch", {"documentIds": [document["id"]]}, user.headers, 202)
    user.ids["export_batch"] = batch["batchId"]

    async def has_ended() -> bool:
        path = f"/api/v1/export/job/{export['jobId']}"
        status = (await product.http.get(path, headers=user.headers)).json()["status"]
        return status in FINAL_EXPORT_STATUSES

    await wait_until(has_ended, within=EXPORT_TIMEOUT, what="the export ends")
    history = (await product.http.get("/api/v1/export/history", headers=user.headers)).json()["history"]
    user.ids["history"] = str(history[0]["id"])


async def _plant_report(product: Product, user: User) -> None:
    """Start a report. In a short dose, cancel it at once: its pages and audio take most of a minute."""
    params = {"person1": {"name": user.marker}, "person2": {"name": "Bo"}, "systems": ["western"]}
    body = {"type": "nuclear_v2", "params": params}
    report = await _post(product, "/api/jobs/start", body, user.headers, 202)
    user.ids["report"] = report["id"]
    if product.is_short:
        await product.http.delete(f"/api/jobs/{report['id']}", headers=user.headers)
    await product.wait_for_job(report["id"])


async def _plant_bookmark(product: Product, user: User) -> None:
    """Add a bookmark of a host that does not exist: nothing outside is asked for its page."""
    url = f"https://bookmarks.invalid/{user.marker}"
    # Ids are numbers. Long ones can be told from other digits in a response.
    sequence = "pg_get_serial_sequence(quote_ident($1) || '.bookmarks', 'id')"
    await product.connection.fetchval(
        f"select setval({sequence}, greatest(nextval({sequence}), 7311000000))",
        product.settings.systems_schema,
    )
    row = await _post(product, "/api/v1/bookmarks/add/data", {"url": url}, user.headers, 200)
    user.ids["bookmark"] = str(row["id"])


async def _plant_share(product: Product, user: User) -> None:
    """Share a link to a host that does not exist: nothing outside is asked for its media."""
    body = {"url": f"https://media.invalid/{user.marker}.mp4"}
    share = await _post(product, "/api/v1/shares", body, user.headers, 202)
    user.ids["share"] = share["id"]

    async def has_failed() -> bool:
        row = (await product.http.get(f"/api/v1/shares/{share['id']}", headers=user.headers)).json()
        return bool(row["download_status"] == "failed")

    # A worker that tries again while others attack would look like a change by an attacker.
    await wait_until(has_failed, within=SHARE_TIMEOUT, what="the share fails")


async def _plant_clip(product: Product, user: User) -> None:
    """Add a video. The worker reads no message queues, so nothing outside is asked for it."""
    body = {"video_url": f"https://clips.invalid/{user.marker}"}
    clip = await _post(product, "/api/v1/clips", body, user.headers, 201)
    user.ids["clip"] = clip["id"]


PLANTERS_BY_SYSTEM: dict[str, Callable[[Product, User], Awaitable[None]]] = {
    "bookmarks": _plant_bookmark,
    "clips": _plant_clip,
    "exports": _plant_exports,
    "media": _plant_share,
    "reports": _plant_report,
}


async def compute_digest(product: Product, user: User) -> dict[str, str]:
    """Return a digest of the user's rows of each table, to see whether somebody changed them."""
    tables = await product.connection.fetch(
        """select c.oid::regclass::text as name, a.attname::text as owner
           from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
           where c.relkind in ('r', 'p') and not c.relispartition and a.attname in ('owner', 'user_id')
             and c.relnamespace in ('holdfast'::regnamespace, $1::text::regnamespace)""",
        product.settings.systems_schema,
    )
    return {
        table["name"]: await product.connection.fetchval(
            f"select coalesce(md5(string_agg(t::text, '|' order by t::text)), '') "
            f"from {table['name']} t where t.{table['owner']}::text = $1",
            user.id,
        )
        for table in tables
    }


def find_marker(user: User, response: httpx.Response) -> str | None:
    """Return the part of a response around the marker of a user, or None if the response has no marker."""
    text = response.text
    position = text.find(user.marker)
    return None if position < 0 else text[max(position - 100, 0) : position + 60]
