"""Parse the search text for jobs: one grammar for the dashboard, the command line and the API.

    state:failed queue:browser,ai -task:caption tag:team=media args.url:"https://e.example" wait:>1m since:2h

A term is `field:value`. A comma means "or", a leading `-` excludes, quotes keep spaces and commas, and all
terms must match. `attempt:`, `wait:` and `run:` compare numbers and durations (`>3`, `<=30s`).
`args.a.b:value` and `result.a.b:value` search in payloads: together they become one containment test. A word
without a field is an id, or a part of a type, an owner or an error.

`parse_search` raises InvalidError, which names the term, for everything that it does not understand. A query
knows nothing about SQL; `SearchQuery.json_filter` is the JSON that the SQL function `search_jobs` reads.
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

MAX_SEARCH_CHARS: Final = 4000
MAX_SEARCH_TERMS: Final = 40

SEARCH_STATES: Final = (
    *("queued", "waiting", "scheduled", "ready", "retrying", "running"),
    *("succeeded", "partial", "failed", "cancelled", "ended", "alive"),
)
NAME_SEARCH_FIELDS: Final = ("queue", "task", "owner", "worker", "error", "cause", "key")
NUMBER_SEARCH_FIELDS: Final = ("attempt",)
DURATION_SEARCH_FIELDS: Final = ("wait", "run")
TIME_SEARCH_FIELDS: Final = ("since", "until")
ID_SEARCH_FIELDS: Final = ("job", "batch")
SEARCH_FIELD_ALIASES: Final = {
    "tenant": "owner",
    "status": "state",
    "type": "task",
    "id": "job",
    "label": "tag",
}
SEARCH_FIELDS: Final = (
    "state",
    *NAME_SEARCH_FIELDS,
    *ID_SEARCH_FIELDS,
    "tag",
    *TIME_SEARCH_FIELDS,
    *NUMBER_SEARCH_FIELDS,
    *DURATION_SEARCH_FIELDS,
    "args",
    "result",
)

_SECONDS_BY_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)")
_COMPARISON_PATTERN = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
_FIELD_PREFIX_PATTERN = re.compile(r"-?([a-z]+)((?:\.[^.:\"\s]+)*):")
_QUOTED_VALUE_PATTERN = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class SearchTerm:
    """One `field:value[,value]` of a search. `path` is set for `args` and `result` only."""

    field: str
    values: tuple[str, ...]
    path: tuple[str, ...] = ()
    excluded: bool = False


@dataclass(frozen=True)
class SearchQuery:
    """A parsed search for jobs: its text and its terms."""

    text: str
    terms: tuple[SearchTerm, ...] = ()
    skip_error_messages: bool = False
    """Whether words and `error:` match the type of an error only: for callers who see messages masked."""

    @property
    def is_empty(self) -> bool:
        """Whether the search has no terms."""
        return not self.terms

    def get_values(self, field: str) -> tuple[str, ...]:
        """Return the values of a field in all terms that are not excluded."""
        return tuple(v for t in self.terms if t.field == field and not t.excluded for v in t.values)

    @property
    def json_filter(self) -> dict[str, Any]:
        """The search as the JSON filter that the SQL function `search_jobs` takes."""
        conditions = _build_search_filter(self.terms)
        if self.skip_error_messages and conditions.keys() & {"text", "error"}:
            conditions["skip_error_messages"] = True
        return conditions


def parse_search(text: str) -> SearchQuery:
    """Parse a search text. Raise InvalidError, which names the term, if a term is invalid."""
    if len(text) > MAX_SEARCH_CHARS:
        raise InvalidError(f"The search is longer than {MAX_SEARCH_CHARS} characters.", field="q")
    if "\0" in text:
        raise InvalidError("The search contains a NUL character.", field="q")
    terms = tuple(_parse_search_terms(text))
    if len(terms) > MAX_SEARCH_TERMS:
        raise InvalidError(f"The search has more than {MAX_SEARCH_TERMS} terms.", field="q")
    _build_search_filter(terms)  # checks the values, so that errors are raised here
    return SearchQuery(text.strip(), terms)


def replace_search_term(text: str, field: str, value: str | None) -> str:
    """Return the search with one field set to `value`, or without that field. Other terms stay as typed."""
    terms: list[str] = []
    for piece in _split_at_spaces(text):
        match = _FIELD_PREFIX_PATTERN.match(piece)
        name = SEARCH_FIELD_ALIASES.get(match[1], match[1]) if match else None
        if name != field:
            terms.append(piece)
    if value is not None:
        terms.append(f"{field}:{quote_search_value(value)}")
    return " ".join(terms)


def quote_search_value(value: str) -> str:
    """Quote a search value if it contains spaces, commas, quotes or a comparison sign."""
    if value and not re.search(r'[\s",\\]', value) and not value.startswith((">", "<", "=")):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _split_at_spaces(text: str) -> Iterator[str]:
    """Split a text at spaces, but not at spaces inside quotes."""
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
        raise InvalidError("A quote is not closed.", field="q", fix='Add the missing " character.')
    if piece:
        yield piece


def _parse_search_terms(text: str) -> Iterator[SearchTerm]:
    for piece in _split_at_spaces(text):
        match = _FIELD_PREFIX_PATTERN.match(piece)
        excluded = piece.startswith("-") and len(piece) > 1
        if not match or _is_url(piece):
            yield SearchTerm("text", tuple(_parse_term_values(piece[excluded:])), excluded=excluded)
            continue
        field = SEARCH_FIELD_ALIASES.get(match[1], match[1])
        if field not in SEARCH_FIELDS:
            raise InvalidError(
                f"Search field {match[1]!r} does not exist.",
                field="q",
                fix=f"Search fields: {', '.join(SEARCH_FIELDS)}.",
            )
        values = tuple(_parse_term_values(piece[match.end() :]))
        if not values:
            raise InvalidError(f"The search field {match[1]} has no value.", field="q")
        path = tuple(match[2].split(".")[1:]) if match[2] else ()
        _check_payload_path(field, path)
        yield SearchTerm(field, values, path, excluded)


def _is_url(piece: str) -> bool:
    return piece.lstrip("-").startswith(("http://", "https://"))


def _check_payload_path(field: str, path: tuple[str, ...]) -> None:
    if (field in {"args", "result"}) is not bool(path):
        fix = f"Write {field}.name:value." if not path else f"Write {field}:value."
        raise InvalidError(f"The search field {field} has the wrong form.", field="q", fix=fix)


def _parse_term_values(text: str) -> Iterator[str]:
    """Yield the comma-separated values of a term. A comma inside quotes does not separate."""
    rest = text
    while rest:
        quoted = _QUOTED_VALUE_PATTERN.match(rest)
        if quoted:
            yield re.sub(r"\\(.)", r"\1", quoted[1])
            rest = rest[quoted.end() :].removeprefix(",")
            continue
        value, _, rest = rest.partition(",")
        if value:
            yield value


def _build_search_filter(terms: tuple[SearchTerm, ...]) -> dict[str, Any]:
    """Build the JSON filter: one entry per field, with lists of values or with comparisons."""
    out: dict[str, Any] = {}
    for term in terms:
        if term.field in {"args", "result"}:
            _add_payload_condition(out, term)
        elif term.field in TIME_SEARCH_FIELDS:
            out[term.field] = _parse_time_term(term)
        elif term.field in NUMBER_SEARCH_FIELDS or term.field in DURATION_SEARCH_FIELDS:
            out.setdefault(term.field, []).append(_parse_comparison_term(term))
        elif term.field == "tag":
            kind = "not" if term.excluded else "in"
            out.setdefault("labels", {}).setdefault(kind, []).append(
                [_build_label_filter(v) for v in term.values]
            )
        else:
            values = [_parse_search_value(term.field, value) for value in term.values]
            entry = out.setdefault(term.field, {})
            if term.field == "text":
                entry.setdefault("not" if term.excluded else "in", []).append(values)
            else:
                entry.setdefault("not" if term.excluded else "in", []).extend(values)
    return out


def _parse_search_value(field: str, value: str) -> str:
    if field == "state" and value not in SEARCH_STATES:
        raise InvalidError(
            f"State {value!r} does not exist.", field="q", fix=f"States: {', '.join(SEARCH_STATES)}."
        )
    if field in ID_SEARCH_FIELDS:
        try:
            return str(UUID(value))
        except ValueError:
            raise InvalidError(f"{field}:{value} is not an id.", field="q") from None
    return value


def _build_label_filter(value: str) -> dict[str, Any]:
    """Build the condition for a label: `team=media` matches one value, `team` every value."""
    name, equals, label = value.partition("=")
    return {"name": name, "values": _list_possible_json_values(label)} if equals else {"name": name}


def _add_payload_condition(out: dict[str, Any], term: SearchTerm) -> None:
    """Add the condition of an `args` or `result` term to the filter `out`."""
    shapes = [
        _nest_value_under_path(term.path, inner)
        for value in term.values
        for inner in _list_possible_json_values(value)
    ]
    entry = out.setdefault(term.field, {})
    if term.excluded:
        entry.setdefault("not", []).extend(shapes)
    elif len(shapes) > 1 or not _merge_json_objects(entry.setdefault("all", {}), shapes[0]):
        entry.setdefault("in", []).append(shapes)


def _merge_json_objects(shape: dict[str, Any], more: dict[str, Any]) -> bool:
    """Merge the JSON object `more` into `shape`. Return False if both have a value at the same key."""
    for name, value in more.items():
        if name not in shape:
            shape[name] = value
        elif not (isinstance(shape[name], dict) and isinstance(value, dict)):
            return False
        else:
            return _merge_json_objects(cast("dict[str, Any]", shape[name]), cast("dict[str, Any]", value))
    return True


def _list_possible_json_values(value: str) -> list[Any]:
    """Return the JSON values that a text can stand for: `77` is a string or a number."""
    values: list[Any] = [value]
    if re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?|true|false|null", value):
        values.append(msgspec.json.decode(value))
    return values


def _nest_value_under_path(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def _parse_comparison_term(term: SearchTerm) -> dict[str, Any]:
    value, *others = term.values
    if others or term.excluded:
        raise InvalidError(
            f"The search field {term.field} takes one comparison.", field="q", fix=f"Write {term.field}:>3."
        )
    match = _COMPARISON_PATTERN.fullmatch(value)
    assert match is not None  # noqa: S101  (matches everything)
    number = (
        _parse_seconds(match[2]) if term.field in DURATION_SEARCH_FIELDS else _parse_whole_number(match[2])
    )
    if number is None:
        example = "wait:>1m" if term.field in DURATION_SEARCH_FIELDS else "attempt:>3"
        raise InvalidError(
            f"{term.field}:{value} is not valid.", field="q", fix=f"Write for example {example}."
        )
    return {"op": match[1] or "=", "value": number}


def _parse_whole_number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _parse_seconds(text: str) -> float | None:
    match = _DURATION_PATTERN.fullmatch(text)
    return float(match[1]) * _SECONDS_BY_UNIT[match[2]] if match else None


def _parse_time_term(term: SearchTerm) -> dict[str, Any]:
    """Parse `2h` (ago, by the clock of the database) or a time. A time without a zone is UTC."""
    value = term.values[0]
    ago = _parse_seconds(value)
    if ago is not None:
        return {"ago_s": min(ago, timedelta(days=36500).total_seconds())}
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidError(
            f"{term.field}:{value} is not valid.",
            field="q",
            fix=f"Write for example {term.field}:2h or {term.field}:2026-01-31T09:00.",
        ) from None
    return {"at": (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()}
