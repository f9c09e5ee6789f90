// The page of the media: add links, follow downloads in bytes, play, read along, save, retry and delete.

import {
  completeUrl, confirmAction, connectAddForm, connectMoreButton, createCardList, createEmptyState, find, formatBytes,
  openStream, registerShortcuts, sendRequest, showAddError, showConnection, showErrorToast, showToast, startDownload,
  startPage,
} from "./shared.js";
import { getTitle, hasFailed, renderCard, showRetryTime } from "./share_cards.js";
import { closeDetails, openDetails, updateDetails } from "./share_details.js";

const ROOT = "/api/v1/shares";
const PAGE_SIZE = 60;
const MAX_PASTED_LINKS = 20;
const UUID_PATTERN = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const cards = createCardList({
  element: find("#shares"),
  kind: "share",
  compare: (one, other) =>
    Date.parse(other.created_at) - Date.parse(one.created_at) || other.id.localeCompare(one.id),
  getVersion: (share) => Date.parse(share.updated_at),
  render: (element, share) => renderCard(element, share, actions),
  onChange: () => showEmptyState(),
});
let nextBefore = null;
let oldestLoaded = 0;
let stream = null;

// The list

async function loadPage() {
  const list = await fetchList(null);
  cards.clear();
  showList(list);
  stream ??= openStream(`${ROOT}/stream`, {
    onEvent: (_, share) => showChange(share),
    onState: showConnection,
    onResume: () => mergeNewest().catch(() => {}),
  });
  const linked = new URLSearchParams(location.hash.slice(1)).get("share");
  if (UUID_PATTERN.test(linked || "")) openDetails(linked, actions);
}

function fetchList(before) {
  return sendRequest(`${ROOT}?limit=${PAGE_SIZE}${before ? `&before=${before}` : ""}`);
}

function showList(list) {
  for (const share of list.shares) cards.show(share);
  nextBefore = list.next;
  oldestLoaded = nextBefore ? Date.parse(list.shares.at(-1).created_at) : 0;
  find("#more").hidden = nextBefore == null;
  showUsage(list);
  showEmptyState();
}

async function loadMore() {
  const more = find("#more");
  if (nextBefore == null || more.dataset.loading) return;
  more.dataset.loading = "true";
  try {
    showList(await fetchList(nextBefore));
  } catch (error) {
    showErrorToast(error);
  } finally {
    delete more.dataset.loading;
  }
}

// Brings the newest part of the list up to date after the stream was closed for a while.
async function mergeNewest() {
  const list = await fetchList(null);
  const oldest = list.next ? Date.parse(list.shares.at(-1).created_at) : 0;
  const ids = new Set(list.shares.map((share) => share.id));
  for (const id of cards.getIds()) {
    if (!ids.has(id) && Date.parse(cards.get(id).created_at) >= oldest) cards.remove(id);
  }
  for (const share of list.shares) cards.show(share);
  showUsage(list);
}

function showUsage({ used_bytes: used, max_bytes: max }) {
  find("#usage").textContent = `${used ? formatBytes(used) : "0 MB"} of ${formatBytes(max)} used`;
}

function showEmptyState() {
  find("#no-shares").replaceChildren(...(cards.isEmpty()
    ? [createEmptyState({
      title: "Nothing downloaded yet",
      text: "Paste a link above. The file is downloaded in the background, with a picture and a transcript.",
      icon: "download",
    })]
    : []));
}

function showChange(share) {
  const before = cards.get(share.id);
  if (before || Date.parse(share.created_at) >= oldestLoaded) cards.show(share);
  updateDetails(share);
  if (before && !before.finished && share.finished) announceEnd(share);
}

function announceEnd(share) {
  find("#announcement").textContent = `${getTitle(share)}: ${hasFailed(share) ? "failed" : "ready"}.`;
  mergeNewest().catch(() => {}); // the storage that is used has changed
}

