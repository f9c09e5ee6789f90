// Functions that the pages of all systems share: sign-in, requests, event streams, and elements.

const TOKEN_KEY = "holdfast-token";
const MAX_RECONNECTS = 60;
const RECONNECT_DELAY_MS = 1000;

// Returns the token of the user. A token in the address (#token=...) is stored and removed from the address.
export function getToken() {
  const tokenInAddress = new URLSearchParams(location.hash.slice(1)).get("token");
  if (tokenInAddress) {
    sessionStorage.setItem(TOKEN_KEY, tokenInAddress);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

function createHeaders(headers = {}) {
  const token = getToken();
  return token ? { Authorization: `Bearer ${token}`, ...headers } : headers;
}

// An error response of the API.
export class ApiError extends Error {
  constructor(status, body) {
    const fields = (body.errors || []).map((error) => `${error.field} ${error.message}`).join("; ");
    super(fields || body.detail || body.title || `The server returned HTTP ${status}.`);
    this.status = status;
  }
}

export async function sendRequest(path, method = "GET", body) {
  const content = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, {
    method,
    body: content,
    headers: createHeaders(content ? { "Content-Type": "application/json" } : {}),
  });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  return response.status === 204 ? null : response.json();
}

// Fetches a file with the token and returns a URL that the page can show or download.
export async function fetchObjectUrl(path) {
  const response = await fetch(path, { headers: createHeaders() });
  if (!response.ok) throw new ApiError(response.status, {});
  return URL.createObjectURL(await response.blob());
}

// Reads server-sent events with fetch, because EventSource cannot send the token in a header. After a lost
// connection it reconnects and continues after the last event.
export async function streamEvents(path, onEvent, finalEvents) {
  let lastId = null;
  for (let attempts = 0; attempts < MAX_RECONNECTS; attempts += 1) {
    try {
      const response = await fetch(path, { headers: createHeaders(lastId ? { "Last-Event-ID": lastId } : {}) });
      if (response.status === 204) return;
      if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let buffer = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        buffer += value;
        let end;
        while ((end = buffer.indexOf("\n\n")) >= 0) {
          const frame = parseFrame(buffer.slice(0, end));
          buffer = buffer.slice(end + 2);
          if (frame.id) lastId = frame.id;
          if (frame.event) onEvent(frame.event, JSON.parse(frame.data));
          if (finalEvents.includes(frame.event)) return;
          attempts = 0;
        }
      }
    } catch (error) {
      if (error instanceof ApiError) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, RECONNECT_DELAY_MS));
  }
}

function parseFrame(text) {
  return Object.fromEntries(text.split("\n").map((line) => {
    const colon = line.indexOf(": ");
    return [line.slice(0, colon), line.slice(colon + 2)];
  }));
}

export function createElement(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const find = (selector) => document.querySelector(selector);

export function createProgressBar(percent, kind = "", label = "Progress") {
  const fill = createElement("i");
  fill.style.width = `${percent}%`;
  return createElement("div", {
    class: `bar ${kind}`,
    role: "progressbar",
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuenow": percent,
    "aria-label": label,
  }, fill);
}

export function formatBytes(size) {
  return size < 1048576 ? `${Math.max(1, Math.round(size / 1024))} kB` : `${(size / 1048576).toFixed(1)} MB`;
}

// Starts a download of a URL in the browser.
export function startDownload(url, fileName) {
  const link = createElement("a", { href: url, download: fileName });
  document.body.append(link);
  link.click();
  link.remove();
}

// Shows an error at the top of the page. Without an error, hides the last one.
export function showError(error) {
  const notice = find("#notice");
  notice.hidden = !error;
  notice.textContent = error ? error.message || String(error) : "";
}

// Loads the page. Shows the sign-in form until the user has entered a valid token.
export async function startPage(load) {
  const tryToLoad = async () => {
    try {
      await load();
      find("#sign-in").hidden = true;
      find("#content").hidden = false;
      showError(null);
    } catch (error) {
      find("#sign-in").hidden = false;
      if (error.status !== 401 || getToken()) showError(error);
    }
  };
  find("#sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(find("#token").value.trim());
    tryToLoad();
  });
  await tryToLoad();
}
