"""Values as people write them on a command line: spans of time, JSON bodies, pairs, and messages by name."""

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
    SpanType: TypeAlias = click.ParamType[timedelta]
    MomentType: TypeAlias = click.ParamType[datetime]
else:  # generic in newer versions of click only
    SpanType = MomentType = click.ParamType


class Span(SpanType):
    """`90s`, `5m`, `1.5h`."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(str(value))
        except (ValueError, OverflowError) as problem:
            self.fail(str(problem), param, ctx)


class Moment(MomentType):
    """ISO 8601; without a zone it is UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail("write it as 2026-05-01T12:00:00Z", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


SPAN, MOMENT = Span(), Moment()


def body_of(words: Sequence[str]) -> Any:
    """JSON as an argument, `-` for standard input, `@file`, or pairs: `name=text`, `count:=3`."""
    if len(words) == 1 and not _is_pair(words[0]):
        return parsed(_text(words[0]), "the body")
    return pairs(words)


def _is_pair(word: str) -> bool:
    name, sign, _ = word.partition("=")
    return bool(sign) and name.rstrip(":").replace("_", "").replace("-", "").replace(".", "").isalnum()


def _text(word: str) -> str:
    if word == "-":
        return sys.stdin.read()
    if not word.startswith("@"):
        return word
    path = Path(word[1:])
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}.", fix="Check the path after @.") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InvalidError(f"{path} is not a text file.", field="body") from None


def parsed(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as problem:
        raise InvalidError(
            f"{what} is not JSON: {problem}.",
            fix="""Quote it for the shell, as in '{"a": 1}', or write pairs: name=text count:=3.""",
            field="body",
        ) from None


def pairs(words: Sequence[str]) -> dict[str, Any]:
    """`name=text` is a string, `name:=json` is what it says."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.rstrip(":"):
            raise InvalidError(f"{word!r} is not a pair.", fix="Write name=text or name:=json.", field="body")
        if name.endswith(":"):
            found[name[:-1]] = parsed(value, f"the value of {name[:-1]}")
        else:
            found[name] = value
    return found


def message_named(queue: str, word: str) -> Message[None] | int:
    """An id, or a receipt as `msg read` shows it, which is fenced."""
    number, dot, _ = word.partition(".")
    try:
        found = int(number)
    except ValueError:
        raise InvalidError(
            f"{word!r} is neither an id nor a receipt.", fix="See `holdfast msg peek`.", field="ids"
        ) from None
    if not dot:
        return found
    long_ago = datetime.fromtimestamp(0, UTC)  # only the receipt counts
    return Message(id=found, queue=queue, body=None, sent_at=long_ago, visible_at=long_ago, receipt=word)
