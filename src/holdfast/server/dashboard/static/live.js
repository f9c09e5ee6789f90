// Live updates, keyboard shortcuts, relative times and copy buttons.
// Every page also works without JavaScript: you reload it yourself, and forms submit as usual.

const body = document.body;
const base = body.dataset.base;
const content = document.getElementById("content");
const statusLabel = document.getElementById("live-status");
const banner = document.getElementById("banner");
const pendingButton = document.getElementById("pending-updates");
const helpDialog = document.getElementById("shortcuts-help");
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

const RECONNECT_DELAY_MS = 5000;
const GO_TO_WINDOW_MS = 1500;

// The only HTML that is parsed comes from this server, which escaped every value in it.
const trustedPolicy = window.trustedTypes
  ? window.trustedTypes.createPolicy("holdfast", { createHTML: (html) => html })
  : { createHTML: (html) => html };

function parseContent(html) {
  const source = trustedPolicy.createHTML(`<div id="content">${html}</div>`);
  return new DOMParser().parseFromString(source, "text/html").getElementById("content");
}

// Selected rows. They are stored here and not in the page, so that no update can lose them.

const selectedIds = new Set();
const listRowCheckboxes = () => findAll('input[type="checkbox"][name="id"]', content);

function setSelected(checkbox, selected) {
  if (selected) selectedIds.add(checkbox.value);
  else selectedIds.delete(checkbox.value);
}

function showSelection() {
  const checkboxes = listRowCheckboxes();
  for (const checkbox of checkboxes) checkbox.checked = selectedIds.has(checkbox.value);
  const selectAll = content.querySelector("[data-select-all]");
  if (selectAll) {
    const checked = checkboxes.filter((checkbox) => checkbox.checked).length;
    selectAll.checked = checked > 0 && checked === checkboxes.length;
    selectAll.indeterminate = checked > 0 && checked < checkboxes.length;
  }
  for (const label of findAll("[data-selected-count]", content)) {
    label.textContent = selectedIds.size ? `${selectedIds.size} selected` : "";
  }
}

document.addEventListener("change", (event) => {
  const checkbox = event.target;
  if (!(checkbox instanceof HTMLInputElement) || checkbox.type !== "checkbox") return;
  if (checkbox.matches("[data-select-all]")) {
    for (const row of listRowCheckboxes()) setSelected(row, checkbox.checked);
  } else if (checkbox.name === "id" && content.contains(checkbox)) {
    setSelected(checkbox, checkbox.checked);
  } else {
    return;
  }
  showSelection();
  applyPendingUpdate();
});

// Patching. Nodes that did not change stay in the page, so that focus, scroll position and open details survive.
// Nodes are matched by id or row, otherwise by position. The id is read as an attribute, because a form with a
// field named "id" returns that field for `form.id`.

function getKey(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") || node.getAttribute("data-row") || "" : "";
}

function isSameElement(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && getKey(a) === getKey(b);
}

function patchNode(oldNode, newNode) {
  if (oldNode.nodeType === Node.TEXT_NODE) {
    if (oldNode.data !== newNode.data) oldNode.data = newNode.data;
    return;
  }
  if (oldNode.nodeType !== Node.ELEMENT_NODE) return;
  patchAttributes(oldNode, newNode);
  const isInput = /^(INPUT|TEXTAREA|SELECT)$/.test(oldNode.nodeName);
  if (oldNode.nodeName === "TEXTAREA" || (isInput && oldNode === document.activeElement)) return;
  patchChildren(oldNode, newNode);
}

function patchAttributes(oldNode, newNode) {
  // Keep what the user opened or typed.
  const kept = oldNode.nodeName === "DETAILS" ? ["open"] : oldNode.nodeName === "INPUT" ? ["value", "checked"] : [];
  for (const { name } of [...oldNode.attributes]) {
    if (!newNode.hasAttribute(name) && !kept.includes(name) && name !== "class") oldNode.removeAttribute(name);
  }
  for (const { name, value } of newNode.attributes) {
    const isKept = kept.includes(name) && oldNode.type !== "hidden";
    if (!isKept && oldNode.getAttribute(name) !== value) oldNode.setAttribute(name, value);
  }
  const isCurrentRow = oldNode.classList.contains("current-row");
  if (!newNode.hasAttribute("class") && oldNode.hasAttribute("class") && !isCurrentRow) {
    oldNode.removeAttribute("class");
  }
  if (oldNode.nodeName === "INPUT" && oldNode.type === "hidden") oldNode.value = newNode.value;
}

