// Follow a running backtest, then show its result; search long lists of series.
(function () {
  "use strict";
  const box = document.querySelector("[data-follow]");
  if (box) {
    const source = new EventSource(box.dataset.follow);
    const tell = (event) => {
      const job = JSON.parse(event.data);
      if (job.state !== "queued" && job.state !== "running") {
        source.close();
        location.reload();
        return;
      }
      const badge = document.querySelector("[data-state] .badge");
      badge.className = "badge " + job.state;
      badge.textContent = job.state;
      box.querySelector("progress").value = job.progress;
      box.querySelector("[data-share]").textContent = Math.round(100 * job.progress) + " %";
      const said = job.message || "";
      box.querySelector("[data-message]").textContent = said.charAt(0).toUpperCase() + said.slice(1);
    };
    source.addEventListener("progress", tell);
    source.addEventListener("state", tell);
    addEventListener("pagehide", () => source.close());
  }

  // Keep the API example open when it is updated.
  const asked = document.getElementById("asked");
  if (asked) {
    let open = false;
    asked.addEventListener("htmx:beforeSwap", () => { open = asked.querySelector("details").open; });
    asked.addEventListener("htmx:afterSwap", () => { asked.querySelector("details").open = open; });
  }

  for (const field of document.querySelectorAll("input[data-search]")) {
    const rows = [...document.getElementById(field.dataset.search).rows];
    const said = document.getElementById(field.dataset.search + "-found");
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      let found = 0;
      for (const row of rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
        if (!row.hidden) found += 1;
      }
      said.textContent = found + " of " + rows.length;
    });
  }
})();
