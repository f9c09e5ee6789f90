// The card of one clip: picture, title, the stage of its processing, summary and tags.

import {
  createBadge, createButton, createElement, createExternalLink, createFileImage, createIcon, createProgressBar,
  createTime, formatDuration, getHost, isSafeUrl,
} from "./shared.js";

const BADGES = {
  pending: ["Waiting", "waiting"],
  scraping: ["Reading the video", "active"],
  enriching: ["Summarising", "active"],
  failed: ["Failed", "bad"],
};

export const isFinished = (clip) => ["done", "failed"].includes(clip.processing_status);

export const getTitle = (clip) => (clip.title || "").trim() || getHost(clip.video_url);

// Returns the link to the video at a time. Sites that take no time ignore it.
export function createTimeUrl(url, seconds) {
  try {
    const target = new URL(url);
    if (/(^|\.)(youtube\.com|youtu\.be)$/.test(target.hostname)) target.searchParams.set("t", Math.floor(seconds));
    else target.hash = `t=${Math.floor(seconds)}`;
    return target.href;
  } catch {
    return url;
  }
}

export function createTags(clip) {
  if (!clip.tags.length) return null;
  return createElement("ul", { class: "tags", "aria-label": "Tags" },
    clip.tags.map((tag) => createElement("li", { dir: "auto" }, tag)));
}

// Creates the stage and the progress of a clip that is not done, and the reason of the last failure.
export function createState(clip) {
  const [text, kind] = BADGES[clip.processing_status] || [];
  if (!text) return null;
  const running = ["scraping", "enriching"].includes(clip.processing_status);
  return createElement("div", { class: "progress" },
    createBadge(text, kind),
    running ? createProgressBar(clip.percent, "", text) : null,
    running && clip.phase ? createElement("p", { class: "muted" }, clip.phase) : null,
    clip.processing_error
      ? createElement("p", { class: "reason" },
        running ? `It is tried again. ${clip.processing_error}` : clip.processing_error)
      : null);
}

export function createThumbnail(clip, onBroken) {
  const picture = clip.thumbnail ? createFileImage(clip.thumbnail, "", { class: "picture" }) : null;
  picture?.addEventListener("error", onBroken, { once: true });
  return picture;
}

export function renderCard(item, clip, actions) {
  const title = getTitle(clip);
  const hadFocus = item.contains(document.activeElement) && item !== document.activeElement;
  item.classList.add("clip-card");
  item.dataset.status = clip.processing_status;
  const picture = createThumbnail(clip, () => actions.refreshLinks(clip.id));
  item.replaceChildren(
    createElement("div", { class: `frame ${picture || isFinished(clip) ? "" : "skeleton"}` },
      picture || (isFinished(clip) ? createIcon("play") : null),
      clip.duration_s ? createElement("span", { class: "duration" }, formatDuration(clip.duration_s)) : null),
    createElement("div", { class: "card-text" },
      createElement("p", { class: "site" },
        createElement("span", { class: "clip" }, clip.author || getHost(clip.video_url))),
      createElement("h2", {},
        createElement("button", { type: "button", class: "open clamp", dir: "auto",
          onclick: () => actions.open(clip.id) }, title)),
      clip.summary ? createElement("p", { class: "muted clamp", dir: "auto" }, clip.summary) : null,
      createTags(clip),
      createState(clip)),
    createFooter(clip, title, actions));
  if (hadFocus) item.focus({ preventScroll: true });
}

function createFooter(clip, title, actions) {
  const link = isSafeUrl(clip.video_url)
    ? createExternalLink(clip.video_url, createIcon("external"),
      createElement("span", { class: "visually-hidden" }, `Open ${title} in a new tab`))
    : null;
  link?.classList.add("icon-link");
  return createElement("div", { class: "card-foot" },
    createElement("span", { class: "muted grow" }, createTime(clip.created_at)),
    clip.processing_status === "failed"
      ? createButton({ label: `Retry ${title}`, icon: "retry", onClick: () => actions.retry(clip.id) })
      : null,
    link,
    createButton({ label: `Delete ${title}`, icon: "trash", onClick: () => actions.remove(clip.id) }));
}