function patchChildren(oldParent, newParent) {
  const oldByKey = new Map();
  for (const child of oldParent.childNodes) if (getKey(child)) oldByKey.set(getKey(child), child);
  let position = oldParent.firstChild;
  for (const newChild of [...newParent.childNodes]) {
    const key = getKey(newChild);
    const match = key && oldByKey.get(key);
    if (match && isSameElement(match, newChild)) {
      if (match === position) position = position.nextSibling;
      else oldParent.insertBefore(match, position);
      oldByKey.delete(key);
      patchNode(match, newChild);
    } else if (position && !getKey(position) && isSameElement(position, newChild)) {
      const next = position.nextSibling;
      patchNode(position, newChild);
      position = next;
    } else {
      oldParent.insertBefore(document.importNode(newChild, true), position);
    }
  }
  while (position) {
    const next = position.nextSibling;
    position.remove();
    position = next;
  }
}

// Live updates. While rows are selected, a popover is open or text is selected, updates wait behind a button.

let stream = null;
let version = "";
let isPaused = false;
let pendingHtml = null;
let pendingCount = 0;

function isUserBusy() {
  const hasOpenPopover = content.querySelector(".popover[open]") !== null;
  return selectedIds.size > 0 || helpDialog.open || hasOpenPopover || !window.getSelection().isCollapsed;
}

function showContent(html) {
  const row = content.querySelector("tr.current-row")?.dataset.row;
  patchChildren(content, parseContent(html));
  if (row) content.querySelector(`tr[data-row="${CSS.escape(row)}"]`)?.classList.add("current-row");
  showSelection();
  updateTimes();
  document.dispatchEvent(new CustomEvent("holdfast:updated"));
}

function takePendingUpdate() {
  const html = pendingHtml;
  pendingHtml = null;
  pendingCount = 0;
  pendingButton.hidden = true;
  if (html !== null) showContent(html);
}

function applyPendingUpdate() {
  if (pendingHtml === null) return;
  if (isPaused || isUserBusy()) {
    pendingButton.hidden = false;
    pendingButton.textContent = pendingCount === 1 ? "Show 1 update" : `Show ${pendingCount} updates`;
    return;
  }
  takePendingUpdate();
}

function showStatus(state, text) {
  statusLabel.hidden = false;
  statusLabel.className = `live-status ${state}`;
  statusLabel.textContent = text;
}

function openStream() {
  if (stream || isPaused || document.hidden || !("live" in body.dataset)) return;
  stream = new EventSource(`${base}/live?path=${encodeURIComponent(body.dataset.path)}&version=${version}`);
  stream.onopen = () => showStatus("on", "Live");
  stream.onerror = () => {
    showStatus("off", "Reconnecting…");
    if (stream && stream.readyState === EventSource.CLOSED) {
      stream = null;
      reloadIfSignedOut().finally(() => setTimeout(openStream, RECONNECT_DELAY_MS));
    }
  };
  stream.addEventListener("page", (event) => {
    version = event.lastEventId;
    pendingHtml = JSON.parse(event.data).html;
    pendingCount += 1;
    banner.hidden = true;
    showStatus("on", "Live");
    applyPendingUpdate();
  });
  stream.addEventListener("unavailable", (event) => {
    banner.textContent = JSON.parse(event.data).message;
    banner.hidden = false;
    showStatus("off", "Waiting for the database");
  });
  stream.addEventListener("available", () => {
    banner.hidden = true;
    showStatus("on", "Live");
  });
  stream.addEventListener("session_ended", () => location.reload());
}

