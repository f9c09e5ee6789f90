// The dialog with the player, the transcript and the files of one share. While it is open it follows the changes of the
// share, and leaves the player alone.

import {
  createButton, createElement, createExternalLink, createFileImage, createIcon, formatBytes, isSafeUrl, openDialog,
  resolvePath, sendRequest, showErrorToast,
} from "./shared.js";
import {
  createProgress, createReasons, createStepBadges, formatDuration, getTitle, hasFailed, isUnfinishedOrFailed,
} from "./share_cards.js";
import { createTranscriptView } from "./transcript_view.js";

const JUMP_S = 10;
const MIN_RELOAD_INTERVAL_MS = 10_000;
let current = null;

// Opens the dialog of a share. The address names the share, so that the view can be linked.
export async function openDetails(id, actions) {
  let share;
  try {
    share = await sendRequest(`/api/v1/shares/${id}`);
  } catch (error) {
    showErrorToast(error);
    return;
  }
  current?.dialog.close();
  const parts = {
    player: createElement("div", { class: "player" }),
    text: createElement("div", { class: "details-text" }),
    transcript: createElement("section", { class: "transcript-section", "aria-label": "Transcript" }),
  };
  history.replaceState(null, "", `${location.pathname}${location.search}#share=${id}`);
  const dialog = openDialog({
    title: getTitle(share),
    content: createElement("div", { class: "details media-details" },
      createElement("div", {}, parts.player, parts.text), parts.transcript),
    kind: "details-dialog",
    onClose: () => {
      current = null;
      history.replaceState(null, "", location.pathname + location.search);
      actions.focus(id);
    },
  });
  current = { id, dialog, parts, actions, share, player: null, playedFile: null, transcriptFile: null };
  dialog.addEventListener("keydown", onKey);
  showShare();
}

// Shows a new version of the share if its dialog is open. Events have no links, so new files are asked for.
export async function updateDetails(share) {
  if (current?.id !== share.id) return;
  const own = current;
  const steps = (value) => [value.download_status, value.processing_status, value.transcript_status].join();
  const changed = steps(share) !== steps(own.share);
  own.share = { ...share, files: own.share.files };
  if (changed) {
    const loaded = await sendRequest(`/api/v1/shares/${share.id}`).catch(() => null);
    if (loaded && current === own) own.share = loaded;
  }
  if (current === own) showShare();
}

export function closeDetails(id) {
  if (current?.id === id) current.dialog.close();
}

const findFile = (share, kind, ending = "") =>
  share.files?.findLast((file) => file.kind === kind && file.name.endsWith(ending));

function showShare() {
  const { dialog, share } = current;
  dialog.querySelector(".dialog-title").textContent = getTitle(share);
  showPlayer();
  showText();
  showTranscript();
}

// The player

function showPlayer() {
  const { parts, share, player, playedFile } = current;
  const file = findFile(share, "web") || findFile(share, "media");
  if (!file || share.download_status !== "completed") {
    if (playedFile || !parts.player.hasChildNodes()) parts.player.replaceChildren(createPlaceholder(share));
    Object.assign(current, { player: null, playedFile: null });
    return;
  }
  // A player that works is not replaced while somebody watches.
  if (file.id === playedFile?.id || (player && !player.error && player.currentTime > 0)) {
    if (player?.tagName === "VIDEO" && !player.error) addPictures(player, share);
    return;
  }
  const created = createPlayer(share, file);
  Object.assign(current, { player: created.tagName === "IMG" ? null : created, playedFile: file });
  parts.player.replaceChildren(created);
}

function createPlaceholder(share) {
  const waiting = !share.finished;
  return createElement("div", { class: `frame ${waiting ? "skeleton" : ""}` }, waiting ? null : createIcon("alert"));
}

function createPlayer(share, file) {
  if (share.media_type === "image") {
    return createFileImage(file.url, getTitle(share)) || createPlaceholder(share);
  }
  const isAudio = share.media_type === "audio";
  const player = createElement(isAudio ? "audio" : "video", {
    src: resolvePath(file.url),
    controls: true,
    preload: "metadata",
    playsinline: true,
    "aria-label": getTitle(share),
  });
  player.addEventListener("error", () => reloadPlayer(player));
  if (!isAudio) addPictures(player, share);
  return player;
}

// Adds the poster and the captions, which exist some time after the file.
function addPictures(player, share) {
  const poster = findFile(share, "poster");
  const captions = findFile(share, "transcript", ".vtt");
  if (poster && !player.poster) player.poster = resolvePath(poster.url);
  if (captions && !player.querySelector("track")) {
    player.append(createElement("track", { kind: "captions", src: resolvePath(captions.url), label: "Transcript" }));
  }
}

