"""Searches are parsed to a filter, or refused with the term that is wrong."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from holdfast.errors import InvalidError
from holdfast.search import (
    SEARCH_FIELDS,
    SEARCH_STATES,
    parse_search,
    quote_search_value,
    replace_search_term,
)


def test_every_search_field() -> None:
    text = (
        "state:failed,retrying -state:ready queue:browser,ai -queue:slow task:shot owner:acme worker:w1 "
        'error:"Time out" cause:x key:k1 batch:0192a000-0000-7000-8000-000000000000 tag:team=media,team=7 '
        '-tag:old since:2h until:2026-01-31T09:00 attempt:>3 wait:>=1m run:<30s args.a.b:"x y" args.a.c:1 '
        "-args.z:true result.key:k word"
    )
    assert parse_search(text).json_filter == {
        "state": {"in": ["failed", "retrying"], "not": ["ready"]},
        "queue": {"in": ["browser", "ai"], "not": ["slow"]},
        "task": {"in": ["shot"]},
        "owner": {"in": ["acme"]},
        "worker": {"in": ["w1"]},
        "error": {"in": ["Time out"]},
        "cause": {"in": ["x"]},
        "key": {"in": ["k1"]},
        "batch": {"in": ["0192a000-0000-7000-8000-000000000000"]},
        "labels": {
            "in": [[{"name": "team", "values": ["media"]}, {"name": "team", "values": ["7", 7]}]],
            "not": [[{"name": "old"}]],
        },
        "since": {"ago_s": 7200.0},
        "until": {"at": "2026-01-31T09:00:00+00:00"},
        "attempt": [{"op": ">", "value": 3}],
        "wait": [{"op": ">=", "value": 60.0}],
        "run": [{"op": "<", "value": 30.0}],
        "args": {
            "all": {"a": {"b": "x y"}},
            "in": [[{"a": {"c": "1"}}, {"a": {"c": 1}}]],
            "not": [{"z": "true"}, {"z": True}],
        },
        "result": {"all": {"key": "k"}},
        "text": {"in": [["word"]]},
    }


def test_payload_terms_become_one_containment_test() -> None:
    assert parse_search("args.a.b:x args.a.c:y args.d:z").json_filter == {
        "args": {"all": {"a": {"b": "x", "c": "y"}, "d": "z"}}
    }
    both = parse_search("args.a:x args.a:y").json_filter["args"]
    assert both == {"all": {"a": "x"}, "in": [[{"a": "y"}]]}


def test_aliases_of_search_fields() -> None:
    assert (
        parse_search("tenant:a type:b status:failed").json_filter
        == parse_search("owner:a task:b state:failed").json_filter
    )


def test_a_url_is_a_word() -> None:
    assert parse_search("https://e.example/a:b").json_filter == {"text": {"in": [["https://e.example/a:b"]]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch:1", "Search field 'nosuch' does not exist"),
        ("state:great", "State 'great' does not exist"),
        ("job:12", "not an id"),
        ("wait:soon", "wait:>1m"),
        ("attempt:>x", "attempt:>3"),
        ("attempt:1,2", "one comparison"),
        ("since:yesterday", "since:2h"),
        ('args.a:"x', "quote"),
        ("args:x", "args.name:value"),
        ("queue.x:1", "queue:value"),
        ("queue:", "no value"),
        ("x " * 50, "40 terms"),
        ("x" * 5000, "4000 characters"),
        ("a\0b", "NUL"),
    ],
)
def test_errors_name_the_wrong_term(text: str, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_search(text)
    assert message in str(caught.value)
    assert caught.value.field == "q"


def test_a_term_is_replaced_and_removed() -> None:
    text = 'state:failed "two words" tenant:x'
    assert replace_search_term(text, "state", "ready") == '"two words" tenant:x state:ready'
    assert replace_search_term(text, "owner", None) == 'state:failed "two words"'
    assert replace_search_term("", "error", "Time out") == 'error:"Time out"'


@hypothesis.given(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=50))
def test_a_quoted_value_is_parsed_literally(value: str) -> None:
    (term,) = parse_search(f"queue:{quote_search_value(value)}").terms
    assert term.values == (value,)


def find_search_error(text: str) -> InvalidError | None:
    try:
        parse_search(text)
    except InvalidError as error:
        return error
    return None


@hypothesis.given(st.text(max_size=200))
def test_every_text_is_parsed_or_refused(text: str) -> None:
    error = find_search_error(text)
    assert error is None or error.field == "q"


SEARCH_PIECES = [
    *(f"{field}:x" for field in SEARCH_FIELDS),
    *(f"state:{state}" for state in SEARCH_STATES),
    "-a",
    '"',
    ",",
    ":",
]


@hypothesis.given(st.lists(st.sampled_from(SEARCH_PIECES)))
def test_terms_in_any_order(pieces: list[str]) -> None:
    error = find_search_error(" ".join(pieces))
    assert error is None or str(error)
