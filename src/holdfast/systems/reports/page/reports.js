import {
  createElement, createProgressBar, find, sendRequest, showError, startPage, streamEvents,
} from "./shared.js";

const ROOT = "/api/jobs";
const PHASES = ["calculating", "text", "pdf", "audio", "finalizing"];
const FINAL_STATUSES = ["complete", "failed", "cancelled"];
const CHAPTER_COUNT = 16;
let shownId = null;
let playingChapter = null;
let shownDocumentCount = -1;

async function loadPage() {
  const reports = await loadReports();
  // A report that runs is shown at once, also if it was started in another tab.
  const running = reports.find((report) => !FINAL_STATUSES.includes(report.status));
  if (running && shownId === null) showReport(running.id).catch(showError);
}

async function loadReports() {
  const { jobs } = await sendRequest(ROOT);
  find("#no-reports").hidden = jobs.length > 0;
  find("#reports").replaceChildren(...jobs.map((job) => createElement("li", { class: "row" },
    createElement("span", { class: "grow" }, new Date(job.createdAt).toLocaleString()),
    createElement("span", { class: "muted" }, `${job.status} · ${Math.round(job.progress.percent)} %`),
    createElement("button", { class: "quiet", onclick: () => showReport(job.id) }, "Open"))));
  return jobs;
}

function fillSample() {
  const people = [["Amara Okafor", "1990-06-21"], ["Jonas Weber", "1988-11-03"]];
  for (const [index, [name, birthDate]] of people.entries()) {
    find(`#name${index + 1}`).value = name;
    find(`#birth-date${index + 1}`).value = birthDate;
  }
}

function readPerson(number) {
  const birthDate = find(`#birth-date${number}`).value;
  return { name: find(`#name${number}`).value, ...(birthDate ? { birthDate } : {}) };
}

async function startReport(event) {
  event.preventDefault();
  showError(null);
  try {
    const params = { person1: readPerson(1), person2: readPerson(2), systems: ["western", "vedic", "human_design"] };
    const { id } = await sendRequest(`${ROOT}/start`, "POST", { type: "nuclear_v2", params });
    await Promise.all([showReport(id), loadReports()]);
  } catch (error) {
    showError(error);
  }
}

async function showReport(id) {
  shownId = id;
  playingChapter = null;
  shownDocumentCount = -1;
  find("#player").hidden = true;
  find("#report").hidden = false;
  find("#report").scrollIntoView({ block: "nearest" });
  await loadReport();
  const onEvent = (_, report) => {
    if (shownId === id) renderProgress(report);
  };
  await streamEvents(`${ROOT}/${id}/stream`, onEvent, FINAL_STATUSES).catch(showError);
  if (shownId === id) await loadReport();
  await loadReports();
}

// Files and their links are loaded when a document is complete, not with every progress event.
async function loadReport() {
  const report = await sendRequest(`${ROOT}/${shownId}`);
  renderProgress(report, false);
  renderFiles(report.artifacts);
}

function renderProgress(report, loadNewFiles = true) {
  const { percent, phase, docsComplete, docsTotal, message } = report.progress;
  const finished = FINAL_STATUSES.includes(report.status);
  const complete = report.status === "complete";
  find("#percent").textContent = `${Math.round(percent)} %`;
  find("#document-count").textContent = `${docsComplete} of ${docsTotal} documents`;
  find("#message").textContent = report.error || (finished ? report.status : message || report.status);
  find("#cancel").hidden = finished;
  find("#retry").hidden = !finished || complete;
  const failedKind = finished ? "bad" : "";
  find("#progress").replaceChildren(createProgressBar(percent, complete ? "good" : failedKind, "Report"));
  const current = PHASES.indexOf(phase);
  find("#phases").replaceChildren(...PHASES.map((name, index) => {
    const done = complete || index < current;
    const running = index === current && !finished;
    return createElement("li", { class: done ? "done" : running ? "running" : "" }, name);
  }));
  if (loadNewFiles && docsComplete !== shownDocumentCount) {
    shownDocumentCount = docsComplete;
    loadReport().catch(showError);
  }
}

function renderFiles(files) {
  const filesByName = Object.fromEntries(files.map((file) => [file.name, file]));
  find("#chapters").replaceChildren(...Array.from({ length: CHAPTER_COUNT }, (_, index) => {
    const number = index + 1;
    return createChapter(number, filesByName[`chapter${number}.mp3`], filesByName[`chapter${number}.pdf`]);
  }));
  const book = filesByName["full_nuclear.pdf"];
  find("#book").hidden = !book;
  if (book) find("#book").replaceChildren(createFileLink(book, `Complete book, ${book.pages} pages`));
}

function createChapter(number, recording, pdf) {
  const title = (recording || pdf || {}).title || `Chapter ${number}`;
  const classes = [recording || pdf ? "" : "pending", playingChapter === number ? "playing" : ""];
  const duration = recording
    ? createElement("span", { class: "muted" }, `  ${formatDuration(recording.duration)}`)
    : null;
  const playButton = recording
    ? createElement("button", {
      class: "quiet",
      "aria-label": `Play chapter ${number}`,
      onclick: () => playChapter(number, recording.url),
    }, "Play")
    : null;
  return createElement("li", { class: classes.join(" ") },
    createElement("span", { class: "number" }, String(number)),
    createElement("span", {}, title, duration),
    createElement("span", { class: "row" }, playButton, pdf ? createFileLink(pdf, "PDF") : null));
}

function createFileLink(file, text) {
  return createElement("a", { href: file.url, target: "_blank", rel: "noopener" }, text);
}

function playChapter(number, url) {
  playingChapter = number;
  const player = find("#player");
  player.hidden = false;
  player.src = url;
  player.play().catch(() => {});
  for (const [index, chapter] of [...find("#chapters").children].entries()) {
    chapter.classList.toggle("playing", index + 1 === number);
  }
}

function formatDuration(seconds) {
  return `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")}`;
}

find("#new-report").addEventListener("submit", startReport);
find("#cancel").addEventListener("click", () => {
  sendRequest(`${ROOT}/${shownId}`, "DELETE").then(loadReport).catch(showError);
});
find("#retry").addEventListener("click", () => {
  sendRequest(`${ROOT}/${shownId}/retry`, "POST", {}).then(() => showReport(shownId)).catch(showError);
});
find("#fill-sample").addEventListener("click", fillSample);
startPage(loadPage);
