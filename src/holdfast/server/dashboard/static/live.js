// What the pages do besides being pages: stay true while they are looked at, and obey the keyboard.
// Everything works without this file, only slower and by hand.

const body = document.body;
const base = body.dataset.base;
const live = document.getElementById("live");
const pulse = document.getElementById("pulse");
const banner = document.getElementById("banner");
const waiting = document.getElementById("waiting");
const help = document.getElementById("help");
const $$ = (query, from = document) => [...from.querySelectorAll(query)];

// The only HTML that is ever parsed came from our own server, which escaped every value in it.
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("holdfast", { createHTML: (html) => html })
  : { createHTML: (html) => html };
const parse = (html) => new DOMParser().parseFromString(policy.createHTML(`<div id="live">${html}</div>`), "text/html").getElementById("live");

// Ticked boxes live here and not in the page, so that no refresh can lose them.
const ticked = new Set();
const boxes = () => $$('input[type="checkbox"][name="id"]', live);

function showTicks() {
  for (const box of boxes()) box.checked = ticked.has(box.value);
  const all = live.querySelector("[data-tick-all]");
  if (all) {
    const here = boxes();
    const on = here.filter((box) => box.checked).length;
    all.checked = on > 0 && on === here.length;
    all.indeterminate = on > 0 && on < here.length;
  }
  for (const place of $$("[data-selected]", live)) place.textContent = ticked.size ? `${ticked.size} selected` : "";
}

document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || box.type !== "checkbox") return;
  if (box.matches("[data-tick-all]")) {
    for (const one of boxes()) box.checked ? ticked.add(one.value) : ticked.delete(one.value);
  } else if (box.name === "id" && live.contains(box)) {
    box.checked ? ticked.add(box.value) : ticked.delete(box.value);
  } else return;
  showTicks();
  settle();
});

// Patching: nodes that stay the same stay the same nodes. Keyed by id or row, else by position. Asked as attributes:
// a form that has a field called "id" answers form.id with that field.
const key = (node) => (node.nodeType === 1 ? node.getAttribute("id") || node.getAttribute("data-row") || "" : "");

function sameKind(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
}

function patch(old, fresh) {
  if (old.nodeType === 3) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== 1) return;
  patchAttributes(old, fresh);
  if (old === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(old.nodeName)) return;
  if (old.nodeName === "TEXTAREA") return;
  patchChildren(old, fresh);
}

function patchAttributes(old, fresh) {
  // What the visitor opened or typed is theirs.
  const kept = old.nodeName === "DETAILS" ? ["open"] : old.nodeName === "INPUT" ? ["value", "checked"] : [];
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept.includes(name) && name !== "class") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    const typed = kept.includes(name) && old.type !== "hidden";
    if (!typed && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (!fresh.hasAttribute("class") && old.hasAttribute("class") && !old.classList.contains("at")) old.removeAttribute("class");
  if (old.nodeName === "INPUT" && old.type === "hidden") old.value = fresh.value;
}

