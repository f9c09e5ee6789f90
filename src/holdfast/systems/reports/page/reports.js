import { ask, bar, find, make, notice, signedIn, watch } from "./shared.js";

const ROOT = "/api/jobs";
const PHASES = ["calculating", "text", "pdf", "audio", "finalizing"];
let current = null;
let playing = null;
let drawn = -1;

async function load() {
  const { jobs } = await ask(ROOT);
  find("#no-old").hidden = jobs.length > 0;
  find("#old").replaceChildren(...jobs.map((job) => make("li", { class: "row" },
    make("span", { class: "grow" }, new Date(job.createdAt).toLocaleString()),
    make("span", { class: "muted" }, `${job.status} · ${Math.round(job.progress.percent)} %`),
    make("button", { class: "quiet", onclick: () => follow(job.id) }, "Open"))));
}

async function start(event) {
  event.preventDefault();
  notice(null);
  const person = (number) => {
    const born = find(`#born${number}`).value;
    return { name: find(`#name${number}`).value, ...(born ? { birthDate: born } : {}) };
  };
  try {
    const params = { person1: person(1), person2: person(2), systems: ["western", "vedic", "human_design"] };
    const { id } = await ask(`${ROOT}/start`, "POST", { type: "nuclear_v2", params });
    await follow(id);
  } catch (problem) { notice(problem); }
}

async function follow(id) {
  current = id;
  playing = null;
  drawn = -1;
  find("#player").hidden = true;
  find("#report").hidden = false;
  find("#report").scrollIntoView({ block: "nearest" });
  await refresh();
  await watch(`${ROOT}/${id}/stream`, (_, told) => {
    if (current === id) draw(told);
  }, ["complete", "failed", "cancelled"]).catch(notice);
  if (current === id) await refresh();
  await load();
}

// The files and their links are asked for when a document was finished, and not with every step.
async function refresh() {
  const told = await ask(`${ROOT}/${current}`);
  draw(told, true);
  drawFiles(told.artifacts);
}

function draw(told, quiet = false) {
  const { percent, phase, docsComplete, docsTotal, message } = told.progress;
  const ended = ["complete", "failed", "cancelled"].includes(told.status);
  find("#percent").textContent = `${Math.round(percent)} %`;
  find("#docs").textContent = `${docsComplete} of ${docsTotal} documents`;
  find("#message").textContent = told.error || (ended ? told.status : message || told.status);
  find("#cancel").hidden = ended;
  find("#bar").replaceChildren(bar(percent, told.status === "complete" ? "good" : ended ? "bad" : "", "The report"));
  const now = PHASES.indexOf(phase);
  find("#phases").replaceChildren(...PHASES.map((name, place) => make("li", {
    class: told.status === "complete" || place < now ? "done" : place === now && !ended ? "now" : "",
  }, name)));
  if (!quiet && docsComplete !== drawn) {
    drawn = docsComplete;
    refresh().catch(notice);
  }
}

function drawFiles(files) {
  const named = Object.fromEntries(files.map((file) => [file.name, file]));
  find("#chapters").replaceChildren(...Array.from({ length: 16 }, (_, place) => {
    const number = place + 1;
    const sound = named[`chapter${number}.mp3`];
    const pdf = named[`chapter${number}.pdf`];
    return make("li", { class: `${sound || pdf ? "" : "pending"} ${playing === number ? "playing" : ""}` },
      make("span", { class: "number" }, String(number)),
      make("span", {}, (sound || pdf || {}).title || `Chapter ${number}`, sound ? make("span", { class: "muted" }, `  ${clock(sound.duration)}`) : null),
      make("span", { class: "row" },
        sound ? make("button", { class: "quiet", "aria-label": `Play chapter ${number}`, onclick: () => play(number, sound.url) }, "Play") : null,
        pdf ? make("a", { href: pdf.url, target: "_blank", rel: "noopener" }, "PDF") : null));
  }));
  const whole = named["full_nuclear.pdf"];
  find("#whole").hidden = !whole;
  if (whole) find("#whole").replaceChildren(make("a", { href: whole.url, target: "_blank", rel: "noopener" }, `The whole book, ${whole.pages} pages`));
}

function play(number, url) {
  playing = number;
  const player = find("#player");
  player.hidden = false;
  player.src = url;
  player.play().catch(() => {});
  for (const [place, row] of [...find("#chapters").children].entries()) row.classList.toggle("playing", place + 1 === number);
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")}`;

find("#new").addEventListener("submit", start);
find("#cancel").addEventListener("click", () => ask(`${ROOT}/${current}`, "DELETE").then(refresh).catch(notice));
signedIn(load);