// An EventSource does not tell why the server refused it. If the session has ended, the page redirects to the login.
async function reloadIfSignedOut() {
  const response = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
  if (response && (response.type === "opaqueredirect" || response.status === 403)) location.reload();
}

function closeStream() {
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? closeStream() : openStream()));
window.addEventListener("pagehide", closeStream);
pendingButton.addEventListener("click", takePendingUpdate);
document.addEventListener("toggle", applyPendingUpdate, true);
document.addEventListener("selectionchange", applyPendingUpdate);

// Relative times. The texts match `format_relative_time` of the server; the tooltip also shows the local time.

const DURATION_UNITS = [
  { seconds: 86400, from: 129600, suffix: "d" },
  { seconds: 3600, from: 5400, suffix: "h" },
  { seconds: 60, from: 90, suffix: "m" },
];

function formatDuration(seconds) {
  const unit = DURATION_UNITS.find(({ from }) => seconds >= from);
  if (unit) return `${Math.round(seconds / unit.seconds)}${unit.suffix}`;
  return `${seconds < 9.95 ? seconds.toFixed(1).replace(".0", "") : Math.round(seconds)}s`;
}

function formatRelativeTime(secondsAhead) {
  if (Math.abs(secondsAhead) < 1) return "now";
  return secondsAhead > 0 ? `in ${formatDuration(secondsAhead)}` : `${formatDuration(-secondsAhead)} ago`;
}

const padNumber = (number) => String(number).padStart(2, "0");

function formatLocalTime(at) {
  const day = `${at.getFullYear()}-${padNumber(at.getMonth() + 1)}-${padNumber(at.getDate())}`;
  return `${day} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(padNumber).join(":")}`;
}

// Times of log lines and of the axes of charts, which have no date.
function showLocalClocks() {
  for (const element of findAll("[data-clock]")) {
    const at = new Date(element.getAttribute("datetime"));
    const milliseconds = element.textContent.includes(".") ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : "";
    const [, time] = formatLocalTime(at).split(" ");
    element.firstChild.data = (milliseconds ? time : time.slice(0, 5)) + milliseconds;
  }
}

function updateTimes() {
  for (const element of findAll("time[data-relative]")) {
    const at = Date.parse(element.dateTime);
    const text = formatRelativeTime((at - Date.now()) / 1000);
    if (element.textContent !== text) element.firstChild.data = text;
    if (!element.dataset.hasLocalTime) {
      element.dataset.hasLocalTime = "yes";
      element.title += ` · ${new Date(at).toLocaleString()} local time`;
    }
  }
  for (const element of findAll("time[data-local]")) {
    const text = formatLocalTime(new Date(element.dateTime));
    if (element.textContent !== text) element.firstChild.data = text;
  }
  if (document.documentElement.dataset.times === "local") showLocalClocks();
}
setInterval(() => document.hidden || isUserBusy() || updateTimes(), 1000);

// Copy buttons. The clipboard API needs HTTPS; on other pages, copy through a text area.

document.addEventListener("click", async (event) => {
  const element = event.target.closest?.("[data-copy], [data-copy-text]");
  if (!element) return;
  const text = element.dataset.copyText ?? element.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  showStatus("on", "Copied");
});

// Popovers close on a click elsewhere.

document.addEventListener("click", (event) => {
  for (const popover of findAll(".popover[open]")) if (!popover.contains(event.target)) popover.open = false;
});

// Graphs: drag to pan, Ctrl and wheel to zoom.

