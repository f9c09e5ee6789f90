"""Describe schedules in English. A cron expression that has no simple description is shown unchanged."""

from __future__ import annotations

from holdfast.formatting import format_duration, format_number

WEEKDAY_NAMES_FROM_SUNDAY = (
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
MONTH_NAMES = (
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
CRON_ALIAS_TEXTS = {
    "@hourly": "every hour",
    "@daily": "every day at 00:00",
    "@midnight": "every day at 00:00",
    "@weekly": "every Sunday at 00:00",
    "@monthly": "on day 1 of every month at 00:00",
    "@yearly": "on 1 January at 00:00",
    "@annually": "on 1 January at 00:00",
}
LAST_DAY_TEXTS = {
    "l": "on the last day of every month",
    "lw": "on the last weekday (Monday to Friday) of every month",
}
ORDINALS = ("", "first", "second", "third", "fourth", "fifth")
_WEEKDAY_NUMBERS = {day[:3].lower(): n for n, day in enumerate(WEEKDAY_NAMES_FROM_SUNDAY[:7])}
_MONTH_NUMBERS = {month[:3].lower(): n for n, month in enumerate(MONTH_NAMES) if month}


def describe_schedule(cron: str | None, every_s: float | None) -> str:
    """Describe a schedule's cron expression or interval in words, such as `every day at 06:00`."""
    if cron is None:
        return f"every {_describe_interval(every_s or 0)}"
    if cron in CRON_ALIAS_TEXTS:
        return CRON_ALIAS_TEXTS[cron]
    fields = cron.lower().split()
    if len(fields) != 5:
        return cron
    minute, hour, day, month, weekday = fields
    time, date = _describe_cron_time(minute, hour), _describe_cron_days(day, month, weekday)
    if time is None or date is None:
        return cron
    if not time.startswith("at "):
        return time if date == "every day" else f"{time}, {date}"
    return f"{date} {time}"


def _describe_interval(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size and seconds % size == 0:
            count = seconds / size
            return unit if count == 1 else f"{format_number(count)} {unit}s"
    return format_duration(seconds)


def _describe_cron_time(minute: str, hour: str) -> str | None:
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


def _describe_cron_days(day: str, month: str, weekday: str) -> str | None:
    if (day, month, weekday) == ("*", "*", "*"):
        return "every day"
    if day == "*" and month == "*":
        return _describe_weekdays(weekday)
    if day in LAST_DAY_TEXTS and month == weekday == "*":
        return LAST_DAY_TEXTS[day]
    if day.isdigit() and weekday == "*" and month == "*":
        return f"on day {int(day)} of every month"
    if day.isdigit() and weekday == "*":
        number = int(month) if month.isdigit() else _MONTH_NUMBERS.get(month, 0)
        return f"on {int(day)} {MONTH_NAMES[number]}" if 1 <= number <= 12 else None
    return None


def _describe_weekdays(field: str) -> str | None:
    if field in {"1-5", "mon-fri"}:
        return "Monday to Friday"
    name, _, place = field.partition("#")
    if place.isdigit() and 1 <= int(place) <= 5 and (weekday := _find_weekday_name(name)):
        return f"on the {ORDINALS[int(place)]} {weekday} of every month"
    if field.endswith("l") and (weekday := _find_weekday_name(field[:-1])):
        return f"on the last {weekday} of every month"
    names: list[str] = []
    for part in field.split(","):
        weekday = _find_weekday_name(part)
        if weekday is None:
            return None
        names.append(weekday)
    return "every " + " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _find_weekday_name(text: str) -> str | None:
    number = int(text) if text.isdigit() else _WEEKDAY_NUMBERS.get(text, -1)
    return WEEKDAY_NAMES_FROM_SUNDAY[number] if 0 <= number <= 7 else None
