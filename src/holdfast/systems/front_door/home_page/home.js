import { find, formatBytes, sendRequest, startPage } from "./shared.js";

// The tiles are part of the page. What is loaded says whether the user is signed in, and what runs.
async function loadPage() {
  const requests = [sendRequest("/api/v1/my/jobs?limit=50"), sendRequest("/api/usage")];
  const [{ jobs, items }, usage] = await Promise.all(requests);
  const running = jobs.filter((job) => job.canCancel).length
    + items.filter((item) => ["queued", "running"].includes(item.status)).length;
  const jobText = running === 1 ? "1 job is running" : `${running || "No"} jobs are running`;
  const limit = usage.bytes.limit == null ? "" : ` of ${formatBytes(usage.bytes.limit)}`;
  const storage = usage.bytes.used ? `${formatBytes(usage.bytes.used)}${limit} stored` : "no files stored";
  find("#summary").textContent = `${jobText} · ${storage}`;
}

startPage(loadPage);
