import {
  confirmAction, createBadge, createButton, createElement, createProgressBar, createTime, find, formatBytes, openDialog,
  openStream, resolvePath, sendRequest, showConnection, showEmptyStateIf, showErrorToast, showToast, startDownload,
  startPage,
} from "./shared.js";

const JOBS_PATH = "/api/v1/my/jobs";
const FILES_PER_PAGE = 50;
const UNFINISHED = ["queued", "running"];
const BADGES = {
  queued: ["Waiting", "waiting"],
  running: ["Running", "active"],
  succeeded: ["Done", "good"],
  partial: ["Partly done", "bad"],
  failed: ["Failed", "bad"],
  cancelled: ["Cancelled", "bad"],
};
const jobs = new Map(); // by id
let items = []; // bookmarks, clips and other work that is not a job
let olderJobs = null;
let olderFiles = null;
let stream = null;

async function loadPage() {
  await Promise.all([loadJobs(), loadFiles(), loadUsage()]);
  stream ??= openStream(`${JOBS_PATH}/stream`, { onEvent: receiveEvent, onState: showConnection });
}

async function loadJobs(before = null) {
  const page = await sendRequest(`${JOBS_PATH}?limit=50${before ? `&before=${before}` : ""}`);
  for (const job of page.jobs) jobs.set(job.id, job);
  if (!before) items = page.items;
  olderJobs = page.next;
  renderJobs();
}

function receiveEvent(name, data) {
  if (name === "jobs") receiveJobs(data.jobs);
  if (name === "items") receiveItems(data.items);
}

function receiveItems(newest) {
  const countUnfinished = () => items.filter((item) => UNFINISHED.includes(item.status)).length;
  const unfinished = countUnfinished();
  items = newest;
  renderJobs();
  if (countUnfinished() < unfinished) reloadFiles();
}

function reloadFiles() {
  Promise.all([loadFiles(), loadUsage()]).catch(showErrorToast);
}

function receiveJobs(changed) {
  const ended = changed.some((job) => !job.canCancel && jobs.get(job.id)?.canCancel !== false);
  for (const job of changed) jobs.set(job.id, job);
  renderJobs();
  // A job that has ended may have saved files.
  if (ended) reloadFiles();
}

function renderJobs() {
  const focusedLabel = document.activeElement?.getAttribute("aria-label");
  const newestFirst = [...jobs.values(), ...items].sort((a, b) => Date.parse(b.createdAt) - Date.parse(a.createdAt));
  find("#jobs").replaceChildren(...newestFirst.map(createJob));
  showEmptyStateIf(!newestFirst.length, "#no-jobs", {
    title: "No jobs yet",
    text: "What you start on the other pages appears here while it runs.",
    icon: "play",
  });
  find("#more-jobs").hidden = !olderJobs;
  // Rows are drawn again with every change. The keyboard focus stays on its button.
  if (focusedLabel) find(`#jobs [aria-label="${CSS.escape(focusedLabel)}"]`)?.focus();
}

function createJob(job) {
  const [text, kind] = BADGES[job.status];
  const name = `${job.title}, ${new Date(job.createdAt).toLocaleString()}`;
  const title = job.page ? createElement("a", { href: resolvePath(job.page) }, job.title)
    : createElement("strong", {}, job.title);
  return createElement("li", { "data-job": job.id },
    createElement("div", { class: "row" },
      createElement("div", { class: "grow" },
        createElement("div", { class: "clip" }, title),
        createElement("div", { class: "row" }, createBadge(text, kind),
          createElement("span", { class: "muted" }, createTime(job.createdAt)))),
      createElement("div", { class: "job-buttons" }, createJobButtons(job, name))),
    UNFINISHED.includes(job.status)
      ? createProgressBar(job.status === "queued" ? 0 : job.percent, "", `Progress of ${name}`) : null,
    createNote(job));
}

function createNote(job) {
  const showsError = job.error && (job.deletePath || !job.canCancel);
  if (showsError) return createElement("div", { class: "bad-text clamp" }, job.error);
  if (job.canCancel && job.message) return createElement("div", { class: "muted clip" }, job.message);
  return null;
}

function createJobButtons(job, name) {
  const button = (text, label, onClick) => createButton({ text, label, kind: "quiet", onClick });
  // An item has the paths of its system; a job has those of the API.
  if (job.deletePath) {
    return [
      job.retryPath ? button("Retry", `Retry ${name}`, () => retryItem(job)) : null,
      button("Delete", `Delete ${name}`, () => deleteItem(job)),
    ];
  }
  return [
    job.canCancel ? button("Cancel", `Cancel ${name}`, () => cancelJob(job)) : null,
    job.canRetry ? button("Retry", `Retry ${name}`, () => retryJob(job)) : null,
    !job.canCancel && job.status !== "cancelled" ? button("Files", `Files of ${name}`, () => showFiles(job)) : null,
  ];
}

