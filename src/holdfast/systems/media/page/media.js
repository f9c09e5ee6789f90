// The page of the media: add links, follow downloads in bytes, play, read along, save, retry and delete.

import {
  compareNewestFirst, completeUrl, confirmAction, connectAddForm, connectMoreButton, createCardList, createPagedList,
  find, formatBytes, registerShortcuts, sendRequest, showAddError, showConnection, showEmptyStateIf, showErrorToast,
  showToast, startDownload, startPage,
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
  compare: compareNewestFirst,
  getVersion: (share) => Date.parse(share.updated_at),
  render: (element, share) => renderCard(element, share, actions),
  onChange: () => showEmptyState(),
});
const list = createPagedList({
  cards,
  fetchPage: (before) => sendRequest(`${ROOT}?limit=${PAGE_SIZE}${before ? `&before=${before}` : ""}`),
  getItems: (page) => page.shares,
  onPage: (page) => {
    showUsage(page);
    showEmptyState();
  },
});

// The list

async function loadPage() {
  await list.load();
  list.follow(`${ROOT}/stream`, { onItem: showChange, onState: showConnection });
  const linked = new URLSearchParams(location.hash.slice(1)).get("share");
  if (UUID_PATTERN.test(linked || "")) openDetails(linked, actions);
}

function showUsage({ used_bytes: used, max_bytes: max }) {
  find("#usage").textContent = `${used ? formatBytes(used) : "0 MB"} of ${formatBytes(max)} used`;
}

function showEmptyState() {
  showEmptyStateIf(cards.isEmpty(), "#no-shares", {
    title: "Nothing downloaded yet",
    text: "Paste a link above. The file is downloaded in the background, with a picture and a transcript.",
    icon: "download",
  });
}

function showChange(share) {
  const before = cards.get(share.id);
  list.showChange(share);
  updateDetails(share);
  if (before && !before.finished && share.finished) announceEnd(share);
}

function announceEnd(share) {
  find("#announcement").textContent = `${getTitle(share)}: ${hasFailed(share) ? "failed" : "ready"}.`;
  list.mergeNewest(); // the storage that is used has changed
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
    return list.mergeNewest();
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
  { keys: ["j"], label: "Next card", run: () => { if (cards.moveSelection(1)) list.loadMore(); } },
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
connectMoreButton(list.loadMore);
find("#transcribe").addEventListener("change", (event) => { find("#language").disabled = !event.target.checked; });
setInterval(() => document.querySelectorAll(".retry-time").forEach(showRetryTime), 1000);

startPage(loadPage);
