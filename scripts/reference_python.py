"""The page docs/reference/python.md: the public names with their signatures and docstrings, from the code."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

import msgspec

import holdfast
from holdfast import client, model, testing
from holdfast.client import batches, blocking, files, limits, schedules, submit_options
from holdfast.client.messages import queues
from holdfast.definitions import consumers
from holdfast.definitions import context_types as contexts

INTRO = """\
What `from holdfast import ...` gives, and what hangs below a `Client`. Anything that is not here or in the
[guide](../index.md) may change without notice. `**say` are keyword arguments; they are listed below what takes them.
"""

# What stands below which heading: the name people write, and where it is.
PARTS: dict[str, dict[str, Any]] = {
    "Defining work": {
        name: getattr(holdfast, name)
        for name in ("task", "RetryPolicy", "Call", "Graph", "job", "consumer", "schedule", "lifespan")
    },
    "In a running task": {
        name: getattr(holdfast, name)
        for name in ("Ctx", "Snooze", "Cancel", "Reject", "RateLimited", "PublicError")
    },
    "The client": {
        "Client": client.Client,
        "JobHandle": client.JobHandle,
        "client.batches": batches.Batches,
        "BatchHandle": client.BatchHandle,
        "client.limits": limits.Limits,
        "client.queues": queues.Queues,
        "client.files": files.Files,
        "client.schedules": schedules.Schedules,
        "client.blocking": blocking.BlockingClient,
    },
    "What comes back": {
        each.__name__: each
        for each in (
            model.Job, model.JobTask, model.Progress, model.Failure, model.JobPage, model.Batch, model.Reason, model.Limit,
            model.Artifact, model.Message, model.LogLine, model.StoredSchedule, model.MessageMetrics, model.MessagePolicy,
        )
    },
    "In tests": {"hf": testing.Holdfast},
}  # fmt: skip
SAYS = {  # what `**say` may be, by the name of its type
    each.__name__: each
    for each in (
        submit_options.SubmitOptions,
        contexts.ChildOptions,
        contexts.ArtifactOptions,
        limits.LimitOptions,
        consumers.ConsumerOptions,
    )
}


def page() -> str:
    lines = ["# Python", "{note}", INTRO]
    for heading, names in PARTS.items():
        lines += [f"## {heading}", ""]
        for name, thing in names.items():
            lines += [f"### {name}", "", *_described(name, thing)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        yield from _class(name, thing)
    else:
        yield from _code(f"{name}{_signature(thing)}")
        yield from (_text(thing), "")
        for text_lines in _says(thing):
            yield from (text_lines.removeprefix("<br>"), "")


def _class(name: str, thing: type) -> Iterator[str]:
    doc = _text(thing)
    if thing is client.Client:
        doc = doc.partition("\n\n")[0]
    if doc and not doc.startswith(f"{thing.__name__}("):  # which a dataclass writes itself
        yield from (doc, "")
    shown = _fields(thing)
    if shown:
        yield from _code("\n".join(shown))
    for member, value in _members(thing):
        if isinstance(value, property):
            yield f"- `.{member}`: {_line(value) or 'see above'}"
            continue
        yield f"- `{member}{_signature(value)}`"
        if _line(value):
            yield f"  <br>{_line(value)}"
        yield from (f"  {each}" for each in _says(value))
    yield ""


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """In the order of the source, without what begins with an underscore."""
    for name, value in vars(thing).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def _fields(thing: type) -> list[str]:
    if issubclass(thing, msgspec.Struct):
        hints = typing.get_type_hints(thing)
        return [f"{each}: {_kind(hints[each])}" for each in thing.__struct_fields__]
    if is_dataclass(thing):
        return [_field(each) for each in fields(thing) if each.init and each.name != "lease"]
    return []


def _field(one: Field[Any]) -> str:
    default = "" if one.default is MISSING else f" = {_plain(repr(one.default))}"
    return f"{one.name}: {_plain(one.type)}{default}"


def _kind(hint: Any) -> str:
    return (
        hint.__name__
        if isinstance(hint, type)
        else re.sub(r"\b(typing|datetime|uuid|holdfast\.model)\.", "", str(hint))
    )


def _signature(thing: Any) -> str:
    """As in the source, without `self` and quotes."""
    try:
        members = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    kept = [each for name, each in members.parameters.items() if name != "self"]
    return _plain(str(members.replace(parameters=kept)))


def _plain(text: Any) -> str:
    text = re.sub(r"(^|: |-> )'([^']*)'", r"\1\2", str(text))
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", text)
    return re.sub(r"\b(datetime|builtins|uuid)\.", "", text)


def _says(thing: Any) -> Iterator[str]:
    """What the keyword arguments may be that the signature does not name."""
    if thing is holdfast.task:
        known = [
            f"`{_field(each)}`" for each in fields(holdfast.Task) if each.init and each.default is not MISSING
        ]
        yield f"Options: {', '.join(known)}."
    for name in re.findall(r"\*\*\w+: (\w+)", _signature(thing)):
        if name in SAYS:
            text_lines = ", ".join(f"`{each}`" for each in SAYS[name].__annotations__)
            yield f"<br>`{name}`: {text_lines}."


def _code(text: str) -> Iterator[str]:
    yield from ("```text", text, "```", "")


def _text(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _line(thing: Any) -> str:
    """The first paragraph."""
    return " ".join(_text(thing).partition("\n\n")[0].split())
