// What is sent once is not sent twice by a second click.
(function () {
  "use strict";
  for (const form of document.querySelectorAll("form.once")) {
    form.addEventListener("submit", () => { for (const button of form.querySelectorAll("button")) button.disabled = true; });
  }
  // A page that comes back out of the browser's memory can be used again.
  addEventListener("pageshow", () => { for (const button of document.querySelectorAll("form.once button")) button.disabled = false; });
})();
