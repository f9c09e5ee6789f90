"""The search text that people type: one grammar for the dashboard, the command line and the API.

    state:failed queue:browser,ai -task:caption tag:team=media args.url:"https://e.example" wait:>1m since:2h

A term is `field:value`. A comma means "or", a leading `-` excludes, quotes keep spaces and commas, and terms
are joined by "and". `attempt:`, `wait:` and `run:` compare (`>3`, `<=30s`). `args.a.b:value` and
`result.a.b:value` look into the payload: all of them together become one containment test. A word without a
field is an id, or a part of a type, an owner or an error.

`parse` never guesses: what it does not understand is an InvalidError that names the term. The parsed query
knows nothing about SQL; `Query.filter` is the JSON that `holdfast.search_jobs` takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast.errors import InvalidError

LONGEST: Final = 4000
MOST_TERMS: Final = 40

STATES: Final = (
    *("queued", "waiting", "scheduled", "ready", "retrying", "running"),
    *("succeeded", "partial", "failed", "cancelled", "ended", "alive"),
)
NAMES: Final = ("queue", "task", "owner", "worker", "error", "cause", "key")
NUMBERS: Final = ("attempt",)
DURATIONS: Final = ("wait", "run")
TIMES: Final = ("since", "until")
IDS: Final = ("job", "batch")
ALIASES: Final = {"tenant": "owner", "status": "state", "type": "task", "id": "job", "label": "tag"}
FIELDS: Final = ("state", *NAMES, *IDS, "tag", *TIMES, *NUMBERS, *DURATIONS, "args", "result")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)")
_COMPARED = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
_FIELD = re.compile(r"-?([a-z]+)((?:\.[^.:\"\s]+)*):")
_CLOSED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Term:
    """One `field:value[,value]`; `path` only for args and result."""

    field: str
    values: tuple[str, ...]
    path: tuple[str, ...] = ()
    excluded: bool = False


@dataclass(frozen=True)
class Query:
    text: str
    terms: tuple[Term, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.terms

    def of(self, field: str) -> tuple[str, ...]:
        """The values asked for in a field, without the excluded ones."""
        return tuple(v for t in self.terms if t.field == field and not t.excluded for v in t.values)

    @property
    def filter(self) -> dict[str, Any]:
        return _compiled(self.terms)


def parse(text: str) -> Query:
    if len(text) > LONGEST:
        raise InvalidError(f"The search is longer than {LONGEST} characters.", field="q")
    if "\0" in text:
        raise InvalidError("The search has a NUL character in it.", field="q")
    terms = tuple(_terms(text))
    if len(terms) > MOST_TERMS:
        raise InvalidError(f"The search has more than {MOST_TERMS} terms.", field="q")
    _compiled(terms)  # so that a wrong value is told here and not when it is used
    return Query(text.strip(), terms)


def with_term(text: str, field: str, value: str | None) -> str:
    """The same search with this field set to one value, or without it; other terms stay as typed."""
    kept: list[str] = []
    for piece in _pieces(text):
        found = _FIELD.match(piece)
        name = ALIASES.get(found[1], found[1]) if found else None
        if name != field:
            kept.append(piece)
    if value is not None:
        kept.append(f"{field}:{quoted(value)}")
    return " ".join(kept)


def quoted(value: str) -> str:
    """A value as it must be typed to be taken literally."""
    if value and not re.search(r'[\s",\\]', value) and not value.startswith((">", "<", "=")):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pieces(text: str) -> Iterator[str]:
    """Split at spaces outside quotes."""
    piece, quoting, escaped = "", False, False
    for character in text:
        if escaped or (quoting and character == "\\"):
            piece, escaped = piece + character, not escaped
        elif character.isspace() and not quoting:
            if piece:
                yield piece
            piece = ""
        else:
            quoting ^= character == '"'
            piece += character
    if quoting:
        raise InvalidError("A quote is not closed.", field="q", fix='Add the missing ".')
    if piece:
        yield piece


def _terms(text: str) -> Iterator[Term]:
    for piece in _pieces(text):
        found = _FIELD.match(piece)
        excluded = piece.startswith("-") and len(piece) > 1
        if not found or _is_address(piece):
            yield Term("text", tuple(_values(piece[excluded:])), excluded=excluded)
            continue
        field = ALIASES.get(found[1], found[1])
        if field not in FIELDS:
            raise InvalidError(
                f"There is no search field {found[1]!r}.", field="q", fix=f"Known: {', '.join(FIELDS)}."
            )
        values = tuple(_values(piece[found.end() :]))
        if not values:
            raise InvalidError(f"{found[1]}: has no value.", field="q")
        path = tuple(found[2].split(".")[1:]) if found[2] else ()
        _check_path(field, path)
        yield Term(field, values, path, excluded)


def _is_address(piece: str) -> bool:
    return piece.lstrip("-").startswith(("http://", "https://"))


def _check_path(field: str, path: tuple[str, ...]) -> None:
    if (field in {"args", "result"}) is not bool(path):
        fix = f"Write {field}.name:value." if not path else f"Write {field}:value."
        raise InvalidError(f"{field} is not written like this.", field="q", fix=fix)


def _values(text: str) -> Iterator[str]:
    """Values between commas; one in quotes is taken as it is."""
    rest = text
    while rest:
        closed = _CLOSED.match(rest)
        if closed:
            yield re.sub(r"\\(.)", r"\1", closed[1])
            rest = rest[closed.end() :].removeprefix(",")
            continue
        value, _, rest = rest.partition(",")
        if value:
            yield value


def _compiled(terms: tuple[Term, ...]) -> dict[str, Any]:
    """One entry per field: {"in": [...], "not": [...]} for names, a list of tests for comparisons."""
    out: dict[str, Any] = {}
    for term in terms:
        if term.field in {"args", "result"}:
            _payload(out, term)
        elif term.field in TIMES:
            out[term.field] = _time(term)
        elif term.field in NUMBERS or term.field in DURATIONS:
            out.setdefault(term.field, []).append(_comparison(term))
        elif term.field == "tag":
            kind = "not" if term.excluded else "in"
            out.setdefault("labels", {}).setdefault(kind, []).append([_label(v) for v in term.values])
        else:
            values = [_checked(term.field, value) for value in term.values]
            entry = out.setdefault(term.field, {})
            if term.field == "text":
                entry.setdefault("not" if term.excluded else "in", []).append(values)
            else:
                entry.setdefault("not" if term.excluded else "in", []).extend(values)
    return out


def _checked(field: str, value: str) -> str:
    if field == "state" and value not in STATES:
        raise InvalidError(f"There is no state {value!r}.", field="q", fix=f"Known: {', '.join(STATES)}.")
    if field in IDS:
        try:
            return str(UUID(value))
        except ValueError:
            raise InvalidError(f"{field}:{value} is not an id.", field="q") from None
    return value


def _label(value: str) -> dict[str, Any]:
    """`team=media` is that value, `team` alone is any (asked for as a key)."""
    name, equals, wanted = value.partition("=")
    return {"name": name, "values": _readings(wanted)} if equals else {"name": name}


def _payload(out: dict[str, Any], term: Term) -> None:
    """Terms with one meaning are joined into one shape; the others are lists of which one must fit."""
    shapes = [_nested(term.path, reading) for value in term.values for reading in _readings(value)]
    entry = out.setdefault(term.field, {})
    if term.excluded:
        entry.setdefault("not", []).extend(shapes)
    elif len(shapes) > 1 or not _join(entry.setdefault("all", {}), shapes[0]):
        entry.setdefault("in", []).append(shapes)


def _join(shape: dict[str, Any], more: dict[str, Any]) -> bool:
    """Whether `more` fits into `shape`, which then has both."""
    for name, value in more.items():
        if name not in shape:
            shape[name] = value
        elif not (isinstance(shape[name], dict) and isinstance(value, dict)):
            return False
        else:
            return _join(cast("dict[str, Any]", shape[name]), cast("dict[str, Any]", value))
    return True


def _readings(value: str) -> list[Any]:
    """What was typed as JSON may mean: `77` the number or the text."""
    readings: list[Any] = [value]
    if re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?|true|false|null", value):
        readings.append(msgspec.json.decode(value))
    return readings


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _comparison(term: Term) -> dict[str, Any]:
    value, *others = term.values
    if others or term.excluded:
        raise InvalidError(f"{term.field} takes one comparison.", field="q", fix=f"Write {term.field}:>3.")
    found = _COMPARED.fullmatch(value)
    assert found is not None  # noqa: S101  (matches everything)
    number = _seconds(found[2]) if term.field in DURATIONS else _whole(found[2])
    if number is None:
        example = "wait:>1m" if term.field in DURATIONS else "attempt:>3"
        raise InvalidError(
            f"{term.field}:{value} cannot be read.", field="q", fix=f"Write it as in {example}."
        )
    return {"op": found[1] or "=", "value": number}


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text)
    return float(found[1]) * _UNITS[found[2]] if found else None


def _time(term: Term) -> dict[str, Any]:
    """`2h` ago by the clock of the database, or a time; a time without a zone is UTC."""
    value = term.values[0]
    ago = _seconds(value)
    if ago is not None:
        return {"ago_s": min(ago, timedelta(days=36500).total_seconds())}
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidError(
            f"{term.field}:{value} cannot be read.",
            field="q",
            fix=f"Write it as in {term.field}:2h or {term.field}:2026-01-31T09:00.",
        ) from None
    return {"at": (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()}
