(maxChars) => {
  const html = document.documentElement ? document.documentElement.outerHTML : "";
  return { url: location.href, html: html.slice(0, maxChars).toWellFormed() };
}
