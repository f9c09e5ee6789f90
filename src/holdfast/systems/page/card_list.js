// A list of cards that changes while it is shown: one card for each item of the API, in a fixed order, with a selected
// card that the keyboard moves. An older version of an item never replaces a newer one.

import { createElement, find } from "./elements.js";

// Creates the list. `compare(a, b)` is negative if a comes first, `getVersion` grows with each change of an item, and
// `render(element, item)` fills the card. `onChange` is called after cards were added or removed.
export function createCardList({ element: list, kind, compare, getVersion, render, onChange = () => {} }) {
  const cards = new Map(); // id -> {item, element}
  const ids = new WeakMap(); // element -> id
  const deletedIds = new Set();
  let selectedId = null;

  // Shows an item: updates its card, or inserts a card at its place.
  function show(item) {
    if (deletedIds.has(item.id)) return;
    const known = cards.get(item.id);
    if (known) {
      if (getVersion(item) < getVersion(known.item)) return;
      known.item = item;
      render(known.element, item);
      return;
    }
    const select = () => { selectedId = item.id; };
    const element = createElement("li", { class: `card item ${kind}`, tabindex: -1, onfocusin: select });
    element.dataset.id = item.id;
    ids.set(element, item.id);
    cards.set(item.id, { item, element });
    render(element, item);
    insert(element, item);
    onChange();
  }

  function insert(element, item) {
    const comesAfter = (other) => compare(item, cards.get(ids.get(other)).item) < 0;
    const last = list.lastElementChild;
    if (!last || !comesAfter(last)) list.append(element);
    else list.insertBefore(element, [...list.children].find(comesAfter));
  }

  function remove(id) {
    const card = cards.get(id);
    if (!card) return;
    const neighbour = card.element.nextElementSibling || card.element.previousElementSibling;
    const hadFocus = card.element.contains(document.activeElement) || selectedId === id;
    card.element.remove();
    cards.delete(id);
    if (hadFocus && neighbour) focus(ids.get(neighbour));
    onChange();
  }

  function focus(id) {
    const card = cards.get(id);
    if (!card) return;
    selectedId = id;
    card.element.focus();
    card.element.scrollIntoView({ block: "nearest" });
  }

  return {
    show,
    remove,
    focus,
    get: (id) => cards.get(id)?.item,
    has: (id) => cards.has(id),
    getIds: () => [...cards.keys()],
    getElement: (id) => cards.get(id)?.element,
    isEmpty: () => cards.size === 0,
    isFirst: (id) => list.firstElementChild === cards.get(id)?.element,

    clear() {
      cards.clear();
      list.replaceChildren();
    },

    // Removes a card for good: answers that are still on their way do not bring it back.
    markDeleted(id) {
      deletedIds.add(id);
      remove(id);
    },

    markAdded(id) {
      deletedIds.delete(id);
    },

    // Selects the next or the previous card. Returns whether that is the last card.
    moveSelection(step) {
      const elements = [...list.children];
      const index = elements.findIndex((element) => ids.get(element) === selectedId);
      const target = index < 0 ? 0 : Math.min(Math.max(index + step, 0), elements.length - 1);
      if (elements[target]) focus(ids.get(elements[target]));
      return target >= elements.length - 1;
    },

    // Returns a function that acts on the selected card. Without one, a key keeps its usual meaning.
    forSelected: (run) => () => {
      const card = cards.get(selectedId);
      return card ? run(selectedId, card.item) : false;
    },
  };
}

// Loads the next part of the list when its end comes near (`#more`), or when the user presses the button there.
export function connectMoreButton(load) {
  find("#more-button").addEventListener("click", load);
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) load();
  }, { rootMargin: "600px" }).observe(find("#more"));
}
