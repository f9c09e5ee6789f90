// The page of the bookmarks: add, search, follow live, open, retry, delete and import.

import {
  confirmAction, connectAddForm, connectMoreButton, createButton, createCardList, createElement, createEmptyState,
  createIcon, find, openStream, registerShortcuts, sendRequest, showConnection, showErrorToast, showToast, startPage,
} from "./shared.js";
import { canRetry, getTitle, renderCard } from "./bookmark_cards.js";
import { closeDetails, openDetails, updateDetails } from "./bookmark_details.js";
import { openImportDialog, resumeImport } from "./bookmark_imports.js";

const ROOT = "/api/v1/bookmarks";
const PAGE_SIZE = 60;
const SEARCH_DELAY_MS = 250;
const cards = createCardList({
  element: find("#bookmarks"),
  kind: "bookmark",
  compare: (one, other) => other.id - one.id,
  getVersion: (bookmark) => bookmark.version,
  render: (element, bookmark) => renderCard(element, bookmark, actions),
  onChange: () => showEmptyState(),
});
let nextBefore = null;
let listRequest = null;
let stream = null;

const getFilters = () => ({ q: find("#search").value.trim(), category: find("#category").value });
const hasFilters = () => Boolean(getFilters().q || getFilters().category);

function buildQuery(filters) {
  return new URLSearchParams(Object.entries(filters).filter(([, value]) => value !== "" && value != null));
}

// The list

async function loadPage() {
  const address = new URLSearchParams(location.search);
  find("#search").value = address.get("q") || "";
  showCategories([], address.get("category"));
  await loadList();
  stream ??= openStream(`${ROOT}/stream`, {
    onEvent: (_, bookmark) => showChange(bookmark),
    onState: showConnection,
    onResume: () => mergeNewest().catch(() => {}),
  });
  resumeImport();
  const linked = new URLSearchParams(location.hash.slice(1)).get("bookmark");
  if (/^\d{1,19}$/.test(linked || "")) openDetails(Number(linked), actions);
}

async function fetchList(before) {
  listRequest?.abort();
  listRequest = new AbortController();
  const query = buildQuery({ ...getFilters(), before, limit: PAGE_SIZE });
  return sendRequest(`${ROOT}?${query}`, "GET", undefined, { signal: listRequest.signal });
}

async function loadList() {
  const list = await fetchList(null);
  cards.clear();
  for (const bookmark of list.bookmarks) cards.show(bookmark);
  showListState(list);
}

async function loadMore() {
  if (nextBefore == null || find("#more").dataset.loading) return;
  find("#more").dataset.loading = "true";
  try {
    const list = await fetchList(nextBefore);
    for (const bookmark of list.bookmarks) cards.show(bookmark);
    showListState(list);
  } catch (error) {
    if (error.name !== "AbortError") showErrorToast(error);
  } finally {
    delete find("#more").dataset.loading;
  }
}

// Brings the newest part of the list up to date after the stream was closed for a while.
async function mergeNewest() {
  if (hasFilters()) return;
  const list = await sendRequest(`${ROOT}?${buildQuery({ limit: PAGE_SIZE })}`);
  const oldest = list.bookmarks.at(-1)?.id ?? 0;
  const ids = new Set(list.bookmarks.map((bookmark) => bookmark.id));
  for (const id of cards.getIds()) {
    if (!ids.has(id) && (id > oldest || list.next == null)) cards.remove(id);
  }
  for (const bookmark of list.bookmarks) cards.show(bookmark);
  showTotals(list);
}

function showListState(list) {
  nextBefore = list.next;
  find("#more").hidden = nextBefore == null;
  showTotals(list);
  showCategories(list.categories, find("#category").value);
  showEmptyState();
}

function showTotals({ total, limit }) {
  const nearLimit = total >= limit * 0.9 ? ` of ${limit.toLocaleString()}` : "";
  find("#usage").textContent = `${total.toLocaleString()}${nearLimit} ${total === 1 ? "bookmark" : "bookmarks"}`;
}

function showCategories(categories, selected) {
  const select = find("#category");
  const values = [...new Set([...categories.map(String), ...(selected ? [selected] : [])])];
  const options = values.map((value) => createElement("option", { value }, `Category ${value}`));
  select.replaceChildren(createElement("option", { value: "" }, "All categories"), ...options);
  select.value = selected || "";
  select.hidden = !values.length;
  find("#add-url").placeholder = `Paste a link to save it${selected ? ` in category ${selected}` : ""}`;
}

