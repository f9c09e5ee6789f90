// Zoom of timelines and charts, values under the pointer, and logs that follow their end.

const content = document.getElementById("content");

// Dragging across an element selects a part of it: `select(from, to)` gets two shares of its width.
function selectByDragging(selector, select) {
  document.addEventListener("pointerdown", (event) => {
    const area = event.target.closest?.(selector);
    if (!area || event.button !== 0) return;
    const box = area.getBoundingClientRect();
    const getShare = (move) => Math.min(Math.max((move.clientX - box.left) / box.width, 0), 1);
    const start = getShare(event);
    const brush = document.createElement("div");
    brush.className = "brush";
    document.body.append(brush);
    const show = (move) => {
      const [from, to] = [start, getShare(move)].sort((a, b) => a - b);
      brush.style.cssText = `left:${box.left + scrollX + from * box.width}px;top:${box.top + scrollY}px;` +
        `width:${(to - from) * box.width}px;height:${box.height}px`;
    };
    const finish = (move) => {
      document.removeEventListener("pointermove", show);
      brush.remove();
      const [from, to] = [start, getShare(move)].sort((a, b) => a - b);
      if (to - from > 0.01) select(area, from, to);
    };
    document.addEventListener("pointermove", show);
    document.addEventListener("pointerup", finish, { once: true });
    event.preventDefault();
  });
}

// Timelines. All lines show the same part of the time.

const WHOLE = { from: 0, to: 1 };
let visible = { ...WHOLE };

function formatSeconds(seconds) {
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1).replace(".0", "")}s`;
  if (seconds < 89.5) return `${Math.round(seconds)}s`;
  const [size, name, part, partName] = seconds < 3600 ? [60, "m", 1, "s"]
    : seconds < 86400 ? [3600, "h", 60, "m"] : [86400, "d", 3600, "h"];
  const parts = Math.round(seconds / part);
  const rest = parts % (size / part);
  return `${Math.floor(parts / (size / part))}${name}${rest ? ` ${rest}${partName}` : ""}`;
}

function showTimeline() {
  const timeline = document.getElementById("timeline");
  if (!timeline) return;
  content.querySelector("[data-zoom-controls]").hidden = false;
  const isWhole = visible.from === 0 && visible.to === 1;
  for (const svg of timeline.querySelectorAll("svg.timeline-bar")) {
    svg.setAttribute("viewBox", `${visible.from * 1000} 0 ${(visible.to - visible.from) * 1000} 14`);
  }
  if (isWhole && !timeline.dataset.zoomed) return;
  timeline.dataset.zoomed = "yes";
  const ticks = [...timeline.querySelectorAll("[data-timeline-axis] span")];
  ticks.forEach((tick, n) => {
    const share = visible.from + ((visible.to - visible.from) * n) / (ticks.length - 1);
    tick.textContent = formatSeconds(share * timeline.dataset.span) || "0s";
  });
}

function zoomTimeline(from, to) {
  visible = { from: Math.max(from, 0), to: Math.min(to, 1) };
  showTimeline();
}

selectByDragging("[data-timeline-axis]", (_, from, to) => {
  const width = visible.to - visible.from;
  zoomTimeline(visible.from + from * width, visible.from + to * width);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-zoom]");
  if (!button) return;
  const factor = Number(button.dataset.zoom);
  if (!factor) return zoomTimeline(0, 1);
  const middle = (visible.from + visible.to) / 2;
  const half = ((visible.to - visible.from) * factor) / 2;
  zoomTimeline(middle - half, middle + half);
});

// Charts. Hovering shows the values of a point in time; dragging opens the page with that part of the time.

const hint = document.createElement("div");
hint.className = "chart-hint";
hint.hidden = true;
document.body.append(hint);

function findChartPoint(event) {
  const svg = event.target.closest?.("svg.chart[data-points]");
  if (!svg) return null;
  const points = JSON.parse(svg.dataset.points);
  const box = svg.getBoundingClientRect();
  const scale = svg.viewBox.baseVal.width / box.width;
  const left = Number(svg.dataset.left);
  const x = (event.clientX - box.left) * scale - left;
  const index = Math.floor((x / (svg.viewBox.baseVal.width - left)) * points.length);
  return points[index] ? { svg, box, point: points[index] } : null;
}

document.addEventListener("pointermove", (event) => {
  const found = findChartPoint(event);
  hint.hidden = !found;
  if (!found) return;
  const isLocal = document.documentElement.dataset.times === "local";
  const at = new Date(found.point.at);
  const time = isLocal ? at.toLocaleString() : `${at.toISOString().slice(0, 16).replace("T", " ")} UTC`;
  hint.textContent = [time, ...found.point.values].join("\n");
  const left = Math.min(event.clientX + 14, innerWidth - hint.offsetWidth - 8);
  hint.style.cssText = `left:${left + scrollX}px;top:${found.box.top + scrollY + 8}px`;
});

selectByDragging("svg.chart[data-points]", (svg, from, to) => {
  const points = JSON.parse(svg.dataset.points);
  const left = Number(svg.dataset.left) / svg.viewBox.baseVal.width;
  const getIndex = (share) => {
    const index = Math.floor(((share - left) / (1 - left)) * points.length);
    return Math.min(Math.max(index, 0), points.length - 1);
  };
  const url = new URL(location.href);
  url.searchParams.delete("span");
  url.searchParams.set("from", points[getIndex(from)].at);
  url.searchParams.set("until", points[getIndex(to)].until);
  location.assign(url);
});

// The chosen preset is kept from page to page.
const preset = new URL(location.href).searchParams.get("span");
if (preset && content.querySelector(".range-picker")) {
  const path = document.body.dataset.base || "/";
  document.cookie = `holdfast_span=${encodeURIComponent(preset)}; path=${path}; samesite=lax`;
}

// Logs. While "Follow" is checked, the end of the log stays in view.

function followLog() {
  if (content.querySelector("[data-follow-log]")?.checked) {
    content.querySelector(".log-lines > :last-child")?.scrollIntoView({ block: "end" });
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches?.("[data-submit-on-change]")) event.target.form.requestSubmit();
  if (event.target.matches?.("[data-follow-log]")) followLog();
});

document.addEventListener("holdfast:updated", () => {
  showTimeline();
  followLog();
});
showTimeline();
