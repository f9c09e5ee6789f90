// The page of the bookmarks: add, search, follow live, open, retry, delete and import.

import {
  confirmAction, createButton, createElement, createEmptyState, createIcon, find, openStream, registerShortcuts,
  sendRequest, showConnection, showErrorToast, showToast, startPage,
} from "./shared.js";
import { canRetry, getTitle, renderCard } from "./bookmark_cards.js";
import { closeDetails, openDetails, updateDetails } from "./bookmark_details.js";
import { openImportDialog, resumeImport } from "./bookmark_imports.js";

const ROOT = "/api/v1/bookmarks";
const PAGE_SIZE = 60;
const SEARCH_DELAY_MS = 250;
const cards = new Map(); // id -> {bookmark, item}
const deletedIds = new Set();
let nextBefore = null;
let selectedId = null;
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
  find("#bookmarks").replaceChildren();
  for (const bookmark of list.bookmarks) showBookmark(bookmark);
  showListState(list);
}

async function loadMore() {
  if (nextBefore == null || find("#more").dataset.loading) return;
  find("#more").dataset.loading = "true";
  try {
    const list = await fetchList(nextBefore);
    for (const bookmark of list.bookmarks) showBookmark(bookmark);
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
  for (const id of [...cards.keys()]) {
    if (!ids.has(id) && (id > oldest || list.next == null)) removeCard(id);
  }
  for (const bookmark of list.bookmarks) showBookmark(bookmark);
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
  const empty = cards.size === 0;
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

// Shows a bookmark: updates its card, or inserts a card at its place in the list (newest first).
function showBookmark(bookmark) {
  if (deletedIds.has(bookmark.id)) return;
  const known = cards.get(bookmark.id);
  if (known) {
    if (bookmark.version < known.bookmark.version) return;
    known.bookmark = bookmark;
    renderCard(known.item, bookmark, actions);
    return;
  }
  const select = () => { selectedId = bookmark.id; };
  const item = createElement("li", { class: "card bookmark", tabindex: -1, onfocusin: select });
  cards.set(bookmark.id, { bookmark, item });
  renderCard(item, bookmark, actions);
  const list = find("#bookmarks");
  const last = list.lastElementChild;
  if (!last || Number(last.dataset.id) > bookmark.id) list.append(item);
  else list.insertBefore(item, [...list.children].find((other) => Number(other.dataset.id) < bookmark.id));
}

function showChange(bookmark) {
  const { q, category } = getFilters();
  const inCategory = !category || String(bookmark.category_id) === category;
  const inLoadedPart = nextBefore == null || bookmark.id >= nextBefore;
  if (cards.has(bookmark.id) || (!q && inCategory && inLoadedPart)) showBookmark(bookmark);
  updateDetails(bookmark);
  showEmptyState();
}

function removeCard(id) {
  const card = cards.get(id);
  if (!card) return;
  const neighbour = card.item.nextElementSibling || card.item.previousElementSibling;
  const hadFocus = card.item.contains(document.activeElement) || selectedId === id;
  card.item.remove();
  cards.delete(id);
  if (hadFocus && neighbour) focusCard(Number(neighbour.dataset.id));
  showEmptyState();
}

function focusCard(id) {
  const card = cards.get(id);
  if (!card) return;
  selectedId = id;
  card.item.focus();
  card.item.scrollIntoView({ block: "nearest" });
}

const actions = {
  open: (id) => openDetails(id, actions),
  focus: (id) => focusCard(id),

  async retry(id) {
    try {
      showChange(await sendRequest(`${ROOT}/${id}/retry`, "POST"));
    } catch (error) {
      showErrorToast(error);
    }
  },

  async remove(id) {
    const bookmark = cards.get(id)?.bookmark;
    const title = bookmark ? getTitle(bookmark) : "This page";
    const confirmed = await confirmAction({
      title: "Delete this bookmark?",
      text: `“${title}”, its screenshot and other files are deleted for good.`,
    });
    if (!confirmed) return focusCard(id);
    try {
      await sendRequest(`${ROOT}/${id}`, "DELETE");
    } catch (error) {
      if (error.status !== 404) return showErrorToast(error);
    }
    deletedIds.add(id);
    closeDetails(id);
    removeCard(id);
    showToast("Bookmark deleted.");
    return mergeNewest().catch(() => {});
  },

  // The signed link of a picture works for an hour. A page that is open for longer asks for a new one.
  async refreshLinks(id, picture) {
    try {
      const bookmark = await sendRequest(`${ROOT}/${id}`);
      picture.remove();
      showBookmark(bookmark);
    } catch {
      picture.remove();
    }
  },
};

// Adding

// Returns the URL that the user means: without a scheme it is a page on the web.
function completeUrl(text) {
  const hasScheme = /^[a-z][a-z0-9+.-]*:/i.test(text) && !/^[\w.-]+:\d/.test(text);
  return hasScheme ? text : `https://${text}`;
}

function showAddError(message) {
  find("#add-error").textContent = message;
  find("#add-error").hidden = !message;
  find("#add-url").toggleAttribute("aria-invalid", Boolean(message));
}

async function addBookmark(event) {
  event.preventDefault();
  const text = find("#add-url").value.trim();
  if (!text) return showAddError("Paste or type a link first.");
  showAddError("");
  find("#add").disabled = true;
  try {
    const { category } = getFilters();
    const options = category ? { category_id: Number(category), update_access: true } : {};
    const newestId = Math.max(0, ...cards.keys());
    const bookmark = await sendRequest(`${ROOT}/add/data`, "POST", { url: completeUrl(text), ...options });
    find("#add-url").value = "";
    await showAdded(bookmark, bookmark.id <= newestId);
  } catch (error) {
    showAddError(error.message);
  } finally {
    find("#add").disabled = false;
  }
  return undefined;
}

async function showAdded(bookmark, savedBefore) {
  if (getFilters().q) await clearFilters();
  deletedIds.delete(bookmark.id);
  showBookmark(bookmark);
  showEmptyState();
  if (savedBefore) {
    showToast("You saved this page before.");
    focusCard(bookmark.id);
  } else {
    cards.get(bookmark.id)?.item.scrollIntoView({ block: "nearest" });
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
  const items = [...find("#bookmarks").children];
  const index = items.findIndex((item) => Number(item.dataset.id) === selectedId);
  const target = items[index < 0 ? 0 : Math.min(Math.max(index + step, 0), items.length - 1)];
  if (target) focusCard(Number(target.dataset.id));
  if (index + step >= items.length - 1) loadMore();
}

// Runs an action for the selected card. Without one the key keeps its usual meaning.
const forSelected = (run) => () => {
  const card = cards.get(selectedId);
  if (!card) return false;
  return run(selectedId, card.bookmark);
};

registerShortcuts([
  { keys: ["/"], label: "Search", run: () => find("#search").focus() },
  { keys: ["a"], label: "Add a bookmark", run: () => find("#add-url").focus() },
  { keys: ["j"], label: "Next bookmark", run: () => moveSelection(1) },
  { keys: ["k"], label: "Previous bookmark", run: () => moveSelection(-1) },
  { keys: ["Enter"], label: "Show the bookmark", run: forSelected((id) => { actions.open(id); }) },
  {
    keys: ["r"],
    label: "Retry missing steps",
    run: forSelected((id, bookmark) => { if (canRetry(bookmark)) actions.retry(id); }),
  },
  { keys: ["x", "Delete"], label: "Delete the bookmark", run: forSelected((id) => { actions.remove(id); }) },
  { keys: ["i"], label: "Import bookmarks", run: () => startImport() },
]);

find(".search-field").prepend(createIcon("search"));
find("#add-form").addEventListener("submit", addBookmark);
find("#add-url").addEventListener("input", () => showAddError(""));
find("#add-url").addEventListener("paste", (event) => {
  const text = event.clipboardData.getData("text").trim();
  if (!text.includes("\n")) return;
  event.preventDefault();
  startImport(text);
});
find("#import").addEventListener("click", startImport);
find("#search").addEventListener("input", () => {
  clearTimeout(searchTimer);
  searchTimer = setTimeout(applyFilters, SEARCH_DELAY_MS);
});
for (const field of [find("#search"), find("#add-url")]) {
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.blur();
  });
}
find("#category").addEventListener("change", applyFilters);
find("#more-button").addEventListener("click", loadMore);
new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting)) loadMore();
}, { rootMargin: "600px" }).observe(find("#more"));

startPage(loadPage);