async function cancelJob(job) {
  const confirmed = await confirmAction({
    title: "Cancel this job?",
    text: `${job.title} stops. Files that it has not finished are removed.`,
    action: "Cancel job",
  });
  if (!confirmed) return;
  try {
    await sendRequest(`/api/jobs/${job.id}`, "DELETE");
    showToast("The job was cancelled.");
  } catch (error) {
    showErrorToast(error);
  }
}

async function retryJob(job) {
  try {
    await sendRequest(`/api/jobs/${job.id}/retry`, "POST", {});
    showToast("The job runs again.");
  } catch (error) {
    showErrorToast(error);
  }
}

async function retryItem(item) {
  try {
    await sendRequest(item.retryPath, "POST", {});
    showToast("It runs again.");
  } catch (error) {
    showErrorToast(error);
  }
}

// Asks before something is deleted, and shows the error if that fails. Returns whether it was deleted.
async function confirmDeletion(path, { title, text, done }) {
  if (!await confirmAction({ title, text, action: "Delete" })) return false;
  try {
    await sendRequest(path, "DELETE");
    showToast(done);
    return true;
  } catch (error) {
    showErrorToast(error);
    return false;
  }
}

async function deleteItem(item) {
  const deleted = await confirmDeletion(item.deletePath, {
    title: "Delete this?", text: `${item.title} is deleted with its files.`, done: "It was deleted.",
  });
  if (!deleted) return;
  items = items.filter((other) => other.page !== item.page || other.id !== item.id);
  renderJobs();
  reloadFiles();
}

async function deleteFile(file, row) {
  const deleted = await confirmDeletion(`/api/artifacts/${file.id}`, {
    title: "Delete this file?",
    text: `${file.name} is deleted for good. Where it was shown, it is missing from then on.`,
    done: "The file was deleted.",
  });
  if (!deleted) return;
  row.remove();
  reloadFiles();
}

async function showFiles(job) {
  try {
    const { artifacts } = await sendRequest(`/api/jobs/${job.id}/artifacts?limit=200`);
    openDialog({
      title: job.title,
      content: artifacts.length
        ? createElement("ul", { class: "plain" }, artifacts.map(createFile))
        : createElement("p", {}, "This job has no files, or they have expired."),
    });
  } catch (error) {
    showErrorToast(error);
  }
}

async function loadFiles(before = null) {
  const page = await sendRequest(`/api/artifacts?limit=${FILES_PER_PAGE}${before ? `&before=${before}` : ""}`);
  olderFiles = page.next;
  const rows = page.artifacts.map(createFile);
  if (before) find("#files").append(...rows);
  else find("#files").replaceChildren(...rows);
  const empty = !find("#files").children.length;
  showEmptyStateIf(empty, "#no-files", { title: "No files yet", text: "Files of your jobs appear here." });
  find("#more-files").hidden = !olderFiles;
}

function createFile(file) {
  const expiry = file.expires_at ? ` · until ${new Date(file.expires_at).toLocaleDateString()}` : "";
  const row = createElement("li", {},
    createElement("div", { class: "row" },
      createElement("div", { class: "grow" },
        createElement("div", { class: "clip", title: file.name }, file.name),
        createElement("div", { class: "muted" }, formatBytes(file.size), " · ", createTime(file.created_at), expiry)),
      createButton({
        text: "Download",
        kind: "quiet",
        label: `Download ${file.name}`,
        onClick: () => download(file),
      }),
      createButton({
        icon: "trash",
        kind: "quiet",
        label: `Delete ${file.name}`,
        onClick: () => deleteFile(file, row),
      })));
  return row;
}

async function download(file) {
  try {
    const { url } = await sendRequest(`/api/artifacts/${file.id}/link`);
    startDownload(url, file.name.split("/").at(-1));
  } catch (error) {
    showErrorToast(error);
  }
}

async function loadUsage() {
  const usage = await sendRequest("/api/usage");
  find("#quota").replaceChildren(
    createQuota("Space", usage.bytes, formatBytes),
    createQuota("Files", usage.files, String),
    // Jobs are counted only for users who have a limit.
    ...(usage.operations.limit == null ? [] : [createQuota("Jobs started today", usage.operations, String)]));
}

function createQuota(title, { used, limit }, format) {
  const text = limit == null ? format(used) : `${format(used)} of ${format(limit)}`;
  const percent = limit == null ? null : Math.min(100, limit ? (100 * used) / limit : 100);
  return createElement("div", {},
    createElement("div", { class: "muted" }, title),
    createElement("strong", {}, used || limit != null ? text : "0"),
    percent == null ? null : createProgressBar(Math.round(percent), percent >= 90 ? "bad" : "", title));
}

find("#more-jobs").addEventListener("click", () => loadJobs(olderJobs).catch(showErrorToast));
find("#more-files").addEventListener("click", () => loadFiles(olderFiles).catch(showErrorToast));
startPage(loadPage);
