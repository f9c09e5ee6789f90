"""Parse values of the command line: durations, timestamps, JSON, pairs and message references."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from holdfast.errors import InvalidError, NotFoundError
from holdfast.model import Message
from holdfast.settings import parse_duration

if TYPE_CHECKING:
    _DurationBase: TypeAlias = click.ParamType[timedelta]
    _TimestampBase: TypeAlias = click.ParamType[datetime]
else:  # click.ParamType is generic in newer versions of click only
    _DurationBase = _TimestampBase = click.ParamType


class DurationParameter(_DurationBase):
    """A click parameter type that parses a duration, such as `90s`, `5m` or `1.5h`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value))
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


class TimestampParameter(_TimestampBase):
    """A click parameter type that parses an ISO 8601 timestamp. Without a time zone, it is in UTC."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            timestamp = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a timestamp; write it as 2026-05-01T12:00:00Z", param, ctx)
        return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


DURATION, TIMESTAMP = DurationParameter(), TimestampParameter()


def parse_json_or_pairs(arguments: Sequence[str]) -> Any:
    """Parse command-line arguments: JSON, `@file`, `-` for standard input, or pairs such as `name=text`."""
    if len(arguments) == 1 and not _is_pair(arguments[0]):
        return parse_json(_read_argument(arguments[0]), "The value")
    return parse_pairs(arguments)


def _is_pair(argument: str) -> bool:
    name, sign, _ = argument.partition("=")
    return bool(sign) and name.rstrip(":").replace("_", "").replace("-", "").replace(".", "").isalnum()


def _read_argument(argument: str) -> str:
    if argument == "-":
        return sys.stdin.read()
    if not argument.startswith("@"):
        return argument
    path = Path(argument[1:])
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"File {path} does not exist.", fix="Check the path after @.") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InvalidError(f"{path} is not a text file.", field="body") from None


def parse_json(text: str, subject: str) -> Any:
    """Parse JSON. Raise `InvalidError` whose message starts with `subject`."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{subject} is not valid JSON: {error}.",
            fix="""Quote it for the shell, as in '{"a": 1}', or write pairs: name=text count:=3.""",
            field="body",
        ) from None


def parse_pairs(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `name=text` and `name:=json` arguments to a dictionary of strings and JSON values."""
    values: dict[str, Any] = {}
    for argument in arguments:
        name, sign, text = argument.partition("=")
        if not sign or not name.rstrip(":"):
            raise InvalidError(
                f"{argument!r} is not a name and a value.", fix="Write name=text or name:=json.", field="body"
            )
        if name.endswith(":"):
            values[name[:-1]] = parse_json(text, f"The value of {name[:-1]}")
        else:
            values[name] = text
    return values


def parse_message_reference(queue: str, reference: str) -> Message[None] | int:
    """Parse a message id to a number, or a receipt to a message with that receipt.

    A receipt is valid only as long as the reader still holds the message. An id is always valid.
    """
    number, dot, _ = reference.partition(".")
    try:
        message_id = int(number)
    except ValueError:
        raise InvalidError(
            f"{reference!r} is neither a message id nor a receipt.",
            fix="`holdfast msg peek` prints ids, `holdfast msg read` prints receipts.",
            field="ids",
        ) from None
    if not dot:
        return message_id
    epoch = datetime.fromtimestamp(0, UTC)  # the times are not used, only the receipt is
    return Message(id=message_id, queue=queue, body=None, sent_at=epoch, visible_at=epoch, receipt=reference)
