import {
  createElement, createProgressBar, fetchObjectUrl, find, formatBytes, sendRequest, showError, startDownload, startPage,
  streamEvents,
} from "./shared.js";

const ROOT = "/api/v1/export";
const MAX_DOCUMENTS = 10;
const selectedIds = new Set();
let previewedId = null;

async function loadPage() {
  const { documents, templates } = await sendRequest(`${ROOT}/documents`);
  renderDocuments(documents);
  if (!find("#templates input")) renderTemplates(templates);
  await loadHistory();
}

function renderDocuments(documents) {
  find("#no-documents").hidden = documents.length > 0;
  find("#documents").replaceChildren(...documents.map((item) => createElement("li", {},
    createElement("label", { class: "row" },
      createElement("input", {
        type: "checkbox",
        value: item.id,
        onchange: (event) => selectDocument(item.id, event.target.checked),
      }),
      createElement("span", { class: "grow clip" }, item.title),
      createElement("span", { class: "muted" }, `v${item.version}`)))));
}

function renderTemplates(templates) {
  find("#templates").append(...templates.map((name, index) => createElement("label", {},
    createElement("input", {
      type: "radio",
      name: "template",
      value: name,
      checked: index === 0,
      onchange: showPreview,
    }),
    name)));
}

const getTemplate = () => find("#templates input:checked").value;

function selectDocument(id, selected) {
  if (selected) selectedIds.add(id);
  else selectedIds.delete(id);
  previewedId = selected ? id : [...selectedIds].at(-1) || null;
  const count = selectedIds.size;
  find("#export").disabled = count === 0 || count > MAX_DOCUMENTS;
  find("#export").textContent = count > 1 ? `Export ${count} documents` : "Export";
  showPreview();
}

async function showPreview() {
  const preview = find("#preview");
  const hasPreview = previewedId && getTemplate() !== "paper";
  find("#no-preview").textContent = previewedId ? "This template has no preview." : "Select a document.";
  find("#no-preview").hidden = Boolean(hasPreview);
  preview.hidden = true;
  if (!hasPreview) return;
  try {
    preview.src = await fetchObjectUrl(`${ROOT}/preview/${previewedId}?template=${getTemplate()}`);
    preview.hidden = false;
  } catch (error) {
    find("#no-preview").textContent = error.message;
    find("#no-preview").hidden = false;
  }
}

function readOptions() {
  const margin = Number(find("#margins").value);
  return {
    templateSlug: getTemplate(),
    options: {
      pageSize: find("#page-size").value,
      quality: find("#quality").value,
      colorMode: find("#color").value,
      margins: { top: margin, bottom: margin, left: margin, right: margin },
    },
  };
}

async function startExport() {
  showError(null);
  find("#export").disabled = true;
  try {
    const { batchId } = await sendRequest(`${ROOT}/batch`, "POST", { documentIds: [...selectedIds], ...readOptions() });
    for (const checkbox of document.querySelectorAll("#documents input:checked")) checkbox.checked = false;
    selectedIds.clear();
    find("#export").textContent = "Export";
    const finalEvents = ["completed", "failed", "cancelled"];
    await streamEvents(`${ROOT}/batch/${batchId}/stream`, (_, batch) => renderBatch(batch), finalEvents);
    await loadHistory();
  } catch (error) {
    showError(error);
    find("#export").disabled = selectedIds.size === 0;
  }
}

function renderBatch(batch) {
  find("#no-exports").hidden = true;
  const finished = batch.status !== "processing";
  const zipButton = finished && batch.completedCount > 1
    ? createElement("button", { class: "quiet", onclick: () => downloadZip(batch.batchId) }, "Download all as ZIP")
    : null;
  const count = createElement("strong", { class: "grow" }, `${batch.completedCount} of ${batch.totalCount}`);
  find("#batch").replaceChildren(
    createElement("div", { class: "row" }, count, zipButton),
    createProgressBar(batch.progress, barKind(batch.status), "All documents"));
  find("#exports").replaceChildren(...batch.jobs.map((job) => createElement("li", {},
    createElement("div", { class: "row" },
      createElement("span", { class: "grow clip" }, job.title),
      createExportAction(job)),
    createProgressBar(job.status === "completed" ? 100 : job.progress, barKind(job.status), job.title),
    job.error ? createElement("p", { class: "bad-text" }, job.error) : null)));
}

const hasFailed = (status) => status === "failed" || status === "cancelled";

function barKind(status) {
  if (status === "completed") return "good";
  return hasFailed(status) ? "bad" : "";
}

function createExportAction(job) {
  if (job.status === "completed") {
    const download = () => downloadFile(`${ROOT}/download/${job.jobId}`);
    return createElement("button", { class: "quiet", onclick: download }, "Download");
  }
  if (hasFailed(job.status)) return createElement("span", { class: "muted" }, job.status);
  const cancel = () => sendRequest(`${ROOT}/job/${job.jobId}`, "DELETE").catch(showError);
  return createElement("button", { class: "quiet", onclick: cancel }, "Cancel");
}

async function downloadFile(path) {
  try {
    const { url, fileName } = await sendRequest(`${path}?as=json`);
    startDownload(url, fileName);
    await loadHistory();
  } catch (error) {
    showError(error);
  }
}

async function downloadZip(batchId) {
  try {
    const url = await fetchObjectUrl(`${ROOT}/batch/${batchId}/download?partial=true`);
    startDownload(url, `resumes-${batchId}.zip`);
  } catch (error) {
    showError(error);
  }
}

async function loadHistory() {
  const { history, storage, today } = await sendRequest(`${ROOT}/history`);
  const storageUsage = `${formatBytes(storage.used)} of ${formatBytes(storage.limit)} used`;
  find("#usage").textContent = `${storageUsage} · ${today.used} of ${today.limit} exports today`;
  find("#no-history").hidden = history.length > 0;
  find("#history").replaceChildren(...history.map((entry) => createElement("li", { class: "row" },
    createElement("div", { class: "grow" },
      createElement("div", { class: "clip" }, entry.fileName),
      createElement("div", { class: "muted" }, formatEntry(entry))),
    createElement("button", {
      class: "quiet",
      onclick: () => downloadFile(`${ROOT}/download/${entry.id}`),
    }, "Download"),
    createElement("button", {
      class: "quiet",
      "aria-label": `Delete ${entry.fileName}`,
      onclick: () => deleteEntry(entry.id),
    }, "Delete"))));
}

function formatEntry(entry) {
  const downloads = `${entry.downloadCount} ${entry.downloadCount === 1 ? "download" : "downloads"}`;
  const expiry = `expires ${new Date(entry.expiresAt).toLocaleDateString()}`;
  return `${entry.templateSlug} · ${formatBytes(entry.fileSize)} · ${downloads} · ${expiry}`;
}

async function deleteEntry(id) {
  await sendRequest(`${ROOT}/history/${id}`, "DELETE").catch(showError);
  await loadHistory();
}

find("#export").addEventListener("click", startExport);
find("#add-samples").addEventListener("click", () => {
  sendRequest(`${ROOT}/samples`, "POST").then(loadPage).catch(showError);
});
startPage(loadPage);
