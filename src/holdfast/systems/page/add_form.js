// The form at the top of a page that takes a link: `#add-form` with `#add-url`, `#add` and `#add-error`.

import { find } from "./elements.js";

// Returns the URL that the user means: without a scheme it is a page on the web.
export function completeUrl(text) {
  const hasScheme = /^[a-z][a-z0-9+.-]*:/i.test(text) && !/^[\w.-]+:\d/.test(text);
  return hasScheme ? text : `https://${text}`;
}

export function showAddError(message) {
  find("#add-error").textContent = message;
  find("#add-error").hidden = !message;
  find("#add-url").toggleAttribute("aria-invalid", Boolean(message));
}

// Connects the form. `add(url)` sends the link; an error that it throws is shown below the field. `addMany(text)`
// receives a text of several lines that was pasted.
export function connectAddForm({ add, addMany }) {
  const field = find("#add-url");
  find("#add-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text) {
      showAddError("Paste or type a link first.");
      return;
    }
    showAddError("");
    find("#add").disabled = true;
    try {
      await add(completeUrl(text));
    } catch (error) {
      showAddError(error.message);
    } finally {
      find("#add").disabled = false;
    }
  });
  field.addEventListener("input", () => showAddError(""));
  field.addEventListener("paste", (event) => {
    const text = event.clipboardData.getData("text").trim();
    if (!text.includes("\n")) return;
    event.preventDefault();
    addMany(text);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") field.blur();
  });
}