function showEmptyState() {
  const { q } = getFilters();
  const empty = cards.isEmpty();
  find("#result-note").textContent = hasFilters() && !empty && q ? `Results for “${q}”` : "";
  const state = hasFilters()
    ? createEmptyState({
      title: "Nothing matches",
      text: "Every word of the search must occur in the title, the address, the page or the text of its pictures.",
      icon: "search",
      action: createButton({ text: "Clear the search", kind: "secondary", onClick: clearFilters }),
    })
    : createEmptyState({
      title: "No bookmarks yet",
      text: "Save a link above. Its screenshot, title and text appear here within seconds.",
      action: createButton({ text: "Import bookmarks", kind: "secondary", onClick: startImport }),
    });
  find("#no-bookmarks").replaceChildren(...(empty ? [state] : []));
}

// Cards

function showChange(bookmark) {
  const { q, category } = getFilters();
  const inCategory = !category || String(bookmark.category_id) === category;
  const inLoadedPart = nextBefore == null || bookmark.id >= nextBefore;
  if (cards.has(bookmark.id) || (!q && inCategory && inLoadedPart)) cards.show(bookmark);
  updateDetails(bookmark);
  showEmptyState();
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

  async remove(id) {
    const bookmark = cards.get(id);
    const title = bookmark ? getTitle(bookmark) : "This page";
    const confirmed = await confirmAction({
      title: "Delete this bookmark?",
      text: `“${title}”, its screenshot and other files are deleted for good.`,
    });
    if (!confirmed) return cards.focus(id);
    try {
      await sendRequest(`${ROOT}/${id}`, "DELETE");
    } catch (error) {
      if (error.status !== 404) return showErrorToast(error);
    }
    closeDetails(id);
    cards.markDeleted(id);
    showToast("Bookmark deleted.");
    return mergeNewest().catch(() => {});
  },

  // The signed link of a picture works for an hour. A page that is open for longer asks for a new one.
  async refreshLinks(id, picture) {
    try {
      const bookmark = await sendRequest(`${ROOT}/${id}`);
      picture.remove();
      cards.show(bookmark);
    } catch {
      picture.remove();
    }
  },
};

// Adding

async function addBookmark(url) {
  const { category } = getFilters();
  const options = category ? { category_id: Number(category), update_access: true } : {};
  const newestId = Math.max(0, ...cards.getIds());
  const bookmark = await sendRequest(`${ROOT}/add/data`, "POST", { url, ...options });
  find("#add-url").value = "";
  await showAdded(bookmark, bookmark.id <= newestId);
}

async function showAdded(bookmark, savedBefore) {
  if (getFilters().q) await clearFilters();
  cards.markAdded(bookmark.id);
  cards.show(bookmark);
  showEmptyState();
  if (savedBefore) {
    showToast("You saved this page before.");
    cards.focus(bookmark.id);
  } else {
    cards.getElement(bookmark.id)?.scrollIntoView({ block: "nearest" });
    mergeNewest().catch(() => {});
  }
}

function startImport(text = "") {
  openImportDialog({
    text: typeof text === "string" ? text : "",
    onStarted: () => loadList().catch(showErrorToast),
  });
}

// Searching

let searchTimer = null;

async function applyFilters() {
  clearTimeout(searchTimer);
  const query = buildQuery(getFilters()).toString();
  history.replaceState(null, "", location.pathname + (query ? `?${query}` : ""));
  try {
    await loadList();
  } catch (error) {
    if (error.name !== "AbortError") showErrorToast(error);
  }
}

async function clearFilters() {
  find("#search").value = "";
  find("#category").value = "";
  await applyFilters();
}

// Keyboard

function moveSelection(step) {
  if (cards.moveSelection(step)) loadMore();
}

registerShortcuts([
  { keys: ["/"], label: "Search", run: () => find("#search").focus() },
  { keys: ["a"], label: "Add a bookmark", run: () => find("#add-url").focus() },
  { keys: ["j"], label: "Next bookmark", run: () => moveSelection(1) },
  { keys: ["k"], label: "Previous bookmark", run: () => moveSelection(-1) },
  { keys: ["Enter"], label: "Show the bookmark", run: cards.forSelected((id) => { actions.open(id); }) },
  {
    keys: ["r"],
    label: "Retry missing steps",
    run: cards.forSelected((id, bookmark) => { if (canRetry(bookmark)) actions.retry(id); }),
  },
  { keys: ["x", "Delete"], label: "Delete the bookmark", run: cards.forSelected((id) => { actions.remove(id); }) },
  { keys: ["i"], label: "Import bookmarks", run: () => startImport() },
]);

find(".search-field").prepend(createIcon("search"));
connectAddForm({ add: addBookmark, addMany: startImport });
find("#import").addEventListener("click", startImport);
find("#search").addEventListener("input", () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(applyFilters, SEARCH_DELAY_MS);
});
find("#search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") find("#search").blur();
});
find("#category").addEventListener("change", applyFilters);
connectMoreButton(loadMore);

startPage(loadPage);
