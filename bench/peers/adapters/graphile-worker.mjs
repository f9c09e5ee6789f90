// graphile-worker: 24 at once, local queue of 500, completions in batches; the protocol of protocol.py.
import { run, makeWorkerUtils } from "graphile-worker";

const connectionString = process.env.PEER_DSN;
const [what, text] = process.argv.slice(2);
const count = Number(text);
const atOnce = Number(process.env.PEER_AT_ONCE ?? 0);
const hold = "PEER_HOLD" in process.env;
const work = "PEER_WORK" in process.env;
const text1k = "x".repeat(1000);
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

if (what === "work") {
  const waits = [];
  let handled = 0;
  const { Logger } = await import("graphile-worker");
  const runner = await run({
    connectionString,
    noHandleSignals: true,
    logger: new Logger(() => () => {}),
    preset: {
      worker: {
        concurrentJobs: atOnce || 24,
        // One that holds all it can must not keep more in its local queue.
        ...(hold ? {} : { localQueue: { size: 500 } }),
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    taskList: {
      noop: async (payload) => {
        handled += 1;
        if (handled === 1 || handled === atOnce) say({ reached: handled, at: Date.now() / 1000 });
        if (payload.sent) waits.push(Date.now() - payload.sent * 1000);
        if (hold) await new Promise(() => {});
        if (work) {
          await new Promise((done) => setTimeout(done, 5));
          return payload.text; // it stores no results
        }
      },
    },
  });
  process.on("SIGTERM", () => {
    say({ handled, waits_ms: waits });
    process.exit(0);
  });
  await runner.promise;
} else {
  const utils = await makeWorkerUtils({ connectionString });
  await utils.migrate();
  if (what !== "install") {
    const began = process.hrtime.bigint();
    if (what === "bulk") {
      for (let start = 0; start < count; start += 1000) {
        const size = Math.min(1000, count - start);
        await utils.addJobs(Array.from({ length: size }, () => ({ identifier: "noop", payload: work ? { text: text1k } : { sent: 0 } })));
      }
    } else {
      for (let n = 0; n < count; n += 1) {
        await utils.addJob("noop", { sent: what === "paced" ? Date.now() / 1000 : 0 });
        if (what === "paced") await new Promise((done) => setTimeout(done, 25));
      }
    }
    say({ seconds: Number(process.hrtime.bigint() - began) / 1e9 });
  }
  await utils.release();
}
