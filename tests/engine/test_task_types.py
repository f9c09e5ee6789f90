"""Task types and the validation of arguments against their schemas, compared with jsonschema."""

from __future__ import annotations

import random
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from manual_worker import expect_error, submit_graph, submit_job

from holdfast.engine import jobs, task_types
from holdfast.engine.connection import Connection

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["url"],
    "additionalProperties": False,
    "properties": {
        "url": {"type": "string", "minLength": 3, "maxLength": 20},
        "width": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 4096}, {"type": "null"}]},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2, "multipleOf": 0.25},
        "modes": {"type": "array", "items": {"enum": ["a", "b", 3]}, "minItems": 1, "maxItems": 3},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": False},
        "tree": {"$ref": "#/$defs/tree"},
        "extra": {"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
        "fixed": {"const": {"x": 1}},
        "both": {"allOf": [{"type": "integer"}, {"minimum": 5}]},
    },
    "$defs": {
        "tree": {
            "type": "object",
            "required": ["n"],
            "properties": {
                "n": {"type": "integer"},
                "under": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        }
    },
}


async def register_types(conn: Connection, **about: Any) -> int:
    return await task_types.register_task_types(
        conn, "w", [{"name": "t", "schema": SCHEMA, "hash": "1", **about}]
    )


@pytest.mark.parametrize(
    ("path", "args"),
    [
        ("args.url", {}),
        ("args.url", {"url": 3}),
        ("args.url", {"url": "ab"}),
        ("args.url", {"url": "x" * 21}),
        ("args.width", {"url": "abc", "width": 0}),
        ("args.width", {"url": "abc", "width": 1.5}),
        ("args.ratio", {"url": "abc", "ratio": 2}),
        ("args.modes[1]", {"url": "abc", "modes": ["a", "c"]}),
        ("args.modes", {"url": "abc", "modes": []}),
        ("args.pair[1]", {"url": "abc", "pair": ["a", 1]}),
        ("args.pair[2]", {"url": "abc", "pair": ["a", True, 1]}),
        ("args.tree.under[0].under[1].n", {"url": "abc", "tree": {"n": 1, "under": [
            {"n": 2, "under": [{"n": 3}, {"n": "x"}]}]}}),
        ("args.extra.k", {"url": "abc", "extra": {"k": None}}),
        ("args.more", {"url": "abc", "more": 1}),
        ("args.fixed", {"url": "abc", "fixed": {"x": 2}}),
        ("args.both", {"url": "abc", "both": 4}),
        ("args", [1]),
    ],
)  # fmt: skip
async def test_an_invalid_argument_is_refused_with_its_path(conn: Connection, path: str, args: Any) -> None:
    await register_types(conn)
    with expect_error("HF004", path):
        await submit_job(conn, args=args, check=True)
    await submit_job(conn, args=args)  # nobody asked
    with expect_error("HF004", path):
        await submit_graph(
            conn, {"name": "a", "args": {"url": "abc"}}, {"name": "b", "args": args}, check=True
        )
    with expect_error("HF004", path):
        await jobs.submit_many(conn, [{"type": "t", "args": args, "check": True}])


async def test_valid_arguments_and_unknown_types_pass(conn: Connection) -> None:
    await register_types(conn)
    await submit_job(conn, args={"url": "abc", "width": 10.0, "tree": {"n": 1, "other": 2}}, check=True)
    await submit_job(conn, type="nobody-described-it", args={"x": 1}, check=True)
    later = {"holdfast:result": "a"}
    await submit_graph(
        conn,
        {"name": "a", "args": {"url": "abc"}},
        {"name": "b", "args": {"url": later, "width": later}, "after": ["a"]},
        check=True,
    )
    first = await jobs.submit(conn, {"type": "t", "args": {"url": "abc"}, "key": "k", "check": True})
    again = await jobs.submit(conn, {"type": "t", "args": {"url": "abc"}, "key": "k"})
    assert first.id == again.id


def build_random_value(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Any] = [
        None, True, 0, 1, 5, 1.5, 0.25, 4097, -3, "", "ab", "abc", "x" * 21, "a", "b", 3,
        {"x": 1}, {"n": 1}, [], ["a", True], ["b", 3]
    ]  # fmt: skip
    shape = rng.randrange(5) if depth < 3 else 0
    if shape == 3:
        return [build_random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if shape == 4:
        names = ["url", "width", "n", "under", "x", "k"]
        return {name: build_random_value(rng, depth + 1) for name in rng.sample(names, rng.randrange(4))}
    return rng.choice(kinds)


async def test_the_same_result_as_jsonschema(conn: Connection) -> None:
    rng = random.Random(4)
    validator = jsonschema_rs.Draft202012Validator(SCHEMA)
    values: list[Any] = []
    for _ in range(3000):
        names = rng.sample(list(SCHEMA["properties"]), rng.choice((0, 1, 1, 1, 2)))
        values.append({"url": "abcd", **{name: build_random_value(rng) for name in names}})
    rows = await conn.fetch(
        "select holdfast.validate_value_against_schema(v::jsonb, $2::jsonb, $2::jsonb, 'args', 0) as wrong "
        "from unnest($1::text[]) as v",
        [msgspec.json.encode(value).decode() for value in values],
        msgspec.json.encode(SCHEMA).decode(),
    )
    results = [row["wrong"] is None for row in rows]
    expected = [validator.is_valid(value) for value in values]
    assert 100 < sum(expected) < 2900
    differ = [v for v, ours, theirs in zip(values, results, expected, strict=True) if ours is not theirs]
    assert differ == []


async def test_deep_and_circular_schemas_end(conn: Connection) -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    await task_types.register_task_types(conn, "w", [{"name": "t", "schema": circle, "hash": "1"}])
    with expect_error("HF004", "args"):
        await submit_job(conn, args={}, check=True)
    dangling = {"$ref": "#/$defs/none"}
    await task_types.register_task_types(conn, "w", [{"name": "t", "schema": dangling, "hash": "2"}])
    await submit_job(conn, args={}, check=True)


async def test_registering_reports_changed_types(conn: Connection) -> None:
    assert await register_types(conn, doc="one") == 1
    assert await register_types(conn, doc="one") == 0
    assert await register_types(conn, doc="two") == 1
    assert await register_types(conn, doc="two", hash="2") == 1
    [known] = await task_types.list_task_types(conn)
    assert (known["doc"], known["hash"], known["queue"]) == ("two", "2", "default")
    assert known["schema"] == SCHEMA
    with expect_error("HF004", "name"):
        await task_types.register_task_types(conn, "w", [{"name": ""}])
    await conn.execute("update holdfast.task_types set seen_at = seen_at - interval '90 days'")
    assert await conn.fetchval("select holdfast.delete_unseen_task_types()") == 1


async def test_a_limit_in_code_is_a_rule(conn: Connection) -> None:
    rule = "select max_running from holdfast.limit_rules where name = 'task:t'"
    await register_types(conn, options={"limit": 3})
    assert await conn.fetchval(rule) == 3
    await conn.execute("select holdfast.put_limit('task:t', p_type => 't', p_max_running => 1)")
    await register_types(conn, options={"limit": 3})
    assert await conn.fetchval(rule) == 1
    await register_types(conn, options={"limit": 4})
    assert await conn.fetchval(rule) == 4
    await register_types(conn)
    assert await conn.fetchval(rule) is None
