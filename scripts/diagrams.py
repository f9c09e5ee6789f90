"""Draw the diagrams of the concept pages as SVG files: docs/explain/diagram-*.svg. With `--check`, only compare them.

The files use `currentColor`, so they fit a light and a dark page. The site puts them into the page (docs_site.py);
elsewhere the style inside the file chooses the colour.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

EXPLAIN_DIR = Path(__file__).resolve().parent.parent / "docs" / "explain"
STYLE = (
    "<style>svg.diagram{color:#1f2937;font:14px system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){svg.diagram{color:#e5e7eb}}</style>"
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
)
FILLS = {
    "live": "rgb(20 184 166 / .22)",
    "end": "rgb(99 102 241 / .20)",
    "bad": "rgb(239 68 68 / .22)",
    "plain": "rgb(148 163 184 / .16)",
}
Point = tuple[float, float]


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    title: str,
    lines: Iterable[str] = (),
    fill: str = "plain",
) -> str:
    """Draw a box with a title and smaller lines below it."""
    rows = list(lines)
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{FILLS[fill]}" stroke="currentColor" stroke-opacity=".55"/>'
    ]
    top = y + height / 2 + 5 - 8.5 * len(rows)
    parts.append(text(x + width / 2, top, title, weight=600))
    parts += [text(x + width / 2, top + 17 * number, row, size=12) for number, row in enumerate(rows, 1)]
    return "".join(parts)


def text(
    x: float, y: float, content: str, *, size: int = 14, weight: int = 400, anchor: str = "middle"
) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="currentColor">{escape(content)}</text>'


def arrow(
    points: list[Point],
    label: str = "",
    at: Point | None = None,
    *,
    dashed: bool = False,
    anchor: str = "middle",
) -> str:
    """Draw a line with an arrow head through the points, and a label beside it."""
    path = " ".join(f"{'M' if number == 0 else 'L'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    line = f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="1.4"{dash} marker-end="url(#tip)"/>'
    if label:
        x, y = at or ((points[0][0] + points[-1][0]) / 2, (points[0][1] + points[-1][1]) / 2 - 7)
        line += text(x, y, label, size=12, anchor=anchor)
    return line


def segment(x1: float, x2: float, y: float, fill: str, label: str) -> str:
    """Draw a bar on a time line."""
    return (
        f'<rect x="{x1}" y="{y}" width="{x2 - x1}" height="26" rx="4" fill="{FILLS[fill]}" stroke="currentColor" stroke-opacity=".55"/>'
        + text((x1 + x2) / 2, y + 18, label, size=12)
    )


def draw_states() -> tuple[int, int, list[str]]:
    return 860, 400, [
        box(20, 20, 130, 50, "waiting", ["for other tasks"], "plain"),
        box(20, 130, 130, 50, "scheduled", ["for its time"], "plain"),
        box(290, 130, 130, 50, "ready", ["in its queue"], "live"),
        box(560, 130, 130, 50, "running", ["with a lease"], "live"),
        box(560, 300, 130, 50, "succeeded", [], "end"),
        box(720, 300, 120, 50, "failed", ["dead letter"], "bad"),
        box(290, 300, 130, 50, "cancelled", [], "plain"),
        arrow([(150, 45), (355, 45), (355, 130)], "the tasks before it have ended", (250, 38)),
        arrow([(150, 155), (290, 155)], "it is due"),
        arrow([(420, 155), (560, 155)], "claimed"),
        arrow([(560, 170), (420, 170)], "released or lost", (490, 190)),
        arrow([(625, 130), (625, 95), (85, 95), (85, 130)], "failed with retries left, snoozed or rate limited", (492, 88)),
        arrow([(625, 180), (625, 300)], "success", (632, 272), anchor="start"),
        arrow([(690, 165), (780, 165), (780, 300)], "retries used up", (773, 235), anchor="end"),
        arrow([(355, 180), (355, 300)], "cancel, from any live state", (362, 245), anchor="start"),
        arrow([(720, 340), (705, 340), (705, 380), (215, 380), (215, 172), (290, 172)], "retry", (480, 373), dashed=True),
    ]  # fmt: skip


def draw_leases() -> tuple[int, int, list[str]]:
    ticks = [text(x, 84, "↻", size=15) for x in (190, 250, 310)]
    return 860, 330, [
        text(20, 48, "worker A", weight=600, anchor="start"),
        text(20, 138, "database", weight=600, anchor="start"),
        text(20, 228, "worker B", weight=600, anchor="start"),
        segment(130, 350, 30, "live", "runs attempt 1"),
        *ticks, text(250, 102, "heartbeats renew the lease", size=12),
        text(362, 49, "✕", size=20, weight=700), text(378, 48, "kill -9, or cut off", size=12, anchor="start"),
        segment(130, 500, 120, "live", "lease of attempt 1"),
        segment(520, 760, 120, "live", "lease of attempt 2"),
        segment(520, 760, 210, "live", "runs attempt 2"),
        arrow([(500, 182), (500, 150)]), text(500, 200, "the lease ends", size=12),
        arrow([(130, 120), (130, 58)], "claim", (124, 92), anchor="end"),
        arrow([(760, 210), (760, 150)], "succeeded", (767, 185), anchor="start"),
        arrow([(620, 43), (620, 118)], "", dashed=True),
        text(620, 33, "A wakes up and reports success: refused (HF001)", size=12),
        text(430, 290, "One lease at a time. An outcome counts only from the holder of the newest lease (attempt and nonce).", size=13),
    ]  # fmt: skip


def draw_graph() -> tuple[int, int, list[str]]:
    parts = [
        box(20, y, 150, 46, f"fetch page {number}", [], "end" if number < 3 else "live")
        for number, y in ((1, 20), (2, 90), (3, 160))
    ]
    return 860, 230, [
        *parts,
        box(290, 90, 150, 46, "bind", ["gets their results"], "plain"),
        box(560, 40, 140, 46, "publish", [], "plain"),
        box(560, 140, 140, 46, "clean up", ['on_failure="run"'], "plain"),
        arrow([(170, 43), (290, 104)]), arrow([(170, 113), (290, 113)]), arrow([(170, 183), (290, 122)]),
        arrow([(440, 108), (560, 66)]), arrow([(440, 120), (560, 160)], dashed=True),
        text(95, 82, "succeeded", size=12), text(95, 152, "succeeded", size=12), text(95, 222, "running, 40 %", size=12),
        text(365, 156, "waiting", size=12), text(790, 70, "one job,", size=12), text(790, 88, "one progress", size=12),
    ]  # fmt: skip


def draw_fleet() -> tuple[int, int, list[str]]:
    return 860, 420, [
        box(20, 20, 220, 66, "your application", ["submits in its own", "transaction"], "live"),
        box(20, 120, 220, 52, "HTTP API and dashboard", ["holdfast api"], "live"),
        box(20, 206, 220, 52, "command line, SQL", ["holdfast job why, psql"], "live"),
        box(340, 20, 180, 238, "PostgreSQL", ["jobs, tasks, leases", "limits, schedules", "messages (pgmq)", "history by day", "row-level security", "all rules are SQL", "functions"], "end"),
        box(620, 20, 220, 110, "worker", ["event loop, threads", "child processes", "heartbeat process", "maintenance"], "live"),
        box(620, 148, 220, 110, "worker", ["no leader, no registry:", "any number, any machine,", "killed at any time"], "live"),
        box(340, 320, 180, 66, "file store", ["folder, S3,", "GCS, Azure"], "plain"),
        arrow([(240, 53), (340, 53)], "submit", (290, 46)), arrow([(240, 146), (340, 146)]), arrow([(240, 232), (340, 232)]),
        arrow([(620, 60), (520, 60)], "claim", (570, 53)), arrow([(620, 80), (520, 80)], "outcome", (570, 98)),
        arrow([(520, 120), (620, 120)], "notify", (570, 135), dashed=True), arrow([(620, 203), (520, 203)]),
        arrow([(730, 258), (730, 353), (520, 353)], "save", (660, 346)),
        arrow([(130, 258), (130, 353), (340, 353)], "download by signed link", (222, 346)),
    ]  # fmt: skip


DIAGRAMS = {"states": draw_states, "leases": draw_leases, "graph": draw_graph, "fleet": draw_fleet}


def main() -> int:
    exit_code = 0
    for name, draw in DIAGRAMS.items():
        width, height, parts = draw()
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" viewBox="0 0 {width} {height}" width="{width}">{STYLE}{"".join(parts)}</svg>\n'
        path = EXPLAIN_DIR / f"diagram-{name}.svg"
        if "--check" not in sys.argv:
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            print(f"{path.name} is out of date; run `make reference`")
            exit_code = 1
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
