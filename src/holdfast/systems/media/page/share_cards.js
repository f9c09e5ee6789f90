// The card of one share: picture, title, the state of its steps, and the progress in bytes while it is downloaded.

import {
  createBadge, createButton, createElement, createExternalLink, createFileImage, createIcon, createProgressBar,
  createTime, formatBytes, formatDuration, getHost, isSafeUrl,
} from "./shared.js";

export { formatDuration } from "./shared.js";

const PHASE_TEXTS = {
  queued: "Waiting for its turn",
  download: "Downloading",
  process: "Making pictures and sound",
  transcribe: "Writing the transcript",
};
const WORK_BADGES = {
  waiting: ["waiting", "waiting"],
  processing: ["running", "active"],
  completed: ["done", "good"],
  failed: ["failed", "bad"],
};
const DOWNLOAD_BADGES = {
  pending: ["waiting", "waiting"],
  processing: ["running", "active"],
  retry: ["will be tried again", "waiting"],
  completed: ["done", "good"],
  failed: ["failed", "bad"],
};

export const hasFailed = (share) =>
  [share.download_status, share.processing_status, share.transcript_status].includes("failed");

// Returns the title that the website gave, or the name of the file in the link, or the host.
export function getTitle(share) {
  const title = share.platform_data.title;
  return (typeof title === "string" && title.trim()) || getFileName(share.url) || getHost(share.url);
}

function getFileName(url) {
  try {
    return decodeURIComponent(new URL(url).pathname.split("/").filter(Boolean).at(-1) || "");
  } catch {
    return "";
  }
}

function formatTimeLeft(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s left`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min left` : `${Math.round(seconds / 3600)} h left`;
}

// Returns what the progress line says: bytes, speed and time of a download, else the percentage.
export function describeProgress(progress) {
  const { phase, bytes, total, speed, eta, percent } = progress;
  if (phase === "download") {
    return [
      bytes || total ? `${formatBytes(bytes)}${total ? ` of ${formatBytes(total)}` : ""}` : "Connecting",
      speed ? `${formatBytes(speed)}/s` : null,
      eta != null ? formatTimeLeft(eta) : null,
    ].filter(Boolean).join(" · ");
  }
  const text = PHASE_TEXTS[phase] || "Waiting";
  return percent == null || phase === "queued" ? text : `${text} · ${Math.floor(percent)} %`;
}

// Creates the progress of an unfinished share, or null.
export function createProgress(share) {
  const { phase, percent } = share.progress;
  if (share.finished || phase === "waiting") return null;
  const known = phase === "download" || phase === "transcribe" || phase === "process" ? percent : 0;
  const text = describeProgress(share.progress);
  return createElement("div", { class: "progress" },
    createProgressBar(known == null ? null : Math.floor(known), "", `${PHASE_TEXTS[phase] || "Progress"}`),
    createElement("p", { class: "muted" }, text));
}

// Creates a badge for each step of the job. A step that is not needed has none.
export function createStepBadges(share) {
  // A page that waits until fewer pages are downloaded has the status of a retry, but nothing has failed.
  const waits = share.download_status === "retry" && !share.download_error;
  const steps = [
    ["Download", DOWNLOAD_BADGES[waits ? "pending" : share.download_status]],
    ["Pictures and sound", WORK_BADGES[share.processing_status]],
    ["Transcript", WORK_BADGES[share.transcript_status]],
  ].filter(([, badge]) => badge);
  return createElement("ul", { class: "steps", "aria-label": "Steps" }, steps.map(([name, [word, kind]]) =>
    createElement("li", {}, createBadge(`${name} ${word}`, kind))));
}

// Creates what went wrong, in the words of the API, or null.
export function createReasons(share) {
  const reasons = [
    share.download_status !== "completed" ? share.download_error : null,
    share.processing_status === "failed" ? share.processing_error : null,
    share.transcript_status === "failed" ? share.transcript_error : null,
  ].filter(Boolean);
  if (!reasons.length) return null;
  return createElement("p", { class: "reason" }, reasons.join(" "), createRetryTime(share));
}

