// Everything that the pages of systems share. See docs/guide/pages.md.

import { createIcon, find } from "./elements.js";
import { hasSignedIn, signIn, signOut, takeTokenFromAddress } from "./requests.js";

export * from "./elements.js";
export { completeUrl, connectAddForm, showAddError } from "./add_form.js";
export { connectMoreButton, createCardList } from "./card_list.js";
export { compareNewestFirst, createPagedList } from "./paged_list.js";
export {
  ApiError, fetchObjectUrl, openStream, sendRequest, startDownload, streamEvents, uploadFile,
} from "./requests.js";
export { confirmAction, openDialog, registerShortcuts, showErrorToast, showToast } from "./dialogs.js";

const THEME_KEY = "holdfast-theme";

// Shows an error at the top of the page. Without an error, hides the last one.
export function showError(error) {
  const notice = find("#notice");
  notice.hidden = !error;
  notice.textContent = error ? error.message || String(error) : "";
}

// Shows in the header whether the page receives changes: "live", "waiting" or an error.
export function showConnection(state) {
  const place = find("#connection");
  const texts = { live: "", waiting: "Reconnecting…" };
  place.textContent = texts[state] ?? (state.status === 401 ? "Signed out" : "Not live");
  if (state.status === 401) showSignIn(state);
}

function showSignIn(error) {
  find("#content").hidden = true;
  find("#sign-out").hidden = true;
  find("#sign-in").hidden = false;
  find("#token").focus();
  if (error) showError(error);
}

// Loads the page. Shows the sign-in form until the user has signed in with a valid token.
export async function startPage(load) {
  const tryToLoad = async (token = takeTokenFromAddress()) => {
    try {
      if (token) await signIn(token);
      await load();
      find("#sign-in").hidden = true;
      find("#content").hidden = false;
      find("#sign-out").hidden = !hasSignedIn();
      showError(null);
    } catch (error) {
      if (error.status === 401) showSignIn(token || hasSignedIn() ? error : null);
      else showError(error);
    }
  };
  find("#sign-in-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const token = find("#token").value.trim();
    find("#token").value = "";
    tryToLoad(token);
  });
  find("#sign-out").addEventListener("click", () => {
    signOut().then(() => location.reload()).catch(showError);
  });
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) tryToLoad();
  });
  await tryToLoad();
}

function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function showThemeButton() {
  const button = find("#theme-button");
  const label = isDark() ? "Use the light theme" : "Use the dark theme";
  button.replaceChildren(createIcon(isDark() ? "sun" : "moon"));
  button.setAttribute("aria-label", label);
  button.title = label;
}

// On a phone, the link of this page may be outside the visible part of the navigation.
document.querySelector("#page-navigation [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

find("#theme-button").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem(THEME_KEY, theme);
  showThemeButton();
});
showThemeButton();