// A link works for an hour. A player that could not load more gets a new one and continues at the same place.
async function reloadPlayer(player) {
  const own = current;
  if (!own || own.player !== player) return;
  const now = Date.now();
  if (now - (own.reloadedAt || 0) < MIN_RELOAD_INTERVAL_MS) {
    showPlayerError();
    return;
  }
  own.reloadedAt = now;
  const share = await sendRequest(`/api/v1/shares/${own.id}`).catch(() => null);
  const file = share && (findFile(share, "web") || findFile(share, "media"));
  if (current !== own || own.player !== player) return;
  if (!file) {
    showPlayerError();
    return;
  }
  const seconds = player.currentTime;
  own.share = share;
  player.src = resolvePath(file.url);
  if (seconds) player.currentTime = seconds;
}

function showPlayerError() {
  const { parts, share } = current;
  if (parts.player.querySelector(".reason")) return;
  const text = share.finished
    ? "Your browser cannot play this file. Save it and open it with another program."
    : "Your browser cannot play this file. A version that it can play may follow in a moment.";
  parts.player.append(createElement("p", { class: "reason" }, text));
}

function onKey(event) {
  const player = current?.player;
  if (!player || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "k") {
    if (player.paused) player.play().catch(() => {});
    else player.pause();
  } else if (event.key === "j") {
    player.currentTime = Math.max(0, player.currentTime - JUMP_S);
  } else if (event.key === "l") {
    player.currentTime += JUMP_S;
  } else {
    return;
  }
  event.preventDefault();
}

// State, files and facts

function showText() {
  const { parts, share, actions, player } = current;
  const shape = JSON.stringify([share.download_status, share.processing_status, share.transcript_status, share.retry_at,
    share.files?.length, share.download_error, Boolean(player)]);
  const old = parts.text.querySelector(".progress");
  const progress = createProgress(share);
  if (parts.text.dataset.shape === shape) {
    if (old && progress) old.replaceChildren(...progress.children);
    return;
  }
  parts.text.dataset.shape = shape;
  parts.text.replaceChildren(...[
    isUnfinishedOrFailed(share) ? createStepBadges(share) : null,
    progress,
    createReasons(share),
    createActions(share, actions),
    createFacts(share),
    player ? createElement("p", { class: "muted keys" }, "Keys: K play or pause, J and L jump 10 seconds.") : null,
  ].filter(Boolean));
}

function createActions(share, actions) {
  const saved = [
    ["Save file", "media", ""], ["Save for browsers", "web", ""], ["Save sound", "audio", ""],
    ["SRT", "transcript", ".srt"], ["VTT", "transcript", ".vtt"],
  ].map(([text, kind, ending]) => [text, findFile(share, kind, ending)]).filter(([, file]) => file);
  return createElement("div", { class: "details-actions" },
    saved.map(([text, file], index) => createButton({
      text,
      icon: "download",
      kind: index ? "secondary" : "",
      onClick: () => actions.save(share.id, file.kind, file.name),
    })),
    hasFailed(share)
      ? createButton({ text: "Retry", icon: "retry", onClick: () => actions.retry(share.id) })
      : null,
    createButton({ text: "Delete", icon: "trash", kind: "secondary", onClick: () => actions.remove(share.id) }));
}

function createFacts(share) {
  const info = share.media_info || {};
  const metadata = share.platform_data.downloadMetadata || {};
  const text = (value) => (typeof value === "string" && value.trim() ? value.trim() : null);
  const facts = [
    ["Link", isSafeUrl(share.url) ? createExternalLink(share.url, share.url) : share.url],
    ["By", text(share.platform_data.author)],
    ["Website", text(share.platform_data.platform)],
    ["Size", metadata.size ? formatBytes(metadata.size) : null],
    ["Duration", metadata.duration ? formatDuration(metadata.duration) : null],
    ["Picture", info.width ? `${info.width} × ${info.height} px` : null],
    ["Format", [info.video_codec, info.audio_codec].filter(Boolean).join(", ") || null],
    ["Note", text(share.platform_data.notice)],
  ].filter(([, value]) => value);
  return createElement("dl", { class: "facts" }, facts.map(([name, value]) =>
    [createElement("dt", {}, name), createElement("dd", {}, value)]));
}

// The transcript

async function showTranscript() {
  const own = current;
  const { parts, share, player } = own;
  const file = findFile(share, "transcript", ".json");
  if (!file) {
    parts.transcript.replaceChildren(...describeMissingTranscript(share));
    return;
  }
  if (own.transcriptFile === file.id && own.transcriptPlayer === player) return;
  Object.assign(own, { transcriptFile: file.id, transcriptPlayer: player });
  try {
    const transcript = await sendRequest(file.url);
    if (current === own) parts.transcript.replaceChildren(createTranscriptView(transcript, player));
  } catch (error) {
    own.transcriptFile = null;
    if (current === own) parts.transcript.replaceChildren(createElement("p", { class: "reason" }, error.message));
  }
}

function describeMissingTranscript(share) {
  const texts = {
    waiting: "The transcript follows after the download.",
    processing: "What is spoken is being written down.",
    skipped: share.download_status === "failed" ? null : "There is no transcript of this file.",
  };
  const text = texts[share.transcript_status];
  return text ? [createElement("p", { class: "muted" }, text)] : [];
}
