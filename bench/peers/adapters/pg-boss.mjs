// pg-boss: four pollers with batches of 1000, at its shortest interval; the protocol of protocol.py.
import PgBoss from "pg-boss";

const connectionString = process.env.PEER_DSN;
const [what, text] = process.argv.slice(2);
const count = Number(text);
const atOnce = Number(process.env.PEER_AT_ONCE ?? 0);
const hold = "PEER_HOLD" in process.env;
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

const boss = new PgBoss({ connectionString, max: 10 });
boss.on("error", (problem) => process.stderr.write(String(problem) + "\n"));
await boss.start();
if (what === "install") {
  await boss.createQueue("bench");
} else if (what === "work") {
  const waits = [];
  let handled = 0;
  for (let n = 0; n < 4; n += 1) {
    await boss.work("bench", { batchSize: Math.floor(atOnce / 4) || 1000, pollingIntervalSeconds: 0.5 }, async (jobs) => {
      for (const job of jobs) {
        handled += 1;
        if (handled === 1 || handled === atOnce) say({ reached: handled, at: Date.now() / 1000 });
        if (job.data.sent) waits.push(Date.now() - job.data.sent * 1000);
      }
      if (hold) await new Promise(() => {});
    });
  }
  process.on("SIGTERM", () => {
    say({ handled, waits_ms: waits });
    process.exit(0);
  });
  await new Promise(() => {});
} else {
  const began = process.hrtime.bigint();
  if (what === "bulk") {
    for (let start = 0; start < count; start += 1000) {
      const size = Math.min(1000, count - start);
      await boss.insert(Array.from({ length: size }, () => ({ name: "bench", data: { sent: 0 } })));
    }
  } else {
    for (let n = 0; n < count; n += 1) {
      await boss.send("bench", { sent: what === "paced" ? Date.now() / 1000 : 0 });
      if (what === "paced") await new Promise((done) => setTimeout(done, 25));
    }
  }
  say({ seconds: Number(process.hrtime.bigint() - began) / 1e9 });
}
await boss.stop({ graceful: false });
process.exit(0);
