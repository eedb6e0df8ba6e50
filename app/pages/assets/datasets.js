// Files that are dropped, files that are too large, and roles whose colour follows what is chosen.
(function () {
  "use strict";

  // What is wrong with a file before it is sent, beside its field.
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
    // A form takes a little more than its file.
    return file && file.size > most * 1e6 - 2e5
      ? "This file has " + (file.size / 1e6).toFixed(1) + " MB, and at most " + most + " MB can be sent at once. Save it as Parquet, or send fewer columns or rows."
      : "";
  }

  document.addEventListener("change", (event) => {
    const input = event.target;
    if (input.type === "file") complain(input, tooLarge(input));
    if (input.matches("select[data-use]")) input.closest("li").className = input.value;
  }, true);

  // A file that is too large is not sent, neither to be looked at nor to be kept.
  document.addEventListener("htmx:confirm", (event) => {
    const input = event.detail.elt.closest("form")?.querySelector('input[type="file"]');
    if (input && tooLarge(input)) event.preventDefault();
  });

  document.addEventListener("htmx:sendError", (event) => {
    const input = event.detail.elt.closest("form")?.querySelector('input[type="file"]');
    if (input) complain(input, "The file could not be sent: the connection ended. Is the service running, and the file still there?");
  });

  // Fields say by themselves that something is wrong with them.
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
  // Anywhere on the page: a file that misses the frame must not replace the page.
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
