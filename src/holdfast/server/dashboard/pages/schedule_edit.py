"""Change a schedule: its times, what it does about missed ones, and its job; looked at before it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.engine import schedules
from holdfast.engine.connection import translated
from holdfast.errors import HoldfastError, InvalidError
from holdfast.model import StoredSchedule
from holdfast.server.dashboard.cronwords import in_words
from holdfast.server.dashboard.registry import deed, screen
from holdfast.server.dashboard.site import Deed, Page, View
from holdfast.server.dashboard.words import pretty

MISSED = {
    "coalesce": "one run for all that were missed",
    "skip": "none",
    "catch_up": "each of them",
}
FIELDS = ("cron", "every_s", "timezone", "missed", "most", "job")


@screen("/schedules/edit", "schedule.edit")
async def edit(view: View) -> Page:
    one = await schedules.get_schedule(view.connection, view.query.get("name", ""))
    times = await schedules.preview_schedule(view.connection, one.name, 5)
    return _page(one, _written(one), times)


def _page(
    one: StoredSchedule, typed: dict[str, str], times: Sequence[datetime], wrong: HoldfastError | None = None
) -> Page:
    words = "" if wrong else in_words(typed["cron"] or None, _number(typed["every_s"], "every_s"))
    return Page(
        "schedule.html",
        f"Schedule {one.name}",
        {"one": one, "typed": typed, "times": times, "words": words, "missed": MISSED, "wrong": wrong},
        live=False,
        status=200 if wrong is None else 422,
    )


def _written(one: StoredSchedule) -> dict[str, str]:
    return {
        "cron": one.cron or "",
        "every_s": "" if one.every_s is None else f"{one.every_s:g}",
        "timezone": one.timezone,
        "missed": one.missed,
        "most": str(one.most),
        "job": pretty(one.job),
    }


@deed("/schedules/edit", "schedule.edit")
async def change(asked: Deed) -> tuple[str, str] | Page:
    """`look` shows what it would mean; without it, it is kept."""
    on, name = asked.connection, asked.needed("name")
    one = await schedules.get_schedule(on, name)
    typed = {field: asked.text(field, most=100_000) for field in FIELDS}
    looking = asked.text("look") == "yes"
    try:
        given = _given(one, typed)
        with translated(asked.view.site.services.database.url):
            async with on.transaction():
                times = await schedules.next_times(
                    on, cron=given["cron"], every_s=given["every_s"], timezone=given["timezone"], count=5
                )
                if not looking:
                    await schedules.put_schedule(on, given)
    except InvalidError as wrong:
        return _page(one, typed, [], wrong)
    if looking:
        return _page(one, typed, times)
    await asked.audit("schedule.edit", name, **_changes(_written(one), typed))
    return "/schedules", f"{name} is changed."


def _given(one: StoredSchedule, typed: dict[str, str]) -> dict[str, Any]:
    if bool(typed["cron"]) == bool(typed["every_s"]):
        raise InvalidError("Give a cron expression or a number of seconds, and not both.", field="cron")
    try:
        job = msgspec.json.decode(typed["job"], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as problem:
        raise InvalidError(f"The job is no JSON object: {problem}.", field="job") from None
    if typed["missed"] not in MISSED:
        raise InvalidError("Choose what is done about missed runs.", field="missed")
    most = _number(typed["most"], "most")
    return {
        "name": one.name,
        "owner": one.owner,
        "job": job,
        "cron": typed["cron"] or None,
        "every_s": _number(typed["every_s"], "every_s"),
        "timezone": typed["timezone"] or "UTC",
        "missed": typed["missed"],
        "most": None if most is None else int(most),
    }


def _number(text: str, field: str) -> float | None:
    try:
        found = float(text) if text else None
    except ValueError:
        found = float("nan")
    if found is not None and not 0 < found < 1e9:
        raise InvalidError(f"{field} must be a number above zero.", field=field)
    return found


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, Any]:
    """What is written down: which times it had and has; of the job only that it changed."""
    changed = {name: after[name] for name in FIELDS if name != "job" and after[name] != before[name]}
    return {**changed, "was": before["cron"] or before["every_s"], "job": after["job"] != before["job"]}
