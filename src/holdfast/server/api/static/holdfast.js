// The Holdfast client for browsers: start jobs, watch them live, cancel them, download their files.
//
//   import { Holdfast } from "/api/holdfast.js";
//   const holdfast = new Holdfast({ token: () => session.accessToken });
//   const job = await holdfast.start("report", { pages: ["a"] });
//   for await (const { event, data } of holdfast.watch(job.id)) console.log(event, data);
//
// A stream is opened with a ticket, because an EventSource cannot send the token. After a lost connection the browser
// reconnects on its own and receives the events that it missed. If it may not reconnect, this client requests a new
// ticket and continues the stream where it ended.

const EVENTS = ["snapshot", "status", "progress", "task", "artifact", "end"];
const RECONNECT_DELAY_MS = 2000;

export class ProblemError extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `HTTP ${status}`);
    Object.assign(this, { status, field: body.field });
  }
}

export class Holdfast {
  // `token` is a token, or a function that returns one. `base` is the URL path where the API is mounted.
  constructor({ base = new URL("..", import.meta.url).pathname.replace(/\/$/, ""), token = null } = {}) {
    this.base = base;
    this.token = token;
  }

  // Send a request and return the JSON of the response. Throw a ProblemError for an error response.
  async call(method, path, body, headers = {}) {
    const token = typeof this.token === "function" ? await this.token() : this.token;
    if (token) headers.authorization = `Bearer ${token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(this.base + path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
    });
    const content = response.status === 204 ? null : await response.json();
    if (!response.ok) throw new ProblemError(response.status, content || {});
    return content;
  }

  start(type, params = {}, { key = crypto.randomUUID() } = {}) {
    return this.call("POST", "/api/jobs/start", { type, params }, { "idempotency-key": key });
  }

  get(id) { return this.call("GET", `/api/jobs/${id}`); }
  list() { return this.call("GET", "/api/jobs"); }
  cancel(id) { return this.call("DELETE", `/api/jobs/${id}`); }
  retry(id) { return this.call("POST", `/api/jobs/${id}/retry`, {}); }

  // Return a link to a file that works for an hour, for location.href or <a download>.
  async link(artifact) { return (await this.call("GET", `/api/artifacts/${artifact}/link`)).url; }

  watchBatch(id, options = {}) { return this.watch(id, { ...options, kind: "batches" }); }

  // Yield the events of a job until it ends or `signal` is aborted.
  async *watch(id, { signal, kind = "jobs" } = {}) {
    const pending = [];
    let lastEventId = "", wake = () => {}, source = null, closed = false;
    const push = (item) => { pending.push(item); wake(); };
    const open = async () => {
      const ticket = this.token ? (await this.call("POST", `/api/${kind}/${id}/ticket`)).ticket : null;
      if (closed) return;
      const query = new URLSearchParams();
      if (ticket) query.set("ticket", ticket);
      if (lastEventId) query.set("after", lastEventId);
      source = new EventSource(`${this.base}/api/${kind}/${id}/events?${query}`);
      for (const event of EVENTS) {
        source.addEventListener(event, (message) => {
          if (message.lastEventId) lastEventId = message.lastEventId;
          push({ event, data: JSON.parse(message.data) });
        });
      }
      source.onerror = () => {
        if (closed || source.readyState !== EventSource.CLOSED) return; // the browser reconnects on its own
        setTimeout(() => open().catch((error) => push({ error })), RECONNECT_DELAY_MS);
      };
    };
    signal?.addEventListener("abort", () => { closed = true; wake(); });
    try {
      await open();
      while (!closed) {
        while (pending.length) {
          const item = pending.shift();
          if (item.error) throw item.error;
          yield item;
          if (item.event === "end") return;
        }
        await new Promise((resolve) => { wake = resolve; if (pending.length) resolve(); });
      }
    } finally {
      closed = true;
      source?.close();
    }
  }
}
