// Holdfast in a browser: start jobs, watch them live, cancel them, fetch their files.
//
//   import { Holdfast } from "/api/holdfast.js";
//   const work = new Holdfast({ token: () => session.accessToken });
//   const job = await work.start("report", { pages: ["a"] });
//   for await (const { event, data } of work.watch(job.id)) console.log(event, data);
//
// A stream is opened with a ticket, because an EventSource cannot send the token. After a cut the browser comes back by
// itself and is told what it missed; when it may not, a new ticket is fetched and the stream goes on where it was.

const EVENTS = ["snapshot", "state", "progress", "task", "artifact", "end"];

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `HTTP ${status}`);
    Object.assign(this, { status, field: body.field });
  }
}

export class Holdfast {
  constructor({ base = new URL("..", import.meta.url).pathname.replace(/\/$/, ""), token = null } = {}) {
    this.base = base;
    this.token = token;
  }

  async call(method, path, body, headers = {}) {
    const token = typeof this.token === "function" ? await this.token() : this.token;
    if (token) headers.authorization = `Bearer ${token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const answer = await fetch(this.base + path, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body),
    });
    const found = answer.status === 204 ? null : await answer.json();
    if (!answer.ok) throw new Problem(answer.status, found || {});
    return found;
  }

  start(type, params = {}, { key = crypto.randomUUID() } = {}) {
    return this.call("POST", "/api/jobs/start", { type, params }, { "idempotency-key": key });
  }

  get(id) { return this.call("GET", `/api/jobs/${id}`); }
  list() { return this.call("GET", "/api/jobs"); }
  cancel(id) { return this.call("DELETE", `/api/jobs/${id}`); }
  retry(id) { return this.call("POST", `/api/jobs/${id}/retry`, {}); }

  // A link that works for some minutes, for location.href or an <a download>.
  async link(artifact) { return (await this.call("GET", `/api/artifacts/${artifact}/link`)).url; }

  watchBatch(id, options = {}) { return this.watch(id, { ...options, kind: "batches" }); }

  async *watch(id, { signal, kind = "jobs" } = {}) {
    const waiting = [];
    let last = "", wake = () => {}, source = null, ended = false;
    const put = (item) => { waiting.push(item); wake(); };
    const open = async () => {
      const ticket = this.token ? (await this.call("POST", `/api/${kind}/${id}/ticket`)).ticket : null;
      if (ended) return;
      const query = new URLSearchParams();
      if (ticket) query.set("ticket", ticket);
      if (last) query.set("after", last);
      source = new EventSource(`${this.base}/api/${kind}/${id}/events?${query}`);
      for (const event of EVENTS) {
        source.addEventListener(event, (message) => {
          if (message.lastEventId) last = message.lastEventId;
          put({ event, data: JSON.parse(message.data) });
        });
      }
      source.onerror = () => {
        if (ended || source.readyState !== EventSource.CLOSED) return; // it comes back by itself
        setTimeout(() => open().catch((problem) => put({ problem })), 2000);
      };
    };
    signal?.addEventListener("abort", () => { ended = true; wake(); });
    try {
      await open();
      while (!ended) {
        while (waiting.length) {
          const next = waiting.shift();
          if (next.problem) throw next.problem;
          yield next;
          if (next.event === "end") return;
        }
        await new Promise((resolve) => { wake = resolve; if (waiting.length) resolve(); });
      }
    } finally {
      ended = true;
      source?.close();
    }
  }
}