const actions = {
  open: (id) => openDetails(id, actions),
  focus: (id) => cards.focus(id),

  async retry(id) {
    try {
      showChange(await sendRequest(`${ROOT}/${id}/retry`, "POST"));
    } catch (error) {
      showErrorToast(error);
    }
  },

  // Links work for an hour, so each download asks for a new one.
  async save(id, kind, name) {
    try {
      const query = new URLSearchParams({ kind, as: "json", ...(name && kind !== "media" ? { name } : {}) });
      const { url } = await sendRequest(`${ROOT}/${id}/file?${query}`);
      startDownload(url, name || "");
    } catch (error) {
      showErrorToast(error);
    }
  },

  async remove(id) {
    const share = cards.get(id);
    const confirmed = await confirmAction({
      title: share && !share.finished ? "Stop and delete this download?" : "Delete this file?",
      text: `“${share ? getTitle(share) : "This file"}”, its pictures and its transcript are deleted for good.`,
    });
    if (!confirmed) return cards.focus(id);
    try {
      await sendRequest(`${ROOT}/${id}`, "DELETE");
    } catch (error) {
      if (error.status !== 404) return showErrorToast(error);
    }
    closeDetails(id);
    cards.markDeleted(id);
    showToast("Deleted.");
    return mergeNewest().catch(() => {});
  },

  // The signed link of a picture works for an hour. A page that is open for longer asks for a new one.
  async refreshLinks(id, picture) {
    const share = await sendRequest(`${ROOT}/${id}`).catch(() => null);
    picture.remove();
    delete cards.getElement(id)?.dataset.shape;
    if (share) cards.show(share);
  },
};

// Adding

function getOptions() {
  const language = find("#language").value;
  return find("#transcribe").checked ? { ...(language ? { language } : {}) } : { transcribe: false };
}

async function addShare(url) {
  const share = await sendRequest(ROOT, "POST", { url, ...getOptions() });
  find("#add-url").value = "";
  const known = cards.has(share.id);
  cards.markAdded(share.id);
  cards.show(share);
  if (known || !cards.isFirst(share.id)) {
    showToast("You have added this link before.");
    cards.focus(share.id);
  } else {
    cards.getElement(share.id)?.scrollIntoView({ block: "nearest" });
  }
}

async function addMany(text) {
  const links = text.split(/\s+/).filter(Boolean);
  if (links.length > MAX_PASTED_LINKS) {
    showAddError(`Paste at most ${MAX_PASTED_LINKS} links at once.`);
    return;
  }
  const refused = [];
  let reason = "";
  for (const link of links) {
    try {
      await addShare(completeUrl(link));
    } catch (error) {
      refused.push(link);
      reason = error.message;
    }
  }
  if (refused.length) {
    find("#add-url").value = refused.join(" ");
    showAddError(`${refused.length} of ${links.length} links were refused. ${reason}`);
  }
}

registerShortcuts([
  { keys: ["a", "/"], label: "Add a link", run: () => find("#add-url").focus() },
  { keys: ["j"], label: "Next card", run: () => { if (cards.moveSelection(1)) loadMore(); } },
  { keys: ["k"], label: "Previous card", run: () => { cards.moveSelection(-1); } },
  { keys: ["Enter"], label: "Play and read along", run: cards.forSelected((id) => { actions.open(id); }) },
  {
    keys: ["s"],
    label: "Save as a file",
    run: cards.forSelected((id, share) => {
      if (share.download_status === "completed") actions.save(id, "media");
    }),
  },
  {
    keys: ["r"],
    label: "Retry what has failed",
    run: cards.forSelected((id, share) => { if (hasFailed(share)) actions.retry(id); }),
  },
  { keys: ["x", "Delete"], label: "Delete", run: cards.forSelected((id) => { actions.remove(id); }) },
]);

connectAddForm({ add: addShare, addMany });
connectMoreButton(loadMore);
find("#transcribe").addEventListener("change", (event) => { find("#language").disabled = !event.target.checked; });
setInterval(() => document.querySelectorAll(".retry-time").forEach(showRetryTime), 1000);

startPage(loadPage);
