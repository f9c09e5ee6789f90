// Applies the stored colour theme before the page is painted. This file is loaded as a classic script for that reason.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("holdfast-theme");
  } catch {
    // Storage can be forbidden. Then the theme of the system applies.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
