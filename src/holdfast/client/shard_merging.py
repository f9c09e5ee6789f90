"""Merge the responses of several shards into one. Everything here is calculated from decoded JSON or text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Answers: TypeAlias = Mapping[int, Any]  # by the number of the shard
QueryParameters: TypeAlias = Mapping[str, str]
MergeFunction: TypeAlias = Callable[[Answers, QueryParameters], Any]


def merge_pages(field: str, default_limit: int) -> MergeFunction:
    """Merge pages of rows with ids, newest first. Ids begin with the time at which they were created.

    A shard with a next page may have more rows that are older than its `next`. So the merged page ends at the
    newest `next`; older rows of the other shards come with the next page.
    """

    def merge(answers: Answers, query: QueryParameters) -> dict[str, Any]:
        limit = int(query.get("limit", default_limit))
        rows_by_shard = {number: page[field] for number, page in answers.items()}
        rows = sort_rows(_add_shard_numbers(rows_by_shard), "id", newest=True)
        end = max((page["next"] for page in answers.values() if page.get("next")), default=None)
        if end is not None:
            rows = [row for row in rows if row["id"] >= end]
        merged = {name: value for page in answers.values() for name, value in page.items()}
        if "truncated" in merged:
            merged["truncated"] = any(page["truncated"] for page in answers.values())
        merged[field] = rows[:limit]
        merged["next"] = rows[limit - 1]["id"] if len(rows) > limit else end
        return merged

    return merge


def concatenate(sort_by: str, *, newest: bool = False) -> MergeFunction:
    """Concatenate lists of rows, each with the number of its shard."""

    def merge(answers: Answers, query: QueryParameters) -> list[dict[str, Any]]:
        rows = sort_rows(_add_shard_numbers(answers), sort_by, newest=newest)
        return rows[: int(query["limit"])] if "limit" in query else rows

    return merge


def add_up_rows(key: str, *, newest_first: str | None = None) -> MergeFunction:
    """Merge lists of rows: rows with the same key become one, with the sums of their numbers."""

    def merge(answers: Answers, query: QueryParameters) -> list[dict[str, Any]]:
        rows = add_up_by_key([row for answer in answers.values() for row in answer], (key,))
        if newest_first is not None:
            rows = sort_rows(rows, newest_first, newest=True)
        return rows[: int(query["limit"])] if "limit" in query else rows

    return merge


def merge_lists_of(field: str) -> MergeFunction:
    """Merge objects with a list of rows, each with the number of its shard. Numbers are added up."""

    def merge(answers: Answers, _: QueryParameters) -> dict[str, Any]:
        rows = _add_shard_numbers({number: answer[field] for number, answer in answers.items()})
        return {**add_up([{**answer, field: None} for answer in answers.values()]), field: rows}

    return merge


def add_up_objects(answers: Answers, _: QueryParameters) -> dict[str, Any]:
    """Merge one object of each shard into the sums of their numbers."""
    return add_up(list(answers.values()))


def add_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for rows of several shards.

    Counts are added up. Of times and durations the extreme counts: `first_at`, else the latest or longest.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: _add_up_values(name, [row[name] for row in rows if row.get(name) is not None]) for name in names
    }


def add_up_by_key(rows: list[dict[str, Any]], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Merge rows that have the same values under the names `key`, in the order of these values."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(name)) for name in key), []).append(row)
    return [add_up(groups[values]) for values in sorted(groups)]


def _add_up_values(name: str, values: list[Any]) -> Any:
    if not values:
        return None
    first = values[0]
    if isinstance(first, bool):
        return all(values) if name == "exact" or name.endswith("_exact") else any(values)
    if isinstance(first, int | float):
        is_setting = name in {"max_running", "rate", "burst", "limit"}
        return first if is_setting else max(values) if name.endswith("_s") else sum(values)
    if name.endswith("_at"):
        return min(values) if name.startswith("first") else max(values)
    if isinstance(first, list):
        return _merge_lists(name, values)
    return first


def _merge_lists(name: str, lists: list[list[Any]]) -> list[Any]:
    items = [item for each in lists for item in each]
    if name == "trend":  # counts of periods, one after the other
        return [sum(counts) for counts in zip(*lists, strict=False)]
    if items and isinstance(items[0], dict):
        keys = tuple(key for key in ("queue", "type", "rule", "name", "id") if key in items[0])
        return add_up_by_key(items, keys) if keys else items
    return list(dict.fromkeys(items))


def sort_rows(rows: list[dict[str, Any]], field: str, *, newest: bool = False) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row.get(field)), reverse=newest)


def _add_shard_numbers(answers: Answers) -> list[dict[str, Any]]:
    return [{**row, "shard": number} for number, rows in answers.items() for row in rows]


def merge_metrics(answers: Answers, _: QueryParameters) -> str:
    """Merge metrics in the Prometheus text format: each sample gets the label `shard`."""
    families: dict[str, list[str]] = {}
    headers: dict[str, list[str]] = {}
    for number, text in answers.items():
        name = ""
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                described = headers.setdefault(name, [])
                if line not in described:
                    described.append(line)
            elif line:
                families.setdefault(name, []).append(_label_sample(line, number))
    lines = [line for name, header in headers.items() for line in (*header, *families.get(name, ()))]
    return "".join(f"{line}\n" for line in lines)


def _label_sample(line: str, number: int) -> str:
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{shard="{number}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{shard="{number}"}} {value}'
