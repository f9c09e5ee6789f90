"""Generate docs/reference/metrics.md: every Prometheus metric with its type, labels and meaning, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE_DIR = Path(__file__).resolve().parent.parent / "src" / "holdfast"
METRIC_TYPES = {
    "Counter": "counter",
    "Histogram": "histogram",
    "Gauge": "gauge",
    "LabeledGauge": "gauge",
    "InfoMetric": "gauge",
    "MetricSample": "gauge",
}
PAGE_INTRODUCTION = """\
After this page you know every metric. All of them are in the text format of Prometheus. Workers serve theirs with
`--health-port`, the API at `/metrics` ([how to switch it on](../operate/metrics.md)).
"""
SECTIONS = {
    "Worker and API processes": "Each process counts for itself. `holdfast_api_*` are of API processes, the others of workers.",
    "API: the state of the database": "True for all processes together. Scrape one API process.",
    "Systems": "Served by an API that has the system mounted.",
}


class DocumentedMetric(NamedTuple):
    section: str
    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def build_page() -> str:
    metrics = sorted({metric.name: metric for metric in iterate_metrics()}.values())
    lines = ["# Metrics", "{note}", PAGE_INTRODUCTION]
    for section, text in SECTIONS.items():
        lines += [f"## {section}", "", text, "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for metric in metrics:
            if metric.section == section:
                labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
                lines.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.meaning} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def iterate_metrics() -> Iterator[DocumentedMetric]:
    for path in sorted(PACKAGE_DIR.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "holdfast_" not in source and "process_" not in source:
            continue
        tree = ast.parse(source)
        constants = list(iterate_constants(tree))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in METRIC_TYPES
            ):
                metric = read_metric(node, node.func.id, path, constants)
                if metric is not None:
                    yield metric


def iterate_constants(tree: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield line, name and value of each assignment to one name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.lineno, node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.lineno, node.target.id, node.value


def read_metric(
    call: ast.Call, kind: str, path: Path, constants: list[tuple[int, str, ast.expr]]
) -> DocumentedMetric | None:
    arguments = [resolve(argument, constants) for argument in call.args]
    if not arguments or not isinstance(arguments[0], ast.Constant) or not isinstance(arguments[0].value, str):
        return None
    meaning = arguments[1].value if len(arguments) > 1 and isinstance(arguments[1], ast.Constant) else ""
    assert meaning, (
        f"{path.name}:{call.lineno}: metric {arguments[0].value} has no help text that can be read"
    )
    type_name = next(
        (ast.literal_eval(k.value) for k in call.keywords if k.arg == "kind"), METRIC_TYPES[kind]
    )
    return DocumentedMetric(
        find_section(path),
        arguments[0].value,
        type_name,
        read_labels(kind, arguments, constants),
        str(meaning),
    )


def resolve(argument: ast.expr, constants: list[tuple[int, str, ast.expr]]) -> ast.expr:
    """Replace a name by the value that was assigned to it last before its use."""
    if not isinstance(argument, ast.Name):
        return argument
    values = [value for line, name, value in sorted(constants, key=lambda item: item[0])
              if name == argument.id and line <= argument.lineno]  # fmt: skip
    return values[-1] if values else argument


def read_labels(
    kind: str, arguments: list[ast.expr], constants: list[tuple[int, str, ast.expr]]
) -> tuple[str, ...]:
    position = 3 if kind == "MetricSample" else 2
    labels = arguments[position] if len(arguments) > position else None
    items: list[ast.expr] = []
    if isinstance(labels, ast.Dict):
        items = [key for key in labels.keys if key is not None]
    elif isinstance(labels, ast.Tuple):
        for item in labels.elts:
            inner = resolve(item.value, constants) if isinstance(item, ast.Starred) else item
            items += inner.elts if isinstance(inner, ast.Tuple) else [inner]
    return tuple(str(item.value) for item in items if isinstance(item, ast.Constant))


def find_section(path: Path) -> str:
    folder = path.relative_to(PACKAGE_DIR).parts[0]
    names = {"systems": "Systems", "server": "API: the state of the database"}
    return names.get(folder, "Worker and API processes")