function createRetryTime(share) {
  if (share.download_status !== "retry" || !share.retry_at) return null;
  const element = createElement("span", { class: "retry-time" });
  element.dataset.at = share.retry_at;
  showRetryTime(element);
  return element;
}

// Shows how long it takes until the next attempt. The page calls this every second.
export function showRetryTime(element) {
  const seconds = Math.ceil((Date.parse(element.dataset.at) - Date.now()) / 1000);
  element.textContent = seconds > 0
    ? ` Next attempt in ${seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`}.`
    : " The next attempt starts soon.";
}

export const isUnfinishedOrFailed = (share) => !share.finished || hasFailed(share);

// Fills the list item of a card. Progress arrives twice a second: then only the progress line changes, so that buttons
// keep the focus and the pointer.
export function renderCard(item, share, actions) {
  const title = getTitle(share);
  const shape = JSON.stringify([title, share.download_status, share.download_attempts, share.retry_at,
    share.processing_status, share.transcript_status, Boolean(share.poster), share.finished, share.download_error]);
  item.dataset.status = share.finished && !hasFailed(share) ? "finished" : share.download_status;
  if (item.dataset.shape === shape) {
    const old = item.querySelector(".progress");
    const progress = createProgress(share);
    if (old && progress) old.replaceChildren(...progress.children);
    return;
  }
  item.dataset.shape = shape;
  const hadFocus = item.contains(document.activeElement) && item !== document.activeElement;
  item.replaceChildren(
    createPicture(item, share, actions),
    createElement("div", { class: "card-text" },
      createElement("p", { class: "site" }, createElement("span", { class: "clip" }, getHost(share.url))),
      createElement("h2", {},
        createElement("button", { type: "button", class: "open clamp", onclick: () => actions.open(share.id) },
          title)),
      isUnfinishedOrFailed(share) ? createStepBadges(share) : null,
      createProgress(share),
      createReasons(share)),
    createFooter(share, actions));
  if (hadFocus) item.focus({ preventScroll: true });
}

function createFooter(share, actions) {
  const title = getTitle(share);
  const link = isSafeUrl(share.url)
    ? createExternalLink(share.url, createIcon("external"),
      createElement("span", { class: "visually-hidden" }, `Open the page of ${title} in a new tab`))
    : null;
  link?.classList.add("icon-link");
  const size = share.platform_data.downloadMetadata?.size;
  return createElement("div", { class: "card-foot" },
    createElement("span", { class: "muted grow" },
      createTime(share.created_at), size ? ` · ${formatBytes(size)}` : null),
    hasFailed(share)
      ? createButton({ text: "Retry", icon: "retry", kind: "quiet", onClick: () => actions.retry(share.id) })
      : null,
    share.download_status === "completed"
      ? createButton({ label: `Save ${title} as a file`, icon: "download",
        onClick: () => actions.save(share.id, "media") })
      : null,
    link,
    createButton({ label: `Delete ${title}`, icon: "trash", onClick: () => actions.remove(share.id) }));
}

function createPicture(item, share, actions) {
  const old = item.querySelector("img.picture");
  // Links are signed again in each answer. The file is the same unless the share was downloaded again.
  const key = `${share.id} ${share.download_completed_at}`;
  let picture = share.poster && old?.dataset.key === key ? old : null;
  if (share.poster && !picture) {
    picture = createFileImage(share.poster, "", { class: "picture" });
    if (picture) picture.dataset.key = key;
    picture?.addEventListener("error", () => actions.refreshLinks(share.id, picture), { once: true });
  }
  const waiting = !picture && !share.finished && share.download_status !== "retry";
  const duration = share.platform_data.downloadMetadata?.duration;
  return createElement("div", { class: `frame ${waiting ? "skeleton" : ""}` },
    picture || (waiting ? null : createIcon({ audio: "sound", image: "image" }[share.media_type] || "play")),
    share.download_status === "completed" && duration
      ? createElement("span", { class: "duration" }, formatDuration(duration))
      : null);
}
