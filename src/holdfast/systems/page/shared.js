// What the pages of the systems share: who is signed in, requests, and event streams.

const KEPT = "holdfast-token";

export function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEPT);
}

export function sign(out) {
  if (out) sessionStorage.setItem(KEPT, out); else sessionStorage.removeItem(KEPT);
}

function headers(more = {}) {
  const shown = token();
  return shown ? { Authorization: `Bearer ${shown}`, ...more } : more;
}

export class Refused extends Error {
  constructor(status, body) {
    const fields = (body.errors || []).map((each) => `${each.field} ${each.message}`).join("; ");
    super(fields || body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
  }
}

export async function ask(path, method = "GET", body) {
  const sent = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, {
    method, body: sent, headers: headers(sent ? { "Content-Type": "application/json" } : {}),
  });
  if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
  return response.status === 204 ? null : response.json();
}

export async function image(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw new Refused(response.status, {});
  return URL.createObjectURL(await response.blob());
}

// Server-sent events with a header, which EventSource cannot send. Comes back by itself after a cut, from where it was.
export async function watch(path, told, ends) {
  let last = null;
  for (let tries = 0; tries < 60; tries += 1) {
    try {
      const response = await fetch(path, { headers: headers(last ? { "Last-Event-ID": last } : {}) });
      if (response.status === 204) return;
      if (!response.ok) throw new Refused(response.status, await response.json().catch(() => ({})));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          const frame = Object.fromEntries(text.slice(0, end).split("\n").map((line) => {
            const colon = line.indexOf(": ");
            return [line.slice(0, colon), line.slice(colon + 2)];
          }));
          text = text.slice(end + 2);
          if (frame.id) last = frame.id;
          if (frame.event) told(frame.event, JSON.parse(frame.data));
          if (ends.includes(frame.event)) return;
          tries = 0;
        }
      }
    } catch (problem) {
      if (problem instanceof Refused) throw problem;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

export function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const find = (selector) => document.querySelector(selector);

export function bar(percent, kind = "", label = "Progress") {
  const inner = make("i");
  inner.style.width = `${percent}%`;
  return make("div", {
    class: `bar ${kind}`, role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent, "aria-label": label,
  }, inner);
}

export const bytes = (size) => size < 1048576 ? `${Math.max(1, Math.round(size / 1024))} kB` : `${(size / 1048576).toFixed(1)} MB`;

export function notice(problem) {
  const place = find("#notice");
  place.hidden = !problem;
  place.textContent = problem ? problem.message || String(problem) : "";
}

// Shows the sign-in card until there is a token that works, then runs the page.
export async function signedIn(run) {
  const door = find("#door");
  const enter = async () => {
    try {
      await run();
      door.hidden = true;
      find("#inside").hidden = false;
      notice(null);
    } catch (problem) {
      door.hidden = false;
      if (problem.status !== 401 || token()) notice(problem);
    }
  };
  find("#enter").addEventListener("submit", (event) => {
    event.preventDefault();
    sign(find("#token").value.trim());
    enter();
  });
  await enter();
}
