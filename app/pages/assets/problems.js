// The problem form: check again when rows change, and jump to the line of an error.
(function () {
  "use strict";

  const form = document.getElementById("problem-form");
  if (!form) return;

  form.addEventListener("click", (event) => {
    const added = event.target.closest("[data-add-row]");
    if (!added && !event.target.closest("[data-remove-row]")) return;
    // After the row was added or removed.
    setTimeout(() => {
      if (added) {
        const rows = document.getElementById(added.dataset.addRow).rows;
        for (const input of rows[rows.length - 1].querySelectorAll("[aria-invalid]")) {
          input.removeAttribute("aria-invalid");
          input.removeAttribute("aria-describedby");
        }
      }
      htmx.trigger(form, "again");
    }, 0);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".to-line");
    const text = document.getElementById("spec");
    if (!button || !text) return;
    const lines = text.value.split("\n"), line = Number(button.dataset.line) - 1;
    const from = lines.slice(0, line).reduce((sum, one) => sum + one.length + 1, 0);
    text.focus();
    text.setSelectionRange(from, from + (lines[line] || "").length);
    text.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(text).lineHeight));
  });
})();
