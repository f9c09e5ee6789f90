"""Every page, by HTTP: it is there, it says what it should, to those who may see it."""

from __future__ import annotations

from typing import Any

from exhibition import Exhibition

from holdfast.dashboard.registry import SCREENS

PATHS = [
    "/",
    "/?span=7d",
    "/jobs",
    "/jobs?q=state:failed",
    "/jobs?q=nosuch:1",
    "/errors",
    "/errors?span=7d&ignored=yes",
    "/error?cause=TimeoutError%20render.py:goto",
    "/queues",
    "/queue?name=browser",
    "/queue?name=ai",
    "/tasks",
    "/task?name=screenshot",
    "/task?name=digest",
    "/messages",
    "/messages?queue=clips",
    "/messages?queue=clips&place=dead",
    "/messages?queue=clips&place=archive",
    "/workers",
    "/worker?name=worker-1",
    "/schedules",
    "/bulk",
    "/bulk/new?verb=retry&q=state:failed",
    "/bulk/new?verb=cancel",
    "/files",
    "/limits",
    "/database",
    "/audit",
    "/settings",
]
OF_A_JOB = ["", "?tab=logs", "?tab=files", "?tab=payload", "?tab=events", "?tab=tasks", "/rerun"]


def paths(ids: dict[str, Any]) -> list[str]:
    jobs = [f"/jobs/{ids[name]}{tail}" for name in ("graph", "failed", "running") for tail in OF_A_JOB]
    return [*PATHS, *jobs, f"/bulk/{ids['bulk']}", f"/batches/{ids['batch']}"]


def test_every_page_answers(shown: Exhibition) -> None:
    with shown.visitor("admin") as client:
        seen: set[str] = set()
        for path in paths(shown.ids):
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text[-2000:])
            assert "<h1" in answer.text, path
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            assert len(answer.content) < 100_000 or "task" in path, (path, len(answer.content))
            bare = path.partition("?")[0]
            seen |= {name for name, entry in SCREENS.items() if entry.pattern.match(bare)}
        assert seen == set(SCREENS), "a page that no test looks at"
