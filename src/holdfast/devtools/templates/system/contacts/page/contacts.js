import * as page from "./shared.js";

async function loadContacts() {
  const { contacts } = await page.sendRequest("/api/v1/contacts");
  const rows = contacts.map(({ name, email }) => page.createElement("li", {}, `${name} · ${email}`));
  page.find("#contacts ul").replaceChildren(...rows);
  page.find("#contacts").hidden = !contacts.length;
}

async function startImport(event) {
  event.preventDefault();
  const [file] = page.find("#file").files;
  const { jobId } = await page.uploadFile("/api/v1/contacts/import", file, { contentType: "text/csv" });
  const showProgress = (_, { percent }) => showStatus(page.createProgressBar(percent ?? null));
  await page.streamEvents(`/api/jobs/${jobId}/events`, showProgress, ["end"]);
  const { output, error } = await page.sendRequest(`/api/jobs/${jobId}`);
  const { artifacts } = await page.sendRequest(`/api/jobs/${jobId}/artifacts`);
  const text = error ? error.message : `${output.imported} imported, ${output.refused} refused`;
  showStatus(page.createElement("p", {}, text), ...artifacts.map(createDownload));
  await loadContacts();
}

function showStatus(...elements) {
  page.find("#import").hidden = false;
  page.find("#import").replaceChildren(...elements);
}

function createDownload({ id, name }) {
  const download = async () => page.startDownload((await page.sendRequest(`/api/artifacts/${id}/link`)).url, name);
  return page.createButton({ text: `Download ${name}`, kind: "secondary", onClick: download });
}

page.find("#import-form").addEventListener("submit", (event) => startImport(event).catch(page.showError));
page.startPage(loadContacts);
