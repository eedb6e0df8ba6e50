// Common to all pages: theme, local times, copy buttons, table rows.
(function () {
  "use strict";

  function dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function tell() { document.dispatchEvent(new CustomEvent("themechange")); }

  document.getElementById("theme").addEventListener("click", () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch (error) { console.info("the theme was not saved", error); }
    tell();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);

  const near = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  function times(root) {
    for (const one of root.querySelectorAll("time.moment")) {
      one.title = one.dateTime;
      one.textContent = near.format(new Date(one.dateTime));
    }
  }
  times(document);
  document.addEventListener("htmx:afterSwap", (event) => times(event.detail.target.isConnected ? event.detail.target : document));

  // An explanation near the right edge opens to the left.
  function explain(event) {
    const word = event.target.closest && event.target.closest(".term");
    if (!word) return;
    word.classList.remove("near-edge");
    const room = document.documentElement.clientWidth - word.getBoundingClientRect().left;
    word.classList.toggle("near-edge", word.querySelector(".tip").offsetWidth > room - 8);
  }
  document.addEventListener("mouseover", explain);
  document.addEventListener("focusin", explain);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const text = button.parentElement.querySelector("pre, input").textContent || button.parentElement.querySelector("input").value;
    await navigator.clipboard.writeText(text);
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });

  // Add and remove rows of a table of inputs; the last row is the template.
  document.addEventListener("click", (event) => {
    const add = event.target.closest("[data-add-row]");
    if (add) {
      const body = document.getElementById(add.dataset.addRow);
      const row = body.rows[body.rows.length - 1].cloneNode(true);
      for (const input of row.querySelectorAll("input, select")) {
        if (input.type === "checkbox") input.checked = false; else if (input.tagName === "INPUT") input.value = "";
      }
      for (const wrong of row.querySelectorAll(".wrong")) wrong.remove();
      body.append(row);
      row.querySelector("input").focus();
      return;
    }
    const remove = event.target.closest("[data-remove-row]");
    if (remove && remove.closest("tbody").rows.length > 1) remove.closest("tr").remove();
  });
})();