function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (key(child)) keyed.set(key(child), child);
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const match = key(wanted) && keyed.get(key(wanted));
    if (match && sameKind(match, wanted)) {
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      keyed.delete(key(wanted));
      patch(match, wanted);
    } else if (at && !key(at) && sameKind(at, wanted)) {
      const next = at.nextSibling;
      patch(at, wanted);
      at = next;
    } else {
      old.insertBefore(document.importNode(wanted, true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// The stream. While rows are ticked, a form is open or text is selected, new content waits behind a button.
let source = null;
let mark = "";
let paused = false;
let pending = null;
let count = 0;

const busy = () =>
  ticked.size > 0 || help.open || live.querySelector(".ask[open]") !== null || !window.getSelection().isCollapsed;

function show(html) {
  const row = live.querySelector("tr.at")?.dataset.row;
  patchChildren(live, parse(html));
  if (row) live.querySelector(`tr[data-row="${CSS.escape(row)}"]`)?.classList.add("at");
  showTicks();
  times();
}

function settle() {
  if (pending === null) return;
  if (paused || busy()) {
    waiting.hidden = false;
    waiting.textContent = count === 1 ? "1 update" : `${count} updates`;
    return;
  }
  const html = pending;
  pending = null;
  count = 0;
  waiting.hidden = true;
  show(html);
}

function say(state, text) {
  pulse.hidden = false;
  pulse.className = `pulse ${state}`;
  pulse.textContent = text;
}

function open() {
  if (source || paused || document.hidden || !("live" in body.dataset)) return;
  source = new EventSource(`${base}/live?path=${encodeURIComponent(body.dataset.path)}&have=${mark}`);
  source.onopen = () => say("on", "live");
  source.onerror = () => {
    say("off", "reconnecting");
    if (source && source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(open, 5000);
    }
  };
  source.addEventListener("page", (event) => {
    mark = event.lastEventId;
    pending = JSON.parse(event.data).html;
    count += 1;
    banner.hidden = true;
    say("on", "live");
    settle();
  });
  source.addEventListener("away", (event) => {
    banner.textContent = JSON.parse(event.data).message;
    banner.hidden = false;
    say("off", "waiting for the database");
  });
  source.addEventListener("back", () => {
    banner.hidden = true;
    say("on", "live");
  });
  source.addEventListener("end", () => location.reload());
}

function close() {
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
window.addEventListener("pagehide", close);
waiting.addEventListener("click", () => {
  const html = pending;
  pending = null;
  count = 0;
  waiting.hidden = true;
  if (html !== null) show(html);
});
document.addEventListener("toggle", () => settle(), true);
document.addEventListener("selectionchange", () => settle());

// Times move on by themselves; the local time is added to the title.
const spans = [[86400, 129600, "d"], [3600, 5400, "h"], [60, 90, "m"]];
function span(seconds) {
  for (const [size, from, unit] of spans) if (seconds >= from) return `${Math.round(seconds / size)} ${unit}`;
  return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}
function times() {
  for (const one of $$("time[data-rel]")) {
    const at = Date.parse(one.dateTime);
    const ahead = (at - Date.now()) / 1000;
    const text = Math.abs(ahead) < 1 ? "now" : ahead > 0 ? `in ${span(ahead)}` : `${span(-ahead)} ago`;
    if (one.textContent !== text) one.firstChild.data = text;
    if (!one.dataset.local) {
      one.dataset.local = "yes";
      one.title += ` · ${new Date(at).toLocaleString()} here`;
    }
  }
}
setInterval(() => document.hidden || busy() || times(), 1000);

// Copying, with a way for pages that are not served over HTTPS.
document.addEventListener("click", async (event) => {
  const one = event.target.closest?.("[data-copy], [data-copy-text]");
  if (!one) return;
  const text = one.dataset.copyText ?? one.textContent;
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
  say("on", "copied");
});
document.addEventListener("click", (event) => {
  for (const one of $$(".ask[open]")) if (!one.contains(event.target)) one.open = false;
});

// Graphs can be moved and enlarged.
document.addEventListener("wheel", (event) => {
  const svg = event.target.closest?.("svg[data-pan]");
  if (!svg || !event.ctrlKey) return;
  event.preventDefault();
  const box = svg.viewBox.baseVal;
  const by = event.deltaY > 0 ? 1.15 : 1 / 1.15;
  svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width * by} ${box.height * by}`);
}, { passive: false });
document.addEventListener("pointerdown", (event) => {
  const svg = event.target.closest?.("svg[data-pan]");
  if (!svg) return;
  const box = svg.viewBox.baseVal;
  const [x, y, left, top, scale] = [event.clientX, event.clientY, box.x, box.y, box.width / svg.clientWidth];
  const move = (to) => svg.setAttribute("viewBox", `${left - (to.clientX - x) * scale} ${top - (to.clientY - y) * scale} ${box.width} ${box.height}`);
  svg.setPointerCapture(event.pointerId);
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerup", () => svg.removeEventListener("pointermove", move), { once: true });
});

// Keys.
const rows = () => $$("tr[data-row]", live);
const current = () => live.querySelector("tr.at");
let going = 0;

function step(by) {
  const all = rows();
  if (!all.length) return;
  const old = current();
  const next = all[Math.min(Math.max((old ? all.indexOf(old) : by > 0 ? -1 : all.length) + by, 0), all.length - 1)];
  old?.classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a")?.focus({ preventScroll: true });
}

function act(verb) {
  const sheet = document.getElementById(verb === "r" ? "retry" : "cancel");
  if (sheet) {
    sheet.open = true;
    sheet.querySelector("input:not([type=hidden]), select, button")?.focus();
    return;
  }
  const button = live.querySelector(`[data-verb="${verb}"]`);
  if (!button) return;
  const row = current()?.querySelector('input[name="id"]');
  if (!ticked.size && row) ticked.add(row.value);
  showTicks();
  if (ticked.size) button.click();
}

function theme() {
  const all = ["system", "light", "dark"];
  const next = all[(all.indexOf(document.documentElement.dataset.theme) + 1) % 3];
  document.documentElement.dataset.theme = next;
  document.cookie = `holdfast_theme=${next}; path=${base || "/"}; max-age=31536000; samesite=lax`;
  say("on", `theme: ${next}`);
}

const keys = {
  "/": () => document.getElementById("q")?.select(),
  "?": () => (help.open ? help.close() : help.showModal()),
  j: () => step(1),
  k: () => step(-1),
  x: () => current()?.querySelector('input[name="id"]')?.click(),
  r: () => act("r"),
  c: () => act("c"),
  t: theme,
  p: () => {
    paused = !paused;
    if (paused) {
      close();
      say("off", "paused");
    } else {
      open();
      settle();
    }
  },
  g: () => (going = Date.now()),
};

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName) && !/^(checkbox|radio)$/.test(event.target.type);
  if (event.key === "Escape") {
    for (const one of $$(".ask[open]")) one.open = false;
    if (typing) event.target.blur();
    return;
  }
  if ("keysOff" in body.dataset || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (Date.now() - going < 1500 && event.key !== "g") {
    going = 0;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  const does = keys[event.key];
  if (does) {
    event.preventDefault();
    does();
  }
});

// A link to a form on the page opens it.
const wanted = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
if (wanted instanceof HTMLDetailsElement) wanted.open = true;

showTicks();
times();
open();
