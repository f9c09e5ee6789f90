"""A schedule in words. What cannot be said simply is shown as it was written."""

from __future__ import annotations

from holdfast.server.dashboard.words import number, seconds

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
NICKNAMES = {
    "@hourly": "every hour",
    "@daily": "every day at 00:00",
    "@midnight": "every day at 00:00",
    "@weekly": "every Sunday at 00:00",
    "@monthly": "on day 1 of every month at 00:00",
    "@yearly": "on 1 January at 00:00",
    "@annually": "on 1 January at 00:00",
}
_DAY_NAMES = {day[:3].lower(): n for n, day in enumerate(DAYS[:7])}
_MONTH_NAMES = {month[:3].lower(): n for n, month in enumerate(MONTHS) if month}


def in_words(cron: str | None, every_s: float | None) -> str:
    if cron is None:
        return f"every {_span(every_s or 0)}"
    if cron in NICKNAMES:
        return NICKNAMES[cron]
    parts = cron.lower().split()
    if len(parts) != 5:
        return cron
    minute, hour, day, month, weekday = parts
    time, date = _time(minute, hour), _date(day, month, weekday)
    if time is None or date is None:
        return cron
    if not time.startswith("at "):
        return time if date == "every day" else f"{time}, {date}"
    return f"{date} {time}"


def _span(span: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if span >= size and span % size == 0:
            count = span / size
            return unit if count == 1 else f"{number(count)} {unit}s"
    return seconds(span)


def _time(minute: str, hour: str) -> str | None:
    if minute.isdigit() and hour.isdigit():
        return f"at {int(hour):02}:{int(minute):02}"
    if minute == "*" and hour == "*":
        return "every minute"
    if minute.startswith("*/") and minute[2:].isdigit() and hour == "*":
        return f"every {minute[2:]} minutes"
    if minute.isdigit() and hour == "*":
        return "every hour" if int(minute) == 0 else f"every hour at minute {int(minute)}"
    if minute.isdigit() and hour.startswith("*/") and hour[2:].isdigit():
        return f"every {hour[2:]} hours at minute {int(minute)}"
    if minute.isdigit() and all(part.isdigit() for part in hour.split(",")):
        return "at " + ", ".join(f"{int(part):02}:{int(minute):02}" for part in hour.split(","))
    return None


def _date(day: str, month: str, weekday: str) -> str | None:
    if (day, month, weekday) == ("*", "*", "*"):
        return "every day"
    if day == "*" and month == "*":
        return _weekdays(weekday)
    if day.isdigit() and weekday == "*" and month == "*":
        return f"on day {int(day)} of every month"
    if day.isdigit() and weekday == "*":
        number_of = int(month) if month.isdigit() else _MONTH_NAMES.get(month, 0)
        return f"on {int(day)} {MONTHS[number_of]}" if 1 <= number_of <= 12 else None
    return None


def _weekdays(text: str) -> str | None:
    if text in {"1-5", "mon-fri"}:
        return "Monday to Friday"
    found: list[str] = []
    for part in text.split(","):
        n = int(part) if part.isdigit() else _DAY_NAMES.get(part, -1)
        if not 0 <= n <= 7:
            return None
        found.append(DAYS[n])
    return "every " + " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
