// The dialog with everything about one bookmark. It follows the changes of the bookmark while it is open.

import {
  createBadge, createButton, createElement, createExternalLink, createFileImage, createIcon, createTime, getHost,
  isSafeUrl, openDialog, resolvePath, sendRequest, showErrorToast,
} from "./shared.js";
import { canRetry, createReasons, createStepBadges, getTitle, isUnfinished } from "./bookmark_cards.js";

const STATUS_BADGES = {
  pending: ["Waiting", "waiting"],
  processing: ["Capturing the page", "active"],
  retrying: ["Will be tried again", "waiting"],
  complete: ["Complete", "good"],
  failed: ["Failed", "bad"],
};
let current = null;

// Opens the dialog of a bookmark. The address names the bookmark, so that the view can be linked.
export async function openDetails(id, actions) {
  let bookmark;
  try {
    bookmark = await sendRequest(`/api/v1/bookmarks/${id}`);
  } catch (error) {
    showErrorToast(error);
    return;
  }
  current?.dialog.close();
  const body = createElement("div", { class: "details" });
  history.replaceState(null, "", `${location.pathname}${location.search}#bookmark=${id}`);
  const dialog = openDialog({
    title: getTitle(bookmark),
    content: body,
    kind: "details-dialog",
    onClose: () => {
      current = null;
      history.replaceState(null, "", location.pathname + location.search);
      actions.focus(id);
    },
  });
  current = { id, dialog, body, actions, bookmark };
  renderDetails();
}

// Shows a new version of the bookmark if its dialog is open.
export async function updateDetails(bookmark) {
  if (current?.id !== bookmark.id) return;
  const own = current;
  // Events carry no page text, which can be long. It is there when the bookmark is complete.
  const text = own.bookmark.page_text;
  own.bookmark = { ...bookmark, page_text: text };
  renderDetails();
  if (text == null && bookmark.remaining_status === "succeeded") {
    const loaded = await sendRequest(`/api/v1/bookmarks/${bookmark.id}`).catch(() => null);
    if (loaded && current === own) {
      own.bookmark = loaded;
      renderDetails();
    }
  }
}

export function closeDetails(id) {
  if (current?.id === id) current.dialog.close();
}

function renderDetails() {
  const { dialog, body, bookmark, actions } = current;
  dialog.querySelector(".dialog-title").textContent = getTitle(bookmark);
  const scroll = dialog.scrollTop;
  body.replaceChildren(createPictureColumn(bookmark), createElement("div", { class: "details-text" },
    createLinkLine(bookmark),
    bookmark.description ? createElement("p", { class: "lead" }, bookmark.description) : null,
    createState(bookmark),
    createActions(bookmark, actions),
    createFacts(bookmark),
    createTextSection("Text in the picture", bookmark.ocr),
    createTextSection("Readable text", bookmark.page_text)));
  dialog.scrollTop = scroll;
}

function createLinkLine(bookmark) {
  const link = isSafeUrl(bookmark.url) ? createExternalLink(bookmark.url, bookmark.url) : bookmark.url;
  return createElement("p", { class: "details-url" },
    createFileImage(bookmark.favicon, "", { class: "favicon", width: 20, height: 20 }), link);
}

function createPictureColumn(bookmark) {
  const pictures = [
    [bookmark.screenshot, `Screenshot of ${getHost(bookmark.url)}`],
    [bookmark.og_image, bookmark.caption || "Picture of the page"],
  ].filter(([path]) => path);
  if (!pictures.length) {
    return createElement("div", { class: `details-picture none ${isUnfinished(bookmark) ? "skeleton" : ""}` },
      isUnfinished(bookmark) ? null : createIcon("image"));
  }
  return createElement("div", { class: "details-picture" }, pictures.map(([path, alt], index) =>
    createElement("figure", {},
      createElement("a", { href: resolvePath(path), target: "_blank", rel: "noopener" }, createFileImage(path, alt)),
      index || !bookmark.screenshot
        ? createElement("figcaption", { class: "muted" }, bookmark.caption || "Picture of the page")
        : null)));
}

function createState(bookmark) {
  const [text, kind] = STATUS_BADGES[bookmark.status] || [bookmark.status, "waiting"];
  const complete = bookmark.status === "complete";
  return createElement("div", { class: "details-state" },
    createBadge(text, kind), complete ? null : createStepBadges(bookmark), createReasons(bookmark));
}

function createActions(bookmark, actions) {
  return createElement("div", { class: "details-actions" },
    canRetry(bookmark)
      ? createButton({ text: "Retry missing steps", icon: "retry", onClick: () => actions.retry(bookmark.id) })
      : null,
    createButton({ text: "Delete", icon: "trash", kind: "secondary", onClick: () => actions.remove(bookmark.id) }));
}

function createFacts(bookmark) {
  const size = bookmark.width ? `${bookmark.width} × ${bookmark.height} px` : null;
  const facts = [
    ["Saved", createTime(bookmark.created_at)],
    ["Changed", createTime(bookmark.updated_at)],
    ["Category", bookmark.category_id == null ? null : String(bookmark.category_id)],
    ["Picture", size],
    ["Attempts", bookmark.attempts > 1 ? String(bookmark.attempts) : null],
  ].filter(([, value]) => value);
  return createElement("dl", { class: "facts" }, facts.map(([name, value]) =>
    [createElement("dt", {}, name), createElement("dd", {}, value)]));
}

function createTextSection(title, text) {
  if (!text?.trim()) return null;
  return createElement("section", { class: "text-section" },
    createElement("h3", {}, title),
    createElement("p", { class: "long-text", tabindex: 0, role: "region", "aria-label": title }, text.trim()));
}
