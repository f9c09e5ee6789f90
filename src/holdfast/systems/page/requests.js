// Requests to the API: sign-in, JSON requests, uploads and event streams.

import { createElement, resolvePath } from "./elements.js";

const SIGNED_IN_KEY = "holdfast-signed-in";
const MAX_RECONNECTS = 60;
const MIN_RECONNECT_DELAY_MS = 1000;
const MAX_RECONNECT_DELAY_MS = 30_000;
const HIDDEN_CLOSE_DELAY_MS = 30_000;

// Pages of this application share their sign-in: a cookie that scripts cannot read. Other tabs learn of a sign-out.
const tabs = new BroadcastChannel("holdfast-sign-in");
tabs.addEventListener("message", ({ data }) => {
  if (data.signedOut) location.reload();
});

// Returns whether the user has signed in here. With a cookie of the host application, the user has not.
export const hasSignedIn = () => localStorage.getItem(SIGNED_IN_KEY) !== null;

// Signs in with a token. The page sends it once and forgets it; a session takes its place.
export async function signIn(token) {
  localStorage.removeItem(SIGNED_IN_KEY);
  await fetchPath("/api/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  localStorage.setItem(SIGNED_IN_KEY, "true");
}

// Returns the token in the address (#token=...), or null, and removes it from the address.
export function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

// Ends the session, here and in all other tabs.
export async function signOut() {
  await fetchPath("/api/session", { method: "DELETE" });
  localStorage.removeItem(SIGNED_IN_KEY);
  tabs.postMessage({ signedOut: true });
}

// An error response of the API. `status` is 0 if the server did not answer.
export class ApiError extends Error {
  constructor(status, body) {
    const fields = (body.errors || []).map((error) => `${error.field} ${error.message}`).join("; ");
    super(fields || body.detail || body.title || `The server returned HTTP ${status}.`);
    this.status = status;
  }
}

async function fetchPath(path, options) {
  let response;
  try {
    response = await fetch(resolvePath(path), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "The server does not answer. Check your connection and try again." });
  }
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  return response;
}

// Sends a JSON request and returns the JSON response, or null if it is empty.
export async function sendRequest(path, method = "GET", body = undefined, options = {}) {
  const content = body === undefined ? undefined : JSON.stringify(body);
  const headers = content ? { "Content-Type": "application/json" } : {};
  const response = await fetchPath(path, { method, body: content, headers, signal: options.signal });
  return response.status === 204 ? null : response.json();
}

// Uploads a file or a text and returns the JSON response. `onProgress` receives the percentage that was sent.
export function uploadFile(path, content, { contentType, onProgress, method = "POST" } = {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, resolvePath(path));
    request.setRequestHeader("Content-Type", contentType || content.type || "application/octet-stream");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => {
      if (onProgress && event.lengthComputable) onProgress(Math.round((100 * event.loaded) / event.total));
    });
    request.addEventListener("load", () => {
      if (request.status < 300) resolve(request.response);
      else reject(new ApiError(request.status, request.response || {}));
    });
    request.addEventListener("error", () => {
      reject(new ApiError(0, { detail: "The upload was interrupted. Check your connection and try again." }));
    });
    request.send(content);
  });
}

// Fetches a file as the user and returns a URL that the page can show or download.
export async function fetchObjectUrl(path) {
  const response = await fetchPath(path, {});
  return URL.createObjectURL(await response.blob());
}

// Starts a download of a URL in the browser.
export function startDownload(url, fileName) {
  const link = createElement("a", { href: resolvePath(url), download: fileName });
  document.body.append(link);
  link.click();
  link.remove();
}

// Reads one connection of an event stream until it ends. Returns false if the stream is over (204).
async function readEvents(path, state, signal, onFrame) {
  const headers = state.lastId ? { "Last-Event-ID": state.lastId } : {};
  const response = await fetchPath(path, { headers, signal });
  if (response.status === 204) return false;
  state.onOpen?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const frame = parseFrame(buffer.slice(0, end));
      buffer = buffer.slice(end + 2);
      if (frame.id) state.lastId = frame.id;
      if (frame.event) onFrame(frame.event, JSON.parse(frame.data));
    }
  }
}

function parseFrame(text) {
  const frame = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(": ");
    const name = line.slice(0, colon);
    const value = line.slice(colon + 2);
    if (colon > 0) frame[name] = name === "data" && "data" in frame ? `${frame.data}\n${value}` : value;
  }
  return frame;
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Reads the events of one job until one of `finalEvents`. After a lost connection it continues after the last event.
export async function streamEvents(path, onEvent, finalEvents) {
  const state = { lastId: null };
  const abort = new AbortController();
  let finished = false;
  for (let attempts = 0; attempts < MAX_RECONNECTS && !finished; attempts += 1) {
    try {
      const more = await readEvents(path, state, abort.signal, (event, data) => {
        attempts = 0;
        onEvent(event, data);
        if (finalEvents.includes(event)) {
          finished = true;
          abort.abort();
        }
      });
      if (!more) return;
    } catch (error) {
      if (error instanceof ApiError && error.status) throw error;
    }
    if (!finished) await pause(MIN_RECONNECT_DELAY_MS);
  }
}

// Keeps an event stream open until `close()` is called. It reconnects after the last event, with longer and longer
// pauses, and closes while the tab is hidden. `onState` receives "live", "waiting" or an ApiError (401, 403, 404).
// Events can be missed while a tab is hidden for long, so `onResume` is called when the stream is open again.
export function openStream(path, { onEvent, onState = () => {}, onResume = () => {} }) {
  const state = { lastId: null, onOpen: null };
  let abort = null;
  let closed = false;
  let hiddenTimer = null;

  async function run() {
    const own = new AbortController();
    abort = own;
    let delay = MIN_RECONNECT_DELAY_MS;
    let opened = false;
    state.onOpen = () => {
      delay = MIN_RECONNECT_DELAY_MS;
      onState("live");
      if (opened || state.lastId) onResume();
      opened = true;
    };
    while (!own.signal.aborted) {
      try {
        await readEvents(path, state, own.signal, onEvent);
      } catch (error) {
        if (own.signal.aborted) return;
        if (error instanceof ApiError && [401, 403, 404].includes(error.status)) {
          onState(error);
          return;
        }
      }
      if (own.signal.aborted) return;
      onState("waiting");
      await pause(delay);
      delay = Math.min(delay * 2, MAX_RECONNECT_DELAY_MS);
    }
  }

  function onVisibility() {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => abort?.abort(), HIDDEN_CLOSE_DELAY_MS);
    } else if (!closed && abort?.signal.aborted) {
      run();
    }
  }

  document.addEventListener("visibilitychange", onVisibility);
  run();
  return {
    close() {
      closed = true;
      clearTimeout(hiddenTimer);
      document.removeEventListener("visibilitychange", onVisibility);
      abort?.abort();
    },
  };
}