document.addEventListener("wheel", (event) => {
  const svg = event.target.closest?.("svg[data-pan]");
  if (!svg || !event.ctrlKey) return;
  event.preventDefault();
  const box = svg.viewBox.baseVal;
  const factor = event.deltaY > 0 ? 1.15 : 1 / 1.15;
  svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width * factor} ${box.height * factor}`);
}, { passive: false });

document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.("svg[data-pan]");
  if (!svg) return;
  const { x, y, width, height } = svg.viewBox.baseVal;
  const [startX, startY, scale] = [event.clientX, event.clientY, width / svg.clientWidth];
  const pan = (move) => {
    const [left, top] = [x - (move.clientX - startX) * scale, y - (move.clientY - startY) * scale];
    svg.setAttribute("viewBox", `${left} ${top} ${width} ${height}`);
  };
  svg.setPointerCapture(event.pointerId);
  svg.addEventListener("pointermove", pan);
  svg.addEventListener("pointerup", () => svg.removeEventListener("pointermove", pan), { once: true });
});

// Keyboard shortcuts.

const getCurrentRow = () => content.querySelector("tr.current-row");
let goToPressedAt = 0;

function moveToRow(offset) {
  const rows = findAll("tr[data-row]", content);
  if (!rows.length) return;
  const current = getCurrentRow();
  const start = current ? rows.indexOf(current) : offset > 0 ? -1 : rows.length;
  const next = rows[Math.min(Math.max(start + offset, 0), rows.length - 1)];
  current?.classList.remove("current-row");
  next.classList.add("current-row");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a")?.focus({ preventScroll: true });
}

// Opens the retry or cancel form of a job page, or presses the button of a list for the selected rows.
function startAction(shortcut) {
  const popover = document.getElementById(shortcut === "r" ? "retry" : "cancel");
  if (popover) {
    popover.open = true;
    popover.querySelector("input:not([type=hidden]), select, button")?.focus();
    return;
  }
  const button = content.querySelector(`[data-verb="${shortcut}"]`);
  if (!button) return;
  const checkbox = getCurrentRow()?.querySelector('input[name="id"]');
  if (!selectedIds.size && checkbox) selectedIds.add(checkbox.value);
  showSelection();
  if (selectedIds.size) button.click();
}

function switchTheme() {
  const themes = ["system", "light", "dark"];
  const root = document.documentElement;
  root.dataset.theme = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
  document.cookie = `holdfast_theme=${root.dataset.theme}; path=${base || "/"}; max-age=31536000; samesite=lax`;
  showStatus("on", `Theme: ${root.dataset.theme}`);
}

function switchDensity() {
  const isDense = document.documentElement.toggleAttribute("data-dense");
  const value = isDense ? "dense" : "normal";
  document.cookie = `holdfast_density=${value}; path=${base || "/"}; max-age=31536000; samesite=lax`;
  showStatus("on", isDense ? "Compact rows" : "Normal rows");
}
document.addEventListener("click", (event) => event.target.closest?.("[data-switch-density]") && switchDensity());

function togglePause() {
  isPaused = !isPaused;
  if (isPaused) {
    closeStream();
    showStatus("off", "Updates paused");
  } else {
    openStream();
    applyPendingUpdate();
  }
}

const shortcuts = {
  "/": () => document.getElementById("q")?.select(),
  "?": () => (helpDialog.open ? helpDialog.close() : helpDialog.showModal()),
  j: () => moveToRow(1),
  k: () => moveToRow(-1),
  x: () => getCurrentRow()?.querySelector('input[name="id"]')?.click(),
  r: () => startAction("r"),
  c: () => startAction("c"),
  t: switchTheme,
  p: togglePause,
  d: switchDensity,
  g: () => (goToPressedAt = Date.now()),
};

document.addEventListener("keydown", (event) => {
  const target = event.target;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(target.nodeName) && !/^(checkbox|radio)$/.test(target.type);
  if (event.key === "Escape") {
    for (const popover of findAll(".popover[open]")) popover.open = false;
    if (isTyping) target.blur();
    return;
  }
  if ("shortcutsOff" in body.dataset || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (Date.now() - goToPressedAt < GO_TO_WINDOW_MS && event.key !== "g") {
    goToPressedAt = 0;
    const link = document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  const run = shortcuts[event.key];
  if (run) {
    event.preventDefault();
    run();
  }
});

// A link to a popover on the page, such as `#pause`, opens it.

const linked = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
if (linked instanceof HTMLDetailsElement) linked.open = true;

showSelection();
updateTimes();
openStream();
