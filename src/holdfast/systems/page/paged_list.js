// The loaded part of a long list of cards: pages of the API, newest first by `created_at`, and the button `#more`.

import { showErrorToast } from "./dialogs.js";
import { find } from "./elements.js";
import { openStream } from "./requests.js";

export const compareNewestFirst = (one, other) =>
  Date.parse(other.created_at) - Date.parse(one.created_at) || other.id.localeCompare(one.id);

// Creates the list. `fetchPage(before)` asks the API for a page, `getItems(page)` returns its items, `page.next` is the
// parameter `before` of the next one, and `onPage(page)` is called with each answer.
export function createPagedList({ cards, fetchPage, getItems, onPage = () => {} }) {
  let nextBefore = null;
  let oldestLoaded = 0;
  let stream = null;
  const getOldest = (page) => (page.next ? Date.parse(getItems(page).at(-1).created_at) : 0);

  function showPage(page) {
    for (const item of getItems(page)) cards.show(item);
    nextBefore = page.next;
    oldestLoaded = getOldest(page);
    find("#more").hidden = nextBefore == null;
    onPage(page);
  }

  const list = {
    hasMore: () => nextBefore != null,

    async load() {
      const page = await fetchPage(null);
      cards.clear();
      showPage(page);
    },

    async loadMore() {
      const more = find("#more");
      if (nextBefore == null || more.dataset.loading) return;
      more.dataset.loading = "true";
      try {
        showPage(await fetchPage(nextBefore));
      } catch (error) {
        showErrorToast(error);
      } finally {
        delete more.dataset.loading;
      }
    },

    // Brings the newest part up to date: after the stream was closed for a while, or when the totals have changed.
    async mergeNewest() {
      const page = await fetchPage(null).catch(() => null);
      if (!page) return;
      const oldest = getOldest(page);
      const ids = new Set(getItems(page).map((item) => item.id));
      for (const id of cards.getIds()) {
        if (!ids.has(id) && Date.parse(cards.get(id).created_at) >= oldest) cards.remove(id);
      }
      for (const item of getItems(page)) cards.show(item);
      onPage(page);
    },

    // Shows a changed item if it belongs to the loaded part.
    showChange(item) {
      if (cards.has(item.id) || Date.parse(item.created_at) >= oldestLoaded) cards.show(item);
    },

    // Follows the stream of changed items, once, however often the page is loaded.
    follow(path, { onItem, onState }) {
      stream ??= openStream(path, {
        onEvent: (_, item) => onItem(item),
        onState,
        onResume: () => list.mergeNewest(),
      });
    },
  };
  return list;
}
