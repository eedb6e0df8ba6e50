// Runs before the first paint, so that a page never flashes in the wrong colours.
(function () {
  var kept = null;
  try { kept = localStorage.getItem("theme"); } catch (error) { kept = null; }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
