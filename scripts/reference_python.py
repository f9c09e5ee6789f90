"""Generate docs/reference/python.md: the public names with their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast

import msgspec

import holdfast
from holdfast import egress, server, testing
from holdfast.client import alerts, batches, files, limits, schedules
from holdfast.client.messages import queues

PAGE_INTRODUCTION = """\
The names of `from holdfast import ...`, and the parts of a `Client`. Names that are not on this page or in the
[guide](../index.md) may change in any release. `**options` are keyword arguments; the section Options lists them.
"""

NAMES_BY_SECTION: dict[str, tuple[str, ...]] = {
    "Defining work": ("task", "Task", "RetryPolicy", "Call", "Graph", "Node", "job", "JobType", "consumer", "Consumer",
                      "schedule", "Schedule", "ScheduledTask", "lifespan", "Lifespan"),
    "In a running task": ("Ctx", "Snooze", "Cancel", "Reject", "RateLimited", "PublicError"),
    "The client": ("Client", "JobHandle", "client.batches", "BatchHandle", "client.limits", "client.alerts", "client.queues", "client.files",
                   "client.schedules", "BlockingClient", "BlockingJobHandle", "BlockingBatchHandle", "shard_of"),
    "Workers": ("Worker", "QueueShare"),
    "API and dashboard (`holdfast.server`)": ("create_app", "create_dashboard"),
    "Options": ("SubmitOptions", "CallOptions", "ChildTaskOptions", "ArtifactOptions", "FileOptions", "LimitOptions", "ScheduleOptions",
                "MessageReadOptions", "MessagePolicyChanges", "ConsumerOptions"),
    "Returned values": ("Job", "JobTask", "Progress", "Failure", "JobPage", "Batch", "TaskExplanation", "Limit", "Artifact", "Message",
                        "MessageQueue", "MessageMetrics", "MessagePolicy", "LogLine", "StoredSchedule",
                        "Alert", "AlertRule", "AlertSilence"),
    "Requests to the web (`holdfast.egress`)": (
        "EgressClient", "EgressPolicy", "EgressAllowlist", "EgressResponse", "EgressStream", "EgressError",
        "request_blocking", "parse_egress_url", "EgressUrl", "is_public_address", "GuardedProxy", "ProxyLimits",
        "ProxyRefusal", "chromium_arguments",
    ),
    "Settings and errors": ("Settings", "load_settings", "Secret", "HoldfastError", "TaskFailedError"),
    "Tests": ("hf",),
}  # fmt: skip
NAMES_OF_OTHER_PAGES = {"Connection", "Erasure", "__version__"}
CLIENT_ATTRIBUTE_CLASSES: dict[str, Any] = {
    "client.batches": batches.Batches,
    "client.limits": limits.Limits,
    "client.alerts": alerts.Alerts,
    "client.queues": queues.Queues,
    "client.files": files.Files,
    "client.schedules": schedules.Schedules,
    "hf": testing.Holdfast,
}


def build_page() -> str:
    listed = {name for names in NAMES_BY_SECTION.values() for name in names}
    missing = set(holdfast.__all__) - listed - NAMES_OF_OTHER_PAGES
    assert not missing, f"add these public names to NAMES_BY_SECTION: {missing}"
    lines = ["# Python", "{note}", PAGE_INTRODUCTION]
    for heading, names in NAMES_BY_SECTION.items():
        lines += [f"## {heading}", ""]
        for name in names:
            value = CLIENT_ATTRIBUTE_CLASSES.get(name) or next(
                getattr(module, name) for module in (egress, server, holdfast) if hasattr(module, name)
            )
            lines += [f"### {name}", "", *format_name(name, value)]
    return "\n".join(lines).rstrip() + "\n"


def format_name(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _format_class(value)
    else:
        yield from _format_code(f"{name}{_format_signature(value)}", "text")
        yield from _format_docstring(value)


def _format_class(cls: type) -> Iterator[str]:
    yield from _format_docstring(cls)
    members = _list_fields(cls)
    if members:
        yield from _format_code("\n".join(members), "text")
    for name, member in _iterate_members(cls):
        if isinstance(member, property):
            yield f"- `.{name}`: {_get_first_paragraph(member)}"
            continue
        yield f"- `{name}{_format_signature(member)}`"
        if _get_first_paragraph(member):
            yield f"  <br>{_get_first_paragraph(member)}"
    yield ""


def _iterate_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties, inherited ones first, in the order of the source."""
    members: dict[str, Any] = {}
    for base in reversed([each for each in cls.__mro__ if each.__module__.startswith("holdfast")]):
        if issubclass(cls, msgspec.Struct) and base is not cls:
            continue
        members.update(vars(base))
    for name, member in members.items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def _list_fields(cls: type) -> list[str]:
    if issubclass(cls, msgspec.Struct):
        hints = typing.get_type_hints(cls)
        return [f"{name}: {_format_type(hints[name])}" for name in cls.__struct_fields__]
    if is_dataclass(cls):
        shown = [each for each in fields(cls) if each.init and each.name != "lease"]
        return [_format_field(each) for each in shown if not each.name.startswith("_")]
    if issubclass(cls, dict):  # a TypedDict
        return [f"{name}: {_format_without_quotes(hint)}" for name, hint in cls.__annotations__.items()]
    return []


def _format_default(value: object) -> str:
    """Return the source text of a default. The order of a set changes from process to process."""
    if isinstance(value, frozenset) and value:
        items = sorted(repr(item) for item in cast("frozenset[object]", value))
        return f"frozenset({{{', '.join(items)}}})"
    return repr(value)


def _format_field(field: Field[Any]) -> str:
    default = (
        "" if field.default is MISSING else f" = {_format_without_quotes(_format_default(field.default))}"
    )
    return f"{field.name}: {_format_without_quotes(field.type)}{default}"


def _format_type(hint: Any) -> str:
    if isinstance(hint, type):
        return hint.__name__
    return re.sub(r"\b(typing|datetime|uuid|holdfast\.model)\.", "", str(hint))


def _format_signature(value: Any) -> str:
    """Return the signature as in the source, without `self` and quotes."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [each for name, each in signature.parameters.items() if name != "self"]
    return _format_without_quotes(str(signature.replace(parameters=parameters)))


def _format_without_quotes(text: Any) -> str:
    if isinstance(text, typing.ForwardRef):
        text = text.__forward_arg__
    text = re.sub(r"(^|: |-> )'([^']*)'", r"\1\2", str(text))
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)  # addresses differ in every run
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", text)
    return re.sub(r"\b(datetime|builtins|uuid)\.", "", text)


def _format_docstring(value: Any) -> Iterator[str]:
    """Yield the docstring as Markdown, with a list of arguments and the example as code."""
    doc = inspect.getdoc(value) or ""
    if inspect.isclass(value) and "__doc__" not in vars(value):
        return
    text, _, example = doc.partition(">>> ")
    text = re.sub(r"^(\w+(?:, \w+)*): ", r"- `\1`: ", text.strip(), flags=re.MULTILINE)
    yield from (text, "")
    if example:
        lines = (">>> " + example).splitlines()
        code = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        yield from _format_code("\n".join(code), "python")


def _format_code(text: str, language: str) -> Iterator[str]:
    yield from (f"```{language}", text, "```", "")


def _get_first_paragraph(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
