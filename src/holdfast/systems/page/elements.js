// Elements that the pages of all systems share. Text of users is always inserted as text, never as HTML.

const SAFE_SCHEMES = ["http:", "https:", "blob:"];
const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const ICON_PATHS = {
  alert: "M12 3 22 20H2ZM12 9v5M12 17v.5",
  archive: "M4 8h16v12H4ZM3 4h18v4H3ZM10 12h4",
  check: "M4 12.5 9.5 18 20 6.5",
  clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18ZM12 7v5l3.5 2",
  close: "M5 5l14 14M19 5 5 19",
  download: "M12 4v12M7 11l5 5 5-5M4 20h16",
  external: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  image: "M3 5h18v14H3ZM3 16l5-5 5 5 3-3 5 5M15.5 9.5h.1",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
  play: "M7 4v16l13-8Z",
  plus: "M12 4v16M4 12h16",
  retry: "M20 5v5h-5M20 10a8.5 8.5 0 1 0 .5 5",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13ZM15.5 15.5 21 21",
  sound: "M4 9v6h4l5 4V5L8 9ZM17 8.5a5 5 0 0 1 0 7",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4"
    + "M17.6 6.4 19 5",
  trash: "M4 6h16M9 6V4h6v2M6 6l1 14h10l1-14M10 10v6M14 10v6",
  upload: "M12 16V4M7 9l5-5 5 5M4 16v4h16v-4",
};

// The path under which the application is mounted, with a slash at its end. Files of a page are one level below.
export const BASE_PATH = new URL("..", import.meta.url).pathname;

export const find = (selector) => document.querySelector(selector);

// Returns the path of a route of this application, also if the application is mounted below a prefix.
export function resolvePath(path) {
  return path.startsWith("/") && !path.startsWith("//") ? BASE_PATH + path.slice(1) : path;
}

// Returns whether a URL leads to a web page or a file, and not to a script.
export function isSafeUrl(value) {
  try {
    return SAFE_SCHEMES.includes(new URL(value, location.href).protocol);
  } catch {
    return false;
  }
}

// Creates an element. Attributes that begin with "on" are event listeners. `true` is an attribute without a value;
// `false`, `null` and `undefined` leave the attribute out, as does an unsafe URL. Children that are null are skipped.
export function createElement(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value === false || value == null) continue;
    else if (!["href", "src"].includes(key) || isSafeUrl(value)) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

// Creates one of the icons above. It is hidden from screen readers: give the button around it a label.
export function createIcon(name) {
  const icon = document.createElementNS(SVG_NAMESPACE, "svg");
  icon.setAttribute("viewBox", "0 0 24 24");
  icon.setAttribute("aria-hidden", "true");
  icon.classList.add("icon");
  const path = document.createElementNS(SVG_NAMESPACE, "path");
  path.setAttribute("d", ICON_PATHS[name]);
  icon.append(path);
  return icon;
}

// Creates a button with an icon. Without a visible text, `label` is read by screen readers and shown as a tooltip.
export function createButton({ text, label, icon, kind = "", onClick, ...attributes }) {
  const iconOnly = icon && !text;
  return createElement("button", {
    type: "button",
    class: iconOnly ? `icon-button ${kind}` : kind,
    "aria-label": label,
    title: iconOnly ? label : null,
    onclick: onClick,
    ...attributes,
  }, icon ? createIcon(icon) : null, text ?? null);
}

// Creates a link to another site. It opens in a new tab and tells that site nothing about this page.
export function createExternalLink(url, ...children) {
  return createElement("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

// Creates an image from a link that this application has signed. Other URLs give null.
export function createFileImage(path, alt = "", attributes = {}) {
  if (!path || !path.startsWith("/") || path.startsWith("//")) return null;
  return createElement("img", { src: resolvePath(path), alt, loading: "lazy", decoding: "async", ...attributes });
}

// Creates a progress bar. `percent` null means that the progress is not known. `kind` is "", "good" or "bad".
export function createProgressBar(percent, kind = "", label = "Progress") {
  const fill = createElement("i");
  if (percent != null) fill.style.width = `${percent}%`;
  return createElement("div", {
    class: `bar ${kind} ${percent == null ? "unknown" : ""}`,
    role: "progressbar",
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuenow": percent,
    "aria-label": label,
  }, fill);
}

// Creates a badge for a status: an icon and a word. `kind` is "good", "bad", "active" or "waiting".
export function createBadge(text, kind) {
  const icons = { good: "check", bad: "alert", active: "retry", waiting: "clock" };
  return createElement("span", { class: `badge ${kind}` }, createIcon(icons[kind]), text);
}

// Creates what a list shows when it has no items: what is missing, and a button or a text that says what to do.
export function createEmptyState({ title, text, icon = "archive", action }) {
  return createElement("div", { class: "empty" },
    createIcon(icon),
    createElement("strong", {}, title),
    text ? createElement("p", {}, text) : null,
    action || null);
}

// Shows in an element what is missing while a list has no items, and nothing otherwise.
export function showEmptyStateIf(isEmpty, selector, state) {
  find(selector).replaceChildren(...(isEmpty ? [createEmptyState(state)] : []));
}

// Creates a time that says how long ago it was, with the full time as a tooltip.
export function createTime(value) {
  const date = new Date(value);
  const text = formatAge(date);
  return createElement("time", { datetime: date.toISOString(), title: date.toLocaleString() }, text);
}

function formatAge(date) {
  const seconds = Math.round((Date.now() - date.getTime()) / 1000);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 604800) return `${Math.floor(seconds / 86400)} d ago`;
  return date.toLocaleDateString(undefined, { year: "numeric", month: "short", day: "numeric" });
}

export function formatBytes(size) {
  if (size < 1048576) return `${Math.max(1, Math.round(size / 1024))} kB`;
  return size < 1073741824 ? `${(size / 1048576).toFixed(1)} MB` : `${(size / 1073741824).toFixed(1)} GB`;
}

// Formats seconds as 1:02:03 or 2:03.
export function formatDuration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const shown = parts[0] ? parts : parts.slice(1);
  return shown.map((part, index) => (index ? String(part).padStart(2, "0") : part)).join(":");
}

// Returns the host of a URL without "www.", or the URL itself if it has none.
export function getHost(url) {
  try {
    return new URL(url).host.replace(/^www\./, "") || url;
  } catch {
    return url;
  }
}
