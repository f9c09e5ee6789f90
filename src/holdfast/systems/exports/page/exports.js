import { ask, bar, bytes, find, image, make, notice, signedIn, watch } from "./shared.js";

const ROOT = "/api/v1/export";
const chosen = new Set();
let looked = null;

async function load() {
  const { documents, templates } = await ask(`${ROOT}/documents`);
  drawDocuments(documents);
  if (!find("#templates input")) drawTemplates(templates);
  await loadHistory();
}

function drawDocuments(documents) {
  find("#none").hidden = documents.length > 0;
  find("#documents").replaceChildren(...documents.map((each) => make("li", {},
    make("label", { class: "row" },
      make("input", { type: "checkbox", value: each.id, onchange: (event) => choose(each.id, event.target.checked) }),
      make("span", { class: "grow clip" }, each.title),
      make("span", { class: "muted" }, `v${each.version}`)))));
}

function drawTemplates(templates) {
  find("#templates").append(...templates.map((name, place) => make("label", {},
    make("input", { type: "radio", name: "template", value: name, checked: place === 0, onchange: look }), name)));
}

const template = () => find("#templates input:checked").value;

function choose(id, on) {
  if (on) chosen.add(id); else chosen.delete(id);
  looked = on ? id : [...chosen].at(-1) || null;
  const count = chosen.size;
  find("#export").disabled = count === 0 || count > 10;
  find("#export").textContent = count > 1 ? `Export ${count} documents` : "Export";
  look();
}

async function look() {
  const picture = find("#preview");
  const shown = looked && template() !== "paper";
  find("#no-preview").textContent = looked ? "This template has no preview." : "Choose a document.";
  find("#no-preview").hidden = Boolean(shown);
  picture.hidden = true;
  if (!shown) return;
  try {
    picture.src = await image(`${ROOT}/preview/${looked}?template=${template()}`);
    picture.hidden = false;
  } catch (problem) {
    find("#no-preview").textContent = problem.message;
    find("#no-preview").hidden = false;
  }
}

function wanted() {
  const margin = Number(find("#margins").value);
  return {
    templateSlug: template(),
    options: {
      pageSize: find("#page-size").value, quality: find("#quality").value, colorMode: find("#color").value,
      margins: { top: margin, bottom: margin, left: margin, right: margin },
    },
  };
}

async function start() {
  notice(null);
  find("#export").disabled = true;
  try {
    const batch = await ask(`${ROOT}/batch`, "POST", { documentIds: [...chosen], ...wanted() });
    for (const box of document.querySelectorAll("#documents input:checked")) box.checked = false;
    chosen.clear();
    find("#export").textContent = "Export";
    await watch(`${ROOT}/batch/${batch.batchId}/stream`, (_, told) => drawBatch(told), ["completed"]);
    await loadHistory();
  } catch (problem) {
    notice(problem);
    find("#export").disabled = chosen.size === 0;
  }
}

function drawBatch(told) {
  find("#idle").hidden = true;
  const done = told.status !== "processing";
  const zip = done && told.completedCount > 1
    ? make("button", { class: "quiet", onclick: () => fetchZip(told.batchId) }, "All as ZIP") : null;
  find("#batch").replaceChildren(
    make("div", { class: "row" }, make("strong", { class: "grow" }, `${told.completedCount} of ${told.totalCount}`), zip),
    bar(told.progress, kind(told.status), "All documents"));
  find("#running").replaceChildren(...told.jobs.map((job) => make("li", {},
    make("div", { class: "row" }, make("span", { class: "grow clip" }, job.title), state(job)),
    bar(job.status === "completed" ? 100 : job.progress, kind(job.status), job.title),
    job.error ? make("p", { class: "bad-text" }, job.error) : null)));
}

const kind = (status) => status === "completed" ? "good" : status === "failed" || status === "cancelled" ? "bad" : "";

function state(job) {
  if (job.status === "completed") return make("button", { class: "quiet", onclick: () => download(job.resultUrl) }, "Download");
  if (job.status === "failed" || job.status === "cancelled") return make("span", { class: "muted" }, job.status);
  return make("button", { class: "quiet", onclick: () => ask(`${ROOT}/job/${job.jobId}`, "DELETE").catch(notice) }, "Cancel");
}

async function download(path) {
  try {
    const { url, fileName } = await ask(`${path}?as=json`);
    const link = make("a", { href: url, download: fileName });
    document.body.append(link);
    link.click();
    link.remove();
    await loadHistory();
  } catch (problem) { notice(problem); }
}

async function fetchZip(batch) {
  try {
    const link = make("a", { href: await image(`${ROOT}/batch/${batch}/download?partial=true`), download: `resumes-${batch}.zip` });
    document.body.append(link);
    link.click();
    link.remove();
  } catch (problem) { notice(problem); }
}

async function loadHistory() {
  const { history, storage, today } = await ask(`${ROOT}/history`);
  find("#usage").textContent = `${bytes(storage.used)} of ${bytes(storage.limit)} · ${today.used} of ${today.limit} today`;
  find("#no-history").hidden = history.length > 0;
  find("#history").replaceChildren(...history.map((each) => make("li", { class: "row" },
    make("div", { class: "grow" },
      make("div", { class: "clip" }, each.fileName),
      make("div", { class: "muted" }, `${each.templateSlug} · ${bytes(each.fileSize)} · ${each.downloadCount} downloads · until ${new Date(each.expiresAt).toLocaleDateString()}`)),
    make("button", { class: "quiet", onclick: () => download(`${ROOT}/download/${each.id}`) }, "Download"),
    make("button", { class: "quiet", "aria-label": `Delete ${each.fileName}`, onclick: () => forget(each.id) }, "Delete"))));
}

async function forget(id) {
  await ask(`${ROOT}/history/${id}`, "DELETE").catch(notice);
  await loadHistory();
}

find("#export").addEventListener("click", start);
find("#samples").addEventListener("click", () => ask(`${ROOT}/samples`, "POST").then(load).catch(notice));
signedIn(load);
