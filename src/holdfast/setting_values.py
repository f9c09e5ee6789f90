"""Values of settings: secrets, choices and durations, and how they are read from text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args

from holdfast.errors import SettingsError
from holdfast.redaction import MASK_TEXT

AutoSwitch = Literal["auto", "on", "off"]
LogFormat = Literal["human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogCaptureLevel = Literal["off", "debug", "info", "warning", "error"]
OnOffSwitch = Literal["off", "on"]


def define_setting(default: Any, help: str) -> Any:  # noqa: A002
    """Declare a field of `Settings` with its default and its help text."""
    return field(default=default, metadata={"help": help})


class Secret(str):
    """A string that prints as `•••`, for passwords and keys. `reveal()` returns the value.

    >>> from holdfast import Secret
    >>> password = Secret("hunter2")
    >>> print(password)
    •••
    >>> password.reveal()
    'hunter2'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Secret({MASK_TEXT!r})"

    def __str__(self) -> str:
        return MASK_TEXT

    def __format__(self, spec: str) -> str:
        return MASK_TEXT

    def reveal(self) -> str:
        """Return the secret value as a plain string."""
        return "".join(self)


_SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `90s`, `1.5h`, `250ms` or `7d`."""
    match = _DURATION_PATTERN.fullmatch(text.strip())
    if not match:
        raise ValueError("write a number and a unit, as in 250ms, 90s, 5m, 1.5h or 7d")
    return timedelta(seconds=float(match["number"]) * _SECONDS_BY_UNIT[match["unit"]])


SETTING_CHOICES: dict[str, tuple[str, ...]] = {
    "AutoSwitch": get_args(AutoSwitch),
    "LogFormat": get_args(LogFormat),
    "LogLevel": get_args(LogLevel),
    "LogCaptureLevel": get_args(LogCaptureLevel),
    "OnOffSwitch": get_args(OnOffSwitch),
}


def convert_setting_value(name: str, kind: str, raw: object) -> object:
    """Convert the text of a setting to its type, or raise SettingsError with the name of the setting."""
    kind = kind.removesuffix(" | None")
    try:
        if kind == "OnOffSwitch":
            raw = {"true": "on", "1": "on", "false": "off", "0": "off"}.get(str(raw).lower(), raw)
        if kind in SETTING_CHOICES:
            if str(raw) not in SETTING_CHOICES[kind]:
                raise ValueError(f"choose one of {', '.join(SETTING_CHOICES[kind])}")
            return str(raw)
        if kind == "timedelta":
            return raw if isinstance(raw, timedelta) else parse_duration(str(raw))
        if kind == "int":
            return int(str(raw))
        plain = raw.reveal() if isinstance(raw, Secret) else str(raw)
        return {"Path": Path, "Secret": Secret, "str": str}[kind](plain)
    except ValueError as error:
        shown = MASK_TEXT if kind == "Secret" else repr(raw)
        raise SettingsError(
            f"The setting {name} has the invalid value {shown}: {error}.", field=name
        ) from error


def redact_url(url: str) -> str:
    """Return a URL with its password masked."""
    # A URL parser would end the host at an unescaped / or ? in the password, so this goes up to the last @.
    url = re.sub(r"(://[^:/?#@]*):.*@", rf"\1:{MASK_TEXT}@", url, flags=re.DOTALL)
    return re.sub(r"([?&]password=)[^&#]*", rf"\1{MASK_TEXT}", url)


MAX_SHARD_NUMBER: Final = 255
# A comma separates shards if a number follows; the commas between the hosts of an address do not count.
_ENTRY_SEPARATOR = re.compile(r",(?=\s{0,8}\d{1,3}\s{0,8}=)")
_SYNTAX: Final = "Write 1=postgresql://host-a/app,2=postgresql://host-b/app."


def parse_shards(text: str) -> dict[int, Secret]:
    """Parse the setting `shards`.

    >>> from holdfast.setting_values import parse_shards
    >>> sorted(parse_shards("1=postgresql://a,b/app,2=postgresql://c/app"))
    [1, 2]
    """
    shards: dict[int, Secret] = {}
    for entry in _ENTRY_SEPARATOR.split(text.strip()):
        number, separator, url = (part.strip() for part in entry.partition("="))
        if not separator or not number.isdigit() or not url.startswith(("postgresql://", "postgres://")):
            raise SettingsError("The setting shards cannot be read.", fix=_SYNTAX, field="shards")
        if int(number) in shards:
            raise SettingsError(f"Shard {number} is named twice.", fix=_SYNTAX, field="shards")
        shards[int(number)] = Secret(url)
    check_shards(shards)
    return shards


def check_shards(shards: Mapping[int, Secret]) -> None:
    """Raise SettingsError for numbers out of range and for two numbers with the same address."""
    for number in shards:
        if not 0 <= number <= MAX_SHARD_NUMBER:
            raise SettingsError(f"Shard {number} must be 0 to {MAX_SHARD_NUMBER}.", field="shards")
    if len({url.reveal() for url in shards.values()}) < len(shards):
        raise SettingsError("Two shards have the same address.", fix=_SYNTAX, field="shards")
