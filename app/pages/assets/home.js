// Send a form only once.
(function () {
  "use strict";
  for (const form of document.querySelectorAll("form.once")) {
    form.addEventListener("submit", () => { for (const button of form.querySelectorAll("button")) button.disabled = true; });
  }
  // Enable buttons again when the page is restored from the browser's cache.
  addEventListener("pageshow", () => { for (const button of document.querySelectorAll("form.once button")) button.disabled = false; });
})();
