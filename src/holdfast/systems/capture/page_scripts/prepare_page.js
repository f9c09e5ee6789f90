async (fullPage, maxHeight, budgetMs) => {
  const end = performance.now() + budgetMs;
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

  const KNOWN_BANNERS = [
    "#onetrust-consent-sdk", "#CybotCookiebotDialog", "#CybotCookiebotDialogBodyUnderlay", "#didomi-host",
    "#usercentrics-root", "#usercentrics-cmp-ui", ".qc-cmp2-container", ".fc-consent-root", ".osano-cm-window",
    "#truste-consent-track", ".truste_overlay", ".truste_box_overlay", ".cky-consent-container", ".cky-overlay",
    "#cookie-law-info-bar", "#iubenda-cs-banner", ".cc-window", ".cc-banner", "#cookiescript_injected_wrapper",
    "[id^='sp_message_container']", "#cmpbox", "#cmpbox2", "#cookie-notice", "#cookieConsent", "#cookie-banner",
    "#cookie-consent", ".cookie-banner", ".cookie-consent", ".cookie-notice", ".cookie-bar", ".gdpr-banner",
    "#gdpr-consent-tool-wrapper", "#tarteaucitronRoot", ".termly-styles-root", "#axeptio_overlay", "#consent_blackbox",
    "#moove_gdpr_cookie_info_bar", ".cmplz-cookiebanner", "#BorlabsCookieBox", "#klaro", "#shopify-pc__banner",
    "[aria-label*='cookie' i][role='dialog']", "[aria-label*='consent' i][role='dialog']",
  ];
  const BANNER_TEXT = /cookie|consent|gdpr|privacy|datenschutz|einwilligung|confidentialit|privacidad|rgpd|traceurs/i;
  const hide = (element) => element.style.setProperty("display", "none", "important");

  const hideBanners = () => {
    for (const element of document.querySelectorAll(KNOWN_BANNERS.join(","))) hide(element);
    // Other banners: text about cookies that stays in place over the page, with something to press.
    const boxes = Array.from(document.querySelectorAll("div,section,aside,dialog,form,footer")).slice(0, 5000);
    for (const element of boxes) {
      const position = getComputedStyle(element).position;
      if (position !== "fixed" && position !== "sticky") continue;
      const text = (element.textContent || "").slice(0, 5000);
      const canAnswer = element.querySelector("button,a,input,[role=button]");
      if (text.length < 3000 && BANNER_TEXT.test(text) && canAnswer) hide(element);
    }
    for (const element of [document.documentElement, document.body]) {
      if (element && getComputedStyle(element).overflowY === "hidden") {
        element.style.setProperty("overflow", "visible", "important");
      }
    }
  };

  const loadLazyImages = () => {
    for (const image of Array.from(document.images).slice(0, 2000)) {
      image.loading = "eager";
      const data = image.dataset;
      const source = data.src || data.lazySrc || data.original || data.lazy;
      if (source && image.getAttribute("src") !== source) image.src = source;
      const sources = data.srcset || data.lazySrcset;
      if (sources) image.srcset = sources;
    }
  };

  const measureHeight = () => Math.max(
    document.documentElement ? document.documentElement.scrollHeight : 0,
    document.body ? document.body.scrollHeight : 0);

  hideBanners();
  loadLazyImages();
  if (fullPage) {
    // Scripts that load images as they come into view see every part of the page.
    for (let y = 0; y < Math.min(measureHeight(), maxHeight) && performance.now() < end; y += innerHeight) {
      scrollTo(0, y);
      await pause(60);
      loadLazyImages();
    }
    scrollTo(0, 0);
  }
  const waiting = Array.from(document.images).slice(0, 2000).filter((image) => !image.complete);
  const loaded = Promise.all(waiting.map((image) => image.decode().catch(() => null)));
  await Promise.race([loaded, pause(Math.max(0, Math.min(3000, end - performance.now())))]);
  hideBanners();

  let largest = null;
  let largestPixels = 200 * 100 - 1;
  for (const image of Array.from(document.images).slice(0, 2000)) {
    const pixels = image.naturalWidth * image.naturalHeight;
    if (pixels > largestPixels && /^https?:/.test(image.currentSrc)) {
      largest = image.currentSrc;
      largestPixels = pixels;
    }
  }
  return { height: measureHeight(), largestImage: largest };
}
