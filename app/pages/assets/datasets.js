// File drops, size limits, and colours of chosen roles.
(function () {
  "use strict";

  // Show an error at a file field before anything is sent.
  function complain(input, text) {
    input.setCustomValidity(text);
    let said = input.parentElement.querySelector(".wrong");
    if (!said && text) {
      said = document.createElement("p");
      said.className = "wrong";
      said.setAttribute("role", "alert");
      input.after(said);
    }
    if (said) said.textContent = text;
  }

  function tooLarge(input) {
    const most = Number(input.form.dataset.mostMb), file = input.files[0];
    // A form is slightly larger than its file.
    return file && file.size > most * 1e6 - 2e5
      ? "This file has " + (file.size / 1e6).toFixed(1) + " MB; the limit is " + most + " MB. Save it as Parquet, or upload fewer columns or rows."
      : "";
  }

  document.addEventListener("change", (event) => {
    const input = event.target;
    if (input.type === "file") complain(input, tooLarge(input));
    if (input.matches("select[data-use]")) input.closest("li").className = input.value;
  }, true);

  // Do not send a file that is too large.
  document.addEventListener("htmx:confirm", (event) => {
    const input = event.detail.elt.closest("form")?.querySelector('input[type="file"]');
    if (input && tooLarge(input)) event.preventDefault();
  });

  document.addEventListener("htmx:sendError", (event) => {
    const input = event.detail.elt.closest("form")?.querySelector('input[type="file"]');
    if (input) complain(input, "Upload failed: the connection was lost. Check that the service is running and the file still exists, then try again.");
  });

  // Mark fields that have an error.
  document.addEventListener("htmx:afterSettle", () => {
    for (const input of document.querySelectorAll("[aria-describedby*='wrong-']")) {
      const said = document.getElementById("wrong-" + input.id);
      if (said && said.textContent.trim()) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    }
    const refused = document.querySelector("#said .refused, #appended .refused");
    if (refused && !refused.dataset.seen) { refused.dataset.seen = "yes"; refused.scrollIntoView({ block: "nearest" }); }
  });

  const zone = document.getElementById("drop");
  if (!zone) return;
  const input = zone.querySelector("input");
  let within = 0;
  function over(inside) { zone.classList.toggle("over", inside); }
  // A file dropped outside the frame must not replace the page.
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("dragenter", () => { within += 1; over(true); });
  addEventListener("dragleave", () => { within -= 1; if (within <= 0) over(false); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    within = 0;
    over(false);
    if (!event.dataTransfer.files.length) return;
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    input.files = one.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
})();
