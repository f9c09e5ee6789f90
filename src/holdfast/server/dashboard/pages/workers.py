"""Workers: who lives, how loaded they are, and telling them to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from holdfast.engine import operate, outside
from holdfast.errors import InvalidError
from holdfast.search import quoted
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.shapes import mapped
from holdfast.server.dashboard.site import Deed, Page, View


@screen("/workers", "system.view")
async def workers(view: View) -> Page:
    found = await operate.list_workers(view.connection)
    rows = [_shown(row) for row in found]
    live = [row for row in rows if row["state"] in {"live", "quiet"}]
    newest = max((row["version"] or "" for row in live), default="")
    return Page(
        "workers.html",
        "Workers",
        {"live": live, "gone": [row for row in rows if row not in live], "newest": newest},
    )


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    about = mapped(row.get("about"))
    state = "left" if row["state"] == "stopped" else row["state"]
    return {
        **row,
        "state": state,
        **{name: about.get(name) for name in ("host", "pid", "version", "slots", "processes")},
        "lag_ms": about.get("loop_lag_ms"),
        "rss": about.get("rss"),
        "blocked": about.get("blocked"),
    }


@screen("/worker", "system.view")
async def worker(view: View) -> Page:
    name = view.query.get("name", "")
    found = [
        row for row in await operate.list_workers(view.connection, within_s=40 * 86400) if row["name"] == name
    ]
    if not found:
        raise HTTPException(404, "There is no such worker.")
    running = await operate.worker_tasks(view.connection, name)
    redactor = view.redactor()
    return Page(
        "worker.html",
        f"Worker {name}",
        {
            "worker": _shown(found[0]),
            "about": found[0].get("about") or {},
            "running": [{**task, "message": redactor.text(task["message"])} for task in running],
            "query": f"worker:{quoted(name)}",
        },
    )


@deed("/worker/command", "worker.stop")
async def command(asked: Deed) -> tuple[str, str]:
    name, word = asked.needed("name"), asked.needed("command")
    if word not in {"drain", "stop", "none"}:
        raise InvalidError("Choose drain or stop.", field="command")
    heard = await outside.command_worker(asked.connection, name, None if word == "none" else word)
    await asked.audit(f"worker.{word}", name, heard=heard, reason=asked.text("reason"))
    told = "It was told." if heard else "It was told, but shows no sign of life."
    return asked.view.url("/worker", name=name)[len(asked.view.base) :], told
