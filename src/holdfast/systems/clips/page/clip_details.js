// The dialog with everything about a clip: picture, summary, tags, facts and the transcript with times.

import {
  createButton, createElement, createExternalLink, formatDuration, openDialog, sendRequest, showErrorToast,
} from "./shared.js";
import { createState, createTags, createThumbnail, createTimeUrl, getTitle } from "./clip_cards.js";

let open = null; // {id, dialog, body, startS}

export async function openDetails(id, actions, startS = null) {
  let clip;
  try {
    clip = await sendRequest(`/api/v1/clips/${encodeURIComponent(id)}`);
  } catch (error) {
    showErrorToast(error);
    return;
  }
  const body = createElement("div", { class: "details details-clip" });
  const dialog = openDialog({
    title: getTitle(clip),
    kind: "wide",
    content: body,
    onClose: () => {
      open = null;
      history.replaceState(null, "", location.pathname);
      actions.focus(id);
    },
  });
  history.replaceState(null, "", `#clip=${encodeURIComponent(id)}`);
  open = { id, body, dialog, startS };
  showClip(clip, actions);
}

// Shows a change of the clip that is open. The transcript is not part of the change, so the clip is loaded again.
export async function updateDetails(clip, actions) {
  if (open?.id !== clip.id) return;
  const loaded = await sendRequest(`/api/v1/clips/${encodeURIComponent(clip.id)}`).catch(() => null);
  if (loaded && open?.id === clip.id) showClip(loaded, actions);
}

export function closeDetails(id) {
  if (open?.id === id) open.dialog.close();
}

function showClip(clip, actions) {
  open.body.replaceChildren(
    createElement("div", { class: "details-text" },
      createThumbnail(clip, () => {}),
      createState(clip),
      clip.summary ? createElement("p", { class: "summary", dir: "auto" }, clip.summary) : null,
      createTags(clip),
      createFacts(clip),
      clip.notice ? createElement("p", { class: "muted" }, clip.notice) : null,
      createElement("div", { class: "details-actions" },
        clip.processing_status === "failed"
          ? createButton({ text: "Retry", icon: "retry", onClick: () => actions.retry(clip.id) })
          : null,
        createButton({ text: "Delete", icon: "trash", kind: "secondary", onClick: () => actions.remove(clip.id) }))),
    createTranscript(clip));
  open.body.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });
}

function createFacts(clip) {
  const facts = [
    ["Video", createExternalLink(clip.video_url, clip.video_url)],
    ["By", clip.author],
    ["Length", clip.duration_s ? formatDuration(clip.duration_s) : null],
    ["Language", clip.language],
    ["Transcript", clip.transcript_by],
    ["Summary", clip.enriched_by],
  ].filter(([, value]) => value);
  return createElement("dl", { class: "facts" },
    facts.map(([name, value]) => [createElement("dt", {}, name), createElement("dd", {}, value)]));
}

function createTranscript(clip) {
  const section = createElement("section", { "aria-label": "Transcript" }, createElement("h3", {}, "Transcript"));
  if (!clip.transcript) {
    section.append(createElement("p", { class: "muted" },
      clip.processing_status === "done" ? "This video has no transcript." : "The transcript is not ready yet."));
    return section;
  }
  if (!clip.segments.length) {
    section.append(createElement("p", { dir: "auto" }, clip.transcript));
    return section;
  }
  const current = open.startS == null
    ? null : clip.segments.filter((segment) => segment.start <= open.startS + 0.05).at(-1);
  section.append(createElement("ol", { class: "segments", tabindex: 0, "aria-label": "Transcript with times" },
    clip.segments.map((segment) => createElement("li", { "aria-current": segment === current ? "true" : null },
      createExternalLink(createTimeUrl(clip.video_url, segment.start), formatDuration(segment.start)),
      createElement("span", { dir: "auto" }, segment.text)))));
  return section;
}
