import { createElement, createEmptyState, find, openStream, sendRequest, showConnection, startPage } from "./shared.js";

async function loadPage() {
  const { notes } = await sendRequest("/api/v1/notes");
  const items = notes.map((note) => createElement("li", { class: "card" }, note.text));
  find("#notes").replaceChildren(...(items.length ? items : [createEmptyState({ title: "No notes yet" })]));
}

startPage(loadPage);
