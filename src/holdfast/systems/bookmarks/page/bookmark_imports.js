// Imports: a dialog for a browser's bookmarks file or a list of URLs, and the progress of a running import.

import {
  createButton, createElement, createProgressBar, find, openDialog, sendRequest, uploadFile,
} from "./shared.js";

const ROOT = "/api/v1/bookmarks/import";
const STORED_IMPORT_KEY = "holdfast-bookmark-import";
const POLL_INTERVAL_MS = 1500;
const MAX_FILE_BYTES = 10 * 1024 * 1024;

// Opens the dialog. `onStarted` is called when the bookmarks of the import have been saved.
export function openImportDialog({ text = "", onStarted }) {
  const types = ".html,.htm,.txt,text/html,text/plain";
  const file = createElement("input", { type: "file", id: "import-file", accept: types });
  const urls = createElement("textarea", {
    id: "import-urls", rows: 7, placeholder: "https://example.com/", spellcheck: "false",
  });
  urls.value = text;
  const problem = createElement("p", { class: "bad-text", role: "alert", hidden: true });
  const place = createElement("div", { class: "upload-progress" });
  const start = createElement("button", { id: "start-import" }, "Import");
  const form = createElement("form", { id: "import-form", novalidate: true },
    createElement("label", { class: "field" }, "Bookmarks file of a browser", file),
    createElement("p", { class: "or muted" }, "or"),
    createElement("label", { class: "field" }, "Links, one in each line (up to 1,000)", urls),
    problem,
    place,
    createElement("div", { class: "dialog-buttons" },
      createButton({ text: "Cancel", kind: "secondary", onClick: () => dialog.close() }), start));
  const showProblem = (message) => {
    problem.hidden = !message;
    problem.textContent = message;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    showProblem("");
    const content = file.files[0] || urls.value.trim();
    if (!content) return showProblem("Choose a file or paste links.");
    if (content.size > MAX_FILE_BYTES) return showProblem("The file is larger than 10 MB.");
    start.disabled = true;
    try {
      const progress = await uploadFile(ROOT, content, {
        contentType: /\.html?$/i.test(content.name || "") ? "text/html" : "text/plain",
        onProgress: (percent) => place.replaceChildren(createProgressBar(percent, "", "Upload")),
      });
      dialog.close();
      followImport(progress.id, progress);
      onStarted();
    } catch (error) {
      place.replaceChildren();
      showProblem(error.message);
      start.disabled = false;
    }
    return undefined;
  });
  const dialog = openDialog({ title: "Import bookmarks", kind: "small", content: form });
  (text ? urls : file).focus();
}

// Goes on to show an import that was running when the page was loaded.
export function resumeImport() {
  const id = sessionStorage.getItem(STORED_IMPORT_KEY);
  if (id) followImport(id, null);
}

async function followImport(id, progress) {
  sessionStorage.setItem(STORED_IMPORT_KEY, id);
  let latest = progress;
  const isCurrent = () => sessionStorage.getItem(STORED_IMPORT_KEY) === id;
  while (isCurrent()) {
    if (latest) renderImport(latest);
    if (latest && latest.unfinished === 0) return;
    await new Promise((resolve) => setTimeout(resolve, latest ? POLL_INTERVAL_MS : 0));
    try {
      latest = document.hidden && latest ? latest : await sendRequest(`${ROOT}/${id}`);
    } catch (error) {
      // The import may belong to another user of this browser.
      if (error.status >= 400 && error.status < 500) return closeImport();
      if (!latest) latest = { unfinished: -1 };
    }
  }
  return undefined;
}

function closeImport() {
  sessionStorage.removeItem(STORED_IMPORT_KEY);
  find("#imports").replaceChildren();
}

function renderImport(progress) {
  if (progress.total == null) return;
  const finished = progress.unfinished === 0;
  const parts = [
    [progress.complete, "complete"],
    [progress.failed, "failed"],
    [progress.unfinished, "waiting"],
    [progress.alreadySaved, "saved before"],
    [progress.refused, "refused"],
  ].filter(([count]) => count > 0).map(([count, name]) => `${count.toLocaleString()} ${name}`);
  const links = `${progress.total.toLocaleString()} ${progress.total === 1 ? "link" : "links"}`;
  find("#imports").replaceChildren(createElement("section", { class: "card import", "aria-label": "Import" },
    createElement("div", { class: "row" },
      createElement("strong", { class: "grow" }, finished ? `Imported ${links}` : `Importing ${links}`),
      createElement("span", { class: "muted" }, `${progress.percent} %`),
      createButton({ label: "Hide the import", icon: "close", onClick: closeImport })),
    createProgressBar(progress.percent, finished ? "good" : "", "Import"),
    createElement("p", { class: "muted" }, parts.join(" · "))));
}
