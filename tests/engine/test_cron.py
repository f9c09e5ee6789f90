"""The times of cron expressions, compared with cronsim and with a scan of the minutes of clock changes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from manual_worker import expect_error

from holdfast.engine.connection import Connection

# Whole and half hours, two hours, a whole day; at midnight, at 0:01 and at night; winter time as the
# exception; zones that moved.
TIME_ZONES = (
    "Europe/Madrid",
    "Europe/Dublin",
    "Europe/Moscow",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Havana",
    "America/Caracas",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Antarctica/Troll",
    "Africa/Casablanca",
)
TIME_OF_DAY_CRONS = (
    "30 2 * * *",
    "0,30 0-3 * * *",
    "15 0 * * SUN",
    "0 3 L * *",
    "1 0,2 1-7 * *",
)
INTERVAL_CRONS = ("*/20 * * * *", "30 * * * *", "*/15 0-2 * * *", "0 */2 * * *")
MINUTE = timedelta(minutes=1)
MOVED_BY_A_DAY = "Pacific/Apia"


def list_offset_changes(zone: ZoneInfo) -> list[datetime]:
    """Every instant from 2000 to 2037 at which the offset changes, to the minute."""
    result: list[datetime] = []
    step = timedelta(hours=12)
    at, end = datetime(2000, 1, 1, tzinfo=UTC), datetime(2038, 1, 1, tzinfo=UTC)
    while at < end:
        if get_utc_offset(at, zone) != get_utc_offset(at + step, zone):
            low, high = at, at + step
            while high - low > MINUTE:
                middle = low + ((high - low) // 2 // MINUTE or 1) * MINUTE
                low, high = (
                    (low, middle)
                    if get_utc_offset(middle, zone) != get_utc_offset(low, zone)
                    else (middle, high)
                )
            result.append(high)
        at += step
    return result


def get_utc_offset(at: datetime, zone: ZoneInfo) -> timedelta | None:
    return at.astimezone(zone).utcoffset()


class BruteForceCron:
    """An expression as sets of numbers. Only what the lists above use, read in the plainest way."""

    def __init__(self, cron: str) -> None:
        minute, hour, self._day, _, self._weekday = cron.split()
        self.elapsed = minute[0] == "*" or hour[0] == "*"
        self.minutes, self.hours = self._numbers(minute, 60), self._numbers(hour, 24)

    @staticmethod
    def _numbers(text: str, end: int) -> set[int]:
        if text[0] == "*":
            return set(range(0, end, int(text[2:] or 1)))
        spans = [part.partition("-") for part in text.split(",")]
        return {n for low, _, high in spans for n in range(int(low), int(high or low) + 1)}

    def on(self, day: date) -> bool:
        if self._weekday == "SUN":
            return day.weekday() == 6
        if self._day == "L":
            return (day + timedelta(days=1)).day == 1
        return self._day == "*" or day.day in self._numbers(self._day, 32)

    def fits(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.on(wall.date())

    def walk(self, clock: Sequence[tuple[datetime, datetime]]) -> list[datetime]:
        """The instants of a stretch of minutes, each given with what the wall clock shows then."""
        if self.elapsed:
            return [at for at, wall in clock if self.fits(wall)]
        result: list[datetime] = []
        highest = clock[0][1] - MINUTE
        for at, wall in clock:
            missed, highest = highest + MINUTE, max(highest, wall)
            while missed <= wall:  # more than one when the clock was put forward, none when it was put back
                if self.fits(missed) and result[-1:] != [at]:
                    result.append(at)
                missed += MINUTE
        return result


def get_window_half_width(zone: str) -> timedelta:
    """Looked at on either side of a change: more than it can move the clock by."""
    return timedelta(hours=27 if zone == MOVED_BY_A_DAY else 8)


def build_windows_around(change: datetime, zone: ZoneInfo) -> list[tuple[datetime, datetime]]:
    count = int(2 * get_window_half_width(zone.key) / MINUTE) + 1
    instants = [change - get_window_half_width(zone.key) + n * MINUTE for n in range(count)]
    return [(at, at.astimezone(zone).replace(tzinfo=None)) for at in instants]


def simulate_cron_times(cron: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    for at in CronSim(cron, start.astimezone(zone)):
        if at.astimezone(UTC) > end:
            return
        yield at.astimezone(UTC)


async def compute_cron_times(
    conn: Connection, cron: str, zone: str, middles: list[datetime]
) -> list[list[datetime]]:
    rows = await conn.fetch(
        "select array(select t "
        "from holdfast.list_cron_times_between($1, $2, m - $4::interval, m + $4::interval) as t "
        "order by t) as times from unnest($3::timestamptz[]) with ordinality as u (m, ord) order by ord",
        cron,
        zone,
        middles,
        get_window_half_width(zone),
    )
    return [row["times"] for row in rows]


async def list_changes_known_to_server(
    conn: Connection, name: str, middles: list[datetime]
) -> list[datetime]:
    """Those that the server's own time zones have as well: it may be older or newer than Python's."""
    zone = ZoneInfo(name)
    probes = [
        change + by
        for change in middles
        for by in (-get_window_half_width(name), -MINUTE, timedelta(0), get_window_half_width(name))
    ]
    rows = await conn.fetch(
        "select (p at time zone $1) - (p at time zone 'UTC') as o from unnest($2::timestamptz[]) as p",
        name,
        probes,
    )
    agree = [row["o"] == get_utc_offset(probe, zone) for row, probe in zip(rows, probes, strict=True)]
    return [change for n, change in enumerate(middles) if all(agree[4 * n : 4 * n + 4])]


# cronsim 2.8 sets minutes and hours on aware times. Where a change is not by whole hours or not at one, that
# leads it astray when it goes by elapsed time (in St. Johns it never comes back). There the walk has the say.
ZONES_CRONSIM_GETS_WRONG = {"America/St_Johns", "Australia/Lord_Howe", "America/Caracas"}


def is_cronsim_wrong(zone: str, cron: str) -> bool:
    return BruteForceCron(cron).elapsed and zone in ZONES_CRONSIM_GETS_WRONG


FIRST_SETTLED_YEAR = (
    2025  # what comes later countries still change, and two lists of zones need not have heard of it
)


# Half an hour, an hour, two hours and a whole day: the other zones add nothing to these in most changes.
DAILY_TIME_ZONES = ("America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia")


@pytest.mark.parametrize(
    "name",
    [pytest.param(zone, marks=() if zone in DAILY_TIME_ZONES else pytest.mark.long) for zone in TIME_ZONES],
)
async def test_every_clock_change(conn: Connection, name: str) -> None:
    zone = ZoneInfo(name)
    every = list_offset_changes(zone)
    middles = await list_changes_known_to_server(conn, name, every)
    past = [change for change in every if change.year < FIRST_SETTLED_YEAR]
    assert len([each for each in middles if each.year < FIRST_SETTLED_YEAR]) >= 0.9 * len(past), (
        f"not one world: {name}"
    )
    clocks = [build_windows_around(change, zone) for change in middles]
    for cron in TIME_OF_DAY_CRONS + INTERVAL_CRONS:
        brute = BruteForceCron(cron)
        for times, clock in zip(await compute_cron_times(conn, cron, name, middles), clocks, strict=True):
            start, end = clock[0][0], clock[-1][0]
            expected = [at for at in brute.walk(clock) if at > start]
            assert times == expected, (cron, name, start)
            if not is_cronsim_wrong(name, cron):
                assert times == list(simulate_cron_times(cron, zone, start, end)), (cron, name, start)


def random_field(rng: random.Random, low: int, high: int, names: Sequence[str] = ()) -> str:
    def number() -> str:
        return rng.choice(names) if names and rng.random() < 0.3 else str(rng.randint(low, high))

    def term() -> str:
        shape = rng.randrange(6)
        if shape == 0:
            return "*"
        if shape == 1:
            return f"*/{rng.randint(1, high + 3)}"
        if shape == 2:
            a, b = sorted((rng.randint(low, high), rng.randint(low, high)))
            return f"{a}-{b}" + rng.choice(("", f"/{rng.randint(1, 9)}"))
        if shape == 3:
            return f"{number()}/{rng.randint(1, 20)}"
        return number()

    return ",".join(term() for _ in range(rng.choice((1, 1, 1, 2, 3))))


def random_cron(rng: random.Random) -> str:
    months = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
    weekdays = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
    days = rng.choice((random_field(rng, 1, 31), "*", "L", "LW", "1,L", "15,LW"))
    weekday = rng.choice(
        (random_field(rng, 0, 7, weekdays), "*", "5L", "MON#1", "2#5", "WED#2,FRI#4", "0L,3")
    )
    month = rng.choice((random_field(rng, 1, 12, months), "*"))
    return " ".join((random_field(rng, 0, 59), random_field(rng, 0, 23), days, month, weekday))


async def test_expressions_of_every_shape(conn: Connection) -> None:
    rng = random.Random(20261115)
    crons = [random_cron(rng) for _ in range(150)]
    starts = [datetime(2023, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(2_000_000)) for _ in crons]
    rows = await conn.fetch(
        "select array(select t from holdfast.list_cron_times_after(c, 'UTC', s, 5) as t) as times "
        "from unnest($1::text[], $2::timestamptz[]) with ordinality as u (c, s, ord) order by ord",
        crons,
        starts,
    )
    for cron, start, row in zip(crons, starts, rows, strict=True):
        try:
            simulation = CronSim(cron, start)
        except CronSimError:
            assert row["times"] == [], cron  # a day that never comes
            continue
        expected = [at for at, _ in zip(simulation, range(5), strict=False)]
        assert row["times"] == expected, (cron, start)


async def test_previous_cron_times_equal_the_times_found_forward(conn: Connection) -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, tzinfo=UTC)
    for cron in ("30 2 * * *", "0 0 1 1,7 *", "15 */7 * * MON"):
        rows = await conn.fetch(
            "select t from holdfast.list_cron_times_before($1, 'Europe/Madrid', $2, $3, 1000) as t",
            cron,
            end,
            start,
        )
        forward = list(simulate_cron_times(cron, ZoneInfo("Europe/Madrid"), start, end))
        assert [row["t"] for row in rows] == forward[::-1][:1000]


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        "a * * * *",
        "* * * FOO *",
        "* * * * MON#6",
        "* * * * L",
        "L * * * *",
        "-1 * * * *",
        "1- * * * *",
        "* * W * *",
        "@reboot",
        "@every 5m",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "99999999999999999999 * * * *",
        "*/99999999999999999999 * * * *",
        "1 " * 600,
    ],
)
async def test_invalid_cron_expressions_are_refused(conn: Connection, cron: str) -> None:
    with expect_error("HF004", "cron"):
        await conn.fetch("select * from holdfast.list_next_run_times($1)", cron)


@pytest.mark.parametrize("zone", ["Mars/Phobos", "Foo+3", "EST5EDT4,M3", "", "Europe/Madird", "x" * 500])
async def test_unknown_zones_are_refused(conn: Connection, zone: str) -> None:
    with expect_error("HF004", "timezone"):
        await conn.fetch("select * from holdfast.list_next_run_times('0 0 * * *', p_timezone => $1)", zone)


async def test_cron_names_such_as_daily(conn: Connection) -> None:
    after = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
    named = {
        "@hourly": "2026-05-04T11:00",
        "@daily": "2026-05-05T00:00",
        "@MIDNIGHT": "2026-05-05T00:00",
        "@weekly": "2026-05-10T00:00",
        "@monthly": "2026-06-01T00:00",
        "@yearly": "2027-01-01T00:00",
        "@annually": "2027-01-01T00:00",
    }
    for name, first in named.items():
        result = await conn.fetchval(
            "select t from holdfast.list_next_run_times($1, p_count => 1, p_after => $2) as t", name, after
        )
        assert result == datetime.fromisoformat(f"{first}Z"), name
