// The card of one bookmark: picture, title, texts, and the state of its steps while it is not complete.

import {
  createBadge, createButton, createElement, createExternalLink, createFileImage, createIcon, createTime, getHost,
  isSafeUrl,
} from "./shared.js";

const BLURHASH_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz#$%*+,-.:;=?@[]^_{|}~";
const STEP_NAMES = { screenshot: "Screenshot", remaining: "Details" };
const STEP_BADGES = {
  pending: ["waiting", "waiting"],
  running: ["running", "active"],
  succeeded: ["done", "good"],
  failed: ["failed", "bad"],
};

export const isUnfinished = (bookmark) => ["pending", "processing", "retrying"].includes(bookmark.status);
export const canRetry = (bookmark) => ["failed", "retrying"].includes(bookmark.status);

export const getTitle = (bookmark) => bookmark.title?.trim() || getHost(bookmark.url);

// Returns the average colour of a picture, which is the second part of its blurhash, or null.
export function readAverageColor(blurhash) {
  const digits = [...(blurhash || "").slice(2, 6)].map((character) => BLURHASH_DIGITS.indexOf(character));
  if (digits.length < 4 || digits.includes(-1)) return null;
  const value = digits.reduce((sum, digit) => sum * 83 + digit, 0);
  return `rgb(${(value >> 16) & 255} ${(value >> 8) & 255} ${value & 255})`;
}

// Lists the steps that are not skipped, with their state and the reason of a failure.
export function listSteps(bookmark) {
  return Object.keys(STEP_NAMES)
    .map((name) => ({ name, status: bookmark[`${name}_status`], error: bookmark[`${name}_error`] }))
    .filter((step) => step.status !== "skipped");
}

export function createStepBadges(bookmark) {
  return createElement("ul", { class: "steps", "aria-label": "Steps" }, listSteps(bookmark).map((step) => {
    const [word, kind] = STEP_BADGES[step.status] || STEP_BADGES.pending;
    return createElement("li", {}, createBadge(`${STEP_NAMES[step.name]} ${word}`, kind));
  }));
}

// Creates the reasons of failed steps, or null. A reason that both steps share is shown once.
export function createReasons(bookmark) {
  const reasons = new Set(listSteps(bookmark).filter((step) => step.error).map((step) => step.error));
  if (!reasons.size || bookmark.status === "complete") return null;
  return createElement("p", { class: "reason" }, [...reasons].join(" "));
}

// Fills the list item of a card with a new version of its bookmark. The picture stays if it is the same one.
export function renderCard(item, bookmark, actions) {
  const hadFocus = item.contains(document.activeElement) && item !== document.activeElement;
  item.dataset.id = bookmark.id;
  item.dataset.status = bookmark.status;
  item.replaceChildren(
    createPicture(item, bookmark, actions),
    createElement("div", { class: "card-text" },
      createElement("p", { class: "site" },
        createFavicon(bookmark),
        createElement("span", { class: "clip" }, getHost(bookmark.url))),
      createElement("h2", {},
        createElement("button", { type: "button", class: "open clamp", onclick: () => actions.open(bookmark.id) },
          getTitle(bookmark))),
      createSummary(bookmark),
      bookmark.status === "complete" ? null : createStepBadges(bookmark),
      createReasons(bookmark)),
    createFooter(bookmark, actions));
  if (hadFocus) item.focus({ preventScroll: true });
}

function createSummary(bookmark) {
  const text = bookmark.description?.trim() || bookmark.caption?.trim();
  return text ? createElement("p", { class: "summary clamp" }, text) : null;
}

function createFooter(bookmark, actions) {
  const title = getTitle(bookmark);
  const openLink = isSafeUrl(bookmark.url)
    ? createExternalLink(bookmark.url, createIcon("external"),
      createElement("span", { class: "visually-hidden" }, `Open ${title} in a new tab`))
    : null;
  openLink?.classList.add("icon-link");
  return createElement("div", { class: "card-foot" },
    createElement("span", { class: "muted grow" }, createTime(bookmark.created_at)),
    canRetry(bookmark)
      ? createButton({ text: "Retry", icon: "retry", kind: "quiet", onClick: () => actions.retry(bookmark.id) })
      : null,
    openLink,
    createButton({ label: `Delete ${title}`, icon: "trash", onClick: () => actions.remove(bookmark.id) }));
}

function createFavicon(bookmark) {
  return createFileImage(bookmark.favicon, "", { class: "favicon", width: 18, height: 18 })
    || createElement("span", { class: "favicon letter", "aria-hidden": "true" },
      (getHost(bookmark.url)[0] || "?").toUpperCase());
}

function createPicture(item, bookmark, actions) {
  const path = bookmark.screenshot || bookmark.og_image;
  const color = readAverageColor(bookmark.blurhash);
  // Links are signed again in each answer. The file is the same unless a step has run once more.
  const key = `${bookmark.screenshot ? "screenshot" : "image"} ${bookmark.attempts}`;
  const old = item.querySelector("img.picture");
  let picture = path && old?.dataset.key === key ? old : null;
  if (path && !picture) {
    picture = createFileImage(path, "", { class: "picture" });
    if (picture) picture.dataset.key = key;
    picture?.addEventListener("error", () => actions.refreshLinks(bookmark.id, picture), { once: true });
  }
  const waiting = !picture && isUnfinished(bookmark);
  const frame = createElement("div", { class: `frame ${waiting ? "skeleton" : ""}` },
    picture || (waiting ? null : createIcon("image")));
  if (color && picture) frame.style.backgroundColor = color;
  return frame;
}
