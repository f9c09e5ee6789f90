// Messages, dialogs and keyboard shortcuts of the pages.

import { createButton, createElement, find } from "./elements.js";

const TOAST_DURATION_MS = 6000;
const SHORTCUTS_KEY = "holdfast-shortcuts";
let openDialogs = 0;

// Shows a short message at the bottom of the page. `kind` is "", "good" or "bad"; `action` is {text, onClick}.
export function showToast(text, { kind = "", action = null } = {}) {
  const toast = createElement("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" },
    createElement("span", { class: "grow" }, text),
    action
      ? createButton({
        text: action.text,
        kind: "quiet",
        onClick: () => {
          toast.remove();
          action.onClick();
        },
      })
      : null,
    createButton({ label: "Close message", icon: "close", onClick: () => toast.remove() }));
  find("#toasts").append(toast);
  // A message stays while the pointer or the focus is on it, so that there is time to read it.
  const timer = setInterval(() => {
    if (!toast.matches(":hover, :focus-within")) {
      clearInterval(timer);
      toast.remove();
    }
  }, TOAST_DURATION_MS);
  return toast;
}

// Shows an error as a message at the bottom of the page.
export function showErrorToast(error) {
  showToast(error.message || String(error), { kind: "bad" });
}

// Opens a dialog with a title and elements. Escape, the close button and a click beside the dialog close it, and the
// focus returns to where it was. Returns the dialog element; call its `close()` method to close it.
export function openDialog({ title, content, kind = "", onClose = () => {} }) {
  const heading = createElement("h2", { class: "dialog-title", id: `dialog-title-${openDialogs}` }, title);
  const dialog = createElement("dialog", { class: `dialog ${kind}`, "aria-labelledby": heading.id },
    createElement("div", { class: "dialog-head" },
      heading,
      createButton({ label: "Close", icon: "close", onClick: () => dialog.close() })),
    createElement("div", { class: "dialog-body" }, content));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    openDialogs -= 1;
    dialog.remove();
    onClose(dialog.returnValue);
  });
  document.body.append(dialog);
  openDialogs += 1;
  dialog.showModal();
  return dialog;
}

// Asks the user to confirm an action and returns whether the user did.
export function confirmAction({ title, text, action = "Delete", kind = "danger" }) {
  return new Promise((resolve) => {
    const confirmButton = createButton({ text: action, kind, onClick: () => dialog.close("confirmed") });
    const dialog = openDialog({
      title,
      kind: "small",
      content: [
        createElement("p", {}, text),
        createElement("div", { class: "dialog-buttons" },
          createButton({ text: "Cancel", kind: "secondary", onClick: () => dialog.close() }),
          confirmButton),
      ],
      onClose: (value) => resolve(value === "confirmed"),
    });
    confirmButton.focus();
  });
}

const areShortcutsOn = () => localStorage.getItem(SHORTCUTS_KEY) !== "off";

function isTyping(target) {
  return target instanceof HTMLElement
    && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
}

// Registers single-key shortcuts: [{keys: ["j"], label: "Next bookmark", run}]. They do nothing while the user types,
// while a dialog is open, or with Ctrl, Alt or Meta. `?` and the button in the header show all of them.
export function registerShortcuts(shortcuts) {
  const all = [...shortcuts, { keys: ["?"], label: "Show the keyboard shortcuts", run: () => showShortcuts(all) }];
  const byKey = new Map(all.flatMap((shortcut) => shortcut.keys.map((key) => [key, shortcut])));
  document.addEventListener("keydown", (event) => {
    const shortcut = byKey.get(event.key);
    const modified = event.ctrlKey || event.altKey || event.metaKey;
    if (!shortcut || modified || openDialogs || find("#content").hidden || !areShortcutsOn()) return;
    if (isTyping(event.target)) return;
    // Enter and space belong to the button or link that has the focus.
    if (["Enter", " "].includes(event.key) && event.target.closest("a, button, summary")) return;
    if (shortcut.run(event) !== false) event.preventDefault();
  });
  const button = find("#help-button");
  button.hidden = false;
  button.addEventListener("click", () => showShortcuts(all));
}

const KEY_NAMES = { Delete: "Del", Enter: "Enter", Escape: "Esc" };

function showShortcuts(shortcuts) {
  const rows = [...shortcuts, { keys: ["Escape"], label: "Close a dialog" }].map(({ keys, label }) => [
    createElement("dt", {}, keys.map((key) => createElement("kbd", {}, KEY_NAMES[key] || key))),
    createElement("dd", {}, label),
  ]);
  const toggle = createElement("input", {
    type: "checkbox",
    checked: areShortcutsOn(),
    onchange: (event) => localStorage.setItem(SHORTCUTS_KEY, event.target.checked ? "on" : "off"),
  });
  openDialog({
    title: "Keyboard shortcuts",
    kind: "small",
    content: [
      createElement("dl", { class: "shortcuts" }, rows),
      createElement("label", { class: "check" }, toggle, "Use keyboard shortcuts"),
    ],
  });
}
