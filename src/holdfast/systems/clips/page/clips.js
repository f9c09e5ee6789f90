// The page of the clips: add videos, follow their stages, read summaries and transcripts, search, retry and delete.

import {
  compareNewestFirst, completeUrl, confirmAction, connectAddForm, connectMoreButton, createCardList, createElement,
  createPagedList, find, formatDuration, registerShortcuts, sendRequest, showAddError, showConnection,
  showEmptyStateIf, showErrorToast, showToast, startPage,
} from "./shared.js";
import { getTitle, isFinished, renderCard } from "./clip_cards.js";
import { closeDetails, openDetails, updateDetails } from "./clip_details.js";

const ROOT = "/api/v1/clips";
const PAGE_SIZE = 60;
const SEARCH_DELAY_MS = 300;
const MAX_PASTED_LINKS = 20;
const cards = createCardList({
  element: find("#clips"),
  kind: "clip-card",
  compare: compareNewestFirst,
  getVersion: (clip) => clip.version,
  render: (element, clip) => renderCard(element, clip, actions),
  onChange: () => showEmptyState(),
});
const list = createPagedList({
  cards,
  fetchPage: (before) => sendRequest(
    `${ROOT}?limit=${PAGE_SIZE}${before ? `&before=${encodeURIComponent(before)}` : ""}`),
  getItems: (page) => page.clips,
  onPage: ({ total }) => {
    find("#usage").textContent = total === 1 ? "1 clip" : `${total} clips`;
    showEmptyState();
  },
});

async function loadPage() {
  await list.load();
  list.follow(`${ROOT}/stream`, { onItem: showChange, onState: showConnection });
  const linked = new URLSearchParams(location.hash.slice(1)).get("clip");
  if (linked) openDetails(linked, actions);
}

function showEmptyState() {
  showEmptyStateIf(cards.isEmpty(), "#no-clips", {
    title: "No clips yet",
    text: "Paste a link to a video above. It gets a transcript, a summary and tags, and you can search it.",
    icon: "play",
  });
}

function showChange(clip) {
  const before = cards.get(clip.id);
  list.showChange(clip);
  updateDetails(clip, actions);
  if (before && !isFinished(before) && isFinished(clip)) {
    const word = clip.processing_status === "failed" ? "failed" : "done";
    find("#announcement").textContent = `${getTitle(clip)}: ${word}.`;
  }
}

const actions = {
  open: (id, startS) => openDetails(id, actions, startS),
  focus: (id) => cards.focus(id),

  async retry(id) {
    try {
      showChange(await sendRequest(`${ROOT}/${encodeURIComponent(id)}/retry`, "POST"));
    } catch (error) {
      showErrorToast(error);
    }
  },

  async remove(id) {
    const clip = cards.get(id);
    const confirmed = await confirmAction({
      title: "Delete this clip?",
      text: `“${clip ? getTitle(clip) : "This clip"}”, its summary and its transcript are deleted for good.`,
    });
    if (!confirmed) return cards.focus(id);
    try {
      await sendRequest(`${ROOT}/${encodeURIComponent(id)}`, "DELETE");
    } catch (error) {
      if (error.status !== 404) return showErrorToast(error);
    }
    closeDetails(id);
    cards.markDeleted(id);
    showToast("Deleted.");
    return list.mergeNewest();
  },

  // The signed link of a picture works for an hour. A page that is open for longer asks for a new one, once.
  async refreshLinks(id) {
    const element = cards.getElement(id);
    if (!element || element.dataset.refreshed) return;
    element.dataset.refreshed = "true";
    const clip = await sendRequest(`${ROOT}/${encodeURIComponent(id)}`).catch(() => null);
    if (clip) cards.show(clip);
  },
};

// Adding

async function addClip(url) {
  const clip = await sendRequest(ROOT, "POST", { video_url: url });
  find("#add-url").value = "";
  const known = cards.has(clip.id);
  cards.markAdded(clip.id);
  cards.show(clip);
  if (known) {
    showToast("You have added this video before.");
    cards.focus(clip.id);
  } else {
    cards.getElement(clip.id)?.scrollIntoView({ block: "nearest" });
    list.mergeNewest(); // the count has changed
  }
}

async function addMany(text) {
  const links = text.split(/\s+/).filter(Boolean).slice(0, MAX_PASTED_LINKS);
  const refused = [];
  for (const link of links) {
    await addClip(completeUrl(link)).catch((error) => refused.push(`${link}: ${error.message}`));
  }
  if (refused.length) showAddError(`${refused.length} of ${links.length} links were refused. ${refused[0]}`);
}

// Searching

let searchTimer = null;
let searchNumber = 0;

function scheduleSearch() {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(search, SEARCH_DELAY_MS);
}

async function search() {
  clearTimeout(searchTimer);
  const text = find("#search").value.trim();
  const number = ++searchNumber;
  if (!text) return showHits(null);
  try {
    const result = await sendRequest(`${ROOT}/search?q=${encodeURIComponent(text)}`);
    if (number === searchNumber) showHits(result, text);
  } catch (error) {
    if (number === searchNumber) showErrorToast(error);
  }
  return undefined;
}

function showHits(result, text = "") {
  const hits = find("#hits");
  hits.hidden = !result?.hits.length;
  find("#clips").hidden = Boolean(result);
  find("#more").hidden = Boolean(result) || !list.hasMore();
  hits.replaceChildren(...(result?.hits || []).map((hit) => createHit(hit, text)));
  const count = result?.hits.length;
  const note = count === 1 ? "1 video" : `${count} videos`;
  const texts = result ? [count ? note : "Nothing was found.", result.notice] : [];
  find("#result-note").textContent = texts.filter(Boolean).join(" ");
}

function createHit(hit, text) {
  return createElement("li", {},
    createElement("button", { type: "button", class: "hit", onclick: () => actions.open(hit.clip.id, hit.start_s) },
      createElement("time", {}, hit.start_s == null ? "" : formatDuration(hit.start_s)),
      createElement("span", { dir: "auto" },
        createElement("strong", {}, getTitle(hit.clip)),
        markWords(hit.passage || hit.clip.summary || "", text))));
}

// Marks the words of the query in a text.
function markWords(passage, text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];
  const shown = passage.length > 280 ? `${passage.slice(0, 280)}…` : passage;
  if (!words.length) return shown;
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})`, "giu");
  return shown.split(pattern).map((part, index) => (index % 2 ? createElement("mark", {}, part) : part));
}

registerShortcuts([
  { keys: ["a"], label: "Add a video", run: () => find("#add-url").focus() },
  { keys: ["/"], label: "Search", run: () => find("#search").focus() },
  { keys: ["j"], label: "Next card", run: () => { if (cards.moveSelection(1)) list.loadMore(); } },
  { keys: ["k"], label: "Previous card", run: () => { cards.moveSelection(-1); } },
  { keys: ["Enter"], label: "Read summary and transcript", run: cards.forSelected((id) => { actions.open(id); }) },
  {
    keys: ["r"],
    label: "Retry a failed clip",
    run: cards.forSelected((id, clip) => { if (clip.processing_status === "failed") actions.retry(id); }),
  },
  { keys: ["x", "Delete"], label: "Delete", run: cards.forSelected((id) => { actions.remove(id); }) },
]);

connectAddForm({ add: addClip, addMany });
connectMoreButton(list.loadMore);
find("#search").addEventListener("input", scheduleSearch);
find("#search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});

startPage(loadPage);
