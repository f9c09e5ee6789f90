"""The dependencies between the tasks of a job as SVG, in layers. The browser only pans and zooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from holdfast.formatting import truncate_text
from holdfast.server.dashboard.state_badges import DEFAULT_STATE_STYLE, STATE_STYLES
from holdfast.server.dashboard.svg import render_svg_element

NODE_WIDTH, NODE_HEIGHT, NODE_GAP_X, NODE_GAP_Y = 150, 34, 46, 14

Row = Mapping[str, Any]


def draw_task_graph(tasks: Sequence[Row], edges: Sequence[Sequence[str]]) -> Markup:
    """Draw the tasks of a job in layers, with a line for each dependency."""
    drawn = list(tasks)
    if len(drawn) < 2:
        return Markup("")
    layers = _assign_task_layers([task["id"] for task in drawn], edges)
    positions: dict[str, tuple[int, int]] = {}
    layer_sizes: dict[int, int] = {}
    for task in drawn:
        layer = layers[task["id"]]
        row = layer_sizes.get(layer, 0)
        positions[task["id"]] = (layer * (NODE_WIDTH + NODE_GAP_X), row * (NODE_HEIGHT + NODE_GAP_Y))
        layer_sizes[layer] = row + 1
    width = (max(layer_sizes) + 1) * (NODE_WIDTH + NODE_GAP_X) - NODE_GAP_X + 4
    height = max(layer_sizes.values()) * (NODE_HEIGHT + NODE_GAP_Y) + 4
    lines = [
        _draw_dependency_line(positions[parent], positions[child])
        for parent, child in edges
        if parent in positions and child in positions
    ]
    nodes = [_draw_task_node(task, *positions[task["id"]]) for task in drawn]
    return render_svg_element(
        "svg",
        *lines,
        *nodes,
        class_="graph",
        data_pan=True,
        viewBox=f"-2 -2 {max(width, 420)} {max(height, 90)}",
        role="img",
        aria_label="Dependency graph of the tasks",
    )


def _assign_task_layers(task_ids: Sequence[str], edges: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the layer number of each task: one more than the highest layer of its dependencies."""
    known = set(task_ids)
    children: dict[str, list[str]] = {}
    missing_parents = dict.fromkeys(task_ids, 0)
    for parent, child in edges:
        if parent in known and child in known:
            children.setdefault(parent, []).append(child)
            missing_parents[child] += 1
    layers = dict.fromkeys(task_ids, 0)
    ready = [task_id for task_id in task_ids if not missing_parents[task_id]]
    while ready:
        parent = ready.pop()
        for child in children.get(parent, ()):
            layers[child] = max(layers[child], layers[parent] + 1)
            missing_parents[child] -= 1
            if not missing_parents[child]:
                ready.append(child)
    return layers


def _draw_dependency_line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x1, y1, x2, y2 = start[0] + NODE_WIDTH, start[1] + NODE_HEIGHT / 2, end[0], end[1] + NODE_HEIGHT / 2
    bend = (x2 - x1) / 2
    return render_svg_element(
        "path", class_="edge", d=f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
    )


def _draw_task_node(task: Row, x: int, y: int) -> Markup:
    tone = STATE_STYLES.get(task["status"], DEFAULT_STATE_STYLE).tone
    return render_svg_element(
        "g",
        render_svg_element("title", task["name"]),
        render_svg_element("rect", x=x, y=y, width=NODE_WIDTH, height=NODE_HEIGHT, rx=6),
        render_svg_element("text", truncate_text(task["name"], 20), class_="name", x=x + 10, y=y + 14),
        render_svg_element("text", task["status"], class_="note", x=x + 10, y=y + 27),
        class_=f"node {tone}",
    )
