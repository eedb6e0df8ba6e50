// The new-job form: drop previews that are older than the latest input.
(function () {
  "use strict";

  const preview = document.getElementById("preview");
  let changed = false;
  document.getElementById("job-form").addEventListener("input", () => { changed = true; }, true);
  preview.addEventListener("htmx:beforeRequest", () => { changed = false; });
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.requestConfig.elt === preview && changed) event.detail.shouldSwap = false;
  });
})();
