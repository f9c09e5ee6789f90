// A transcript that follows the player: the spoken part is marked and scrolled into view, and a press on a part jumps
// there.

import { createElement } from "./shared.js";
import { formatDuration } from "./share_cards.js";

const FOLLOW_PAUSE_MS = 4000;

// Returns the index of the part that is spoken at a time, or that was spoken last. -1 before the first one.
export function findSegmentIndex(segments, seconds) {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (segments[middle].start <= seconds + 0.05) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function createParts(segments, jump) {
  return segments.map((segment, index) => createElement("li", {},
    createElement("button", {
      type: "button",
      class: "segment",
      tabindex: index ? -1 : 0,
      onclick: () => jump(segment.start),
    },
    createElement("time", {}, formatDuration(segment.start)),
    createElement("span", {}, segment.text.trim()))));
}

// Creates the transcript. `player` is a video or audio element, or null.
export function createTranscriptView(transcript, player) {
  const segments = transcript.segments;
  if (!segments.length) return createElement("p", { class: "muted" }, "Nothing is spoken in this file.");
  const follow = createElement("input", { type: "checkbox", checked: true });
  const jump = (seconds) => {
    if (!player) return;
    player.currentTime = seconds;
    lastScrollByUser = 0;
    player.play().catch(() => {});
  };
  const parts = createParts(segments, jump);
  const buttons = parts.map((part) => part.firstElementChild);
  const list = createElement("ol", { class: "segments", "aria-label": "Transcript" }, parts);
  let current = -1;
  let lastScrollByUser = 0;
  for (const name of ["wheel", "touchmove", "pointerdown"]) {
    list.addEventListener(name, () => { lastScrollByUser = Date.now(); }, { passive: true });
  }

  function moveFocus(index) {
    const target = buttons[Math.min(Math.max(index, 0), buttons.length - 1)];
    list.querySelector("[tabindex='0']")?.setAttribute("tabindex", -1);
    target.setAttribute("tabindex", 0);
    target.focus();
  }

  list.addEventListener("keydown", (event) => {
    const index = buttons.indexOf(document.activeElement);
    const moves = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: buttons.length - 1 };
    if (index < 0 || !(event.key in moves)) return;
    event.preventDefault();
    lastScrollByUser = Date.now();
    moveFocus(moves[event.key]);
  });

  function showCurrent() {
    const index = findSegmentIndex(segments, player.currentTime);
    if (index === current) return;
    buttons[current]?.removeAttribute("aria-current");
    current = index;
    const button = buttons[current];
    if (!button) return;
    button.setAttribute("aria-current", "true");
    if (!follow.checked || Date.now() - lastScrollByUser < FOLLOW_PAUSE_MS) return;
    // Only the transcript scrolls. `scrollIntoView` would also scroll the dialog away from the player.
    list.scrollTo({ top: button.offsetTop - list.clientHeight / 3, behavior: "smooth" });
  }
  player?.addEventListener("timeupdate", showCurrent);
  player?.addEventListener("seeked", showCurrent);
  return createElement("div", { class: "transcript" },
    createElement("div", { class: "row" },
      createElement("h3", { class: "grow" }, "Transcript"),
      player ? createElement("label", { class: "check" }, follow, "Scroll along") : null),
    list,
    transcript.notice ? createElement("p", { class: "muted" }, transcript.notice) : null);
}
