// Runs before anything is drawn, so that a page never shows in the wrong colours first.
(function () {
  var kept = null;
  try { kept = localStorage.getItem("theme"); } catch (error) { kept = null; }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
