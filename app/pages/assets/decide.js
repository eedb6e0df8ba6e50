// The decide page: sliders and the line in the chart move together, and fields show their errors.
(function () {
  "use strict";

  const form = () => document.getElementById("mine");
  const rows = () => [...document.querySelectorAll("#mine .try")];
  const rowOf = (entry) => rows().find((row) => row.dataset.entry === entry);
  const textOf = (row) => row.querySelector("input[name]");
  const rangeOf = (row) => row.querySelector("input[type=range]");
  const chosen = () => document.getElementById("entry").value;
  const written = (value) => String(Number(Number(value).toPrecision(7)));
  const numberOf = (text) => Number(text.trim().replace("−", "-").replace(",", "."));

  // the draggable line in the chart; null without a chart
  let line = null;

  function place() {
    if (!line) return;
    const row = rowOf(line.entry), value = row ? numberOf(textOf(row).value) : NaN;
    line.element.hidden = !Number.isFinite(value);
    if (line.element.hidden) return;
    const at = line.plot.valToPos(value, "x");
    line.element.style.left = Math.min(Math.max(at, 0), line.plot.over.clientWidth) - 1.5 + "px";
  }

  function curveAgain() { htmx.trigger("#curve", "again"); }

  function choose(entry) {
    const select = document.getElementById("entry");
    if (select.value === entry) return;
    select.value = entry;
    curveAgain();
  }

  // Keep a slider and its field equal before anything is sent.
  document.addEventListener("input", (event) => {
    const input = event.target;
    if (input.id === "risk") {
      document.getElementById("risk-shown").textContent = Math.round(100 * input.value) + " %";
      return;
    }
    if (!form() || input.form !== form()) return;
    const row = input.closest(".try");
    if (row) {
      if (input === rangeOf(row)) textOf(row).value = written(input.value);
      else if (Number.isFinite(numberOf(input.value))) rangeOf(row).value = numberOf(input.value);
      choose(row.dataset.entry);
    } else if (input.id === "entry") {
      if (rows().some((one) => one.hidden)) for (const one of rows()) one.hidden = one.dataset.entry !== input.value;
      curveAgain();
      // The adjusted entries depend on the chosen entry.
      if (form().elements.rest && form().elements.rest.checked) form().dispatchEvent(new Event("input"));
    } else if (input.name === "rest") {
      curveAgain();
    }
    place();
  }, true);

  document.addEventListener("click", (event) => {
    if (event.target.id !== "back") return;
    for (const row of rows()) {
      textOf(row).value = textOf(row).dataset.ours;
      rangeOf(row).value = textOf(row).dataset.ours;
    }
    textOf(rowOf(chosen())).dispatchEvent(new Event("input", { bubbles: true }));
    curveAgain();
  });

  // A line over the chart that follows the pointer.
  function handle(data) {
    return {
      hooks: {
        ready: [(plot) => {
          const element = document.createElement("div");
          element.className = "handle";
          plot.over.append(element);
          line = { plot, element, entry: data.entry };
          let held = false;
          const move = (event) => {
            const { left } = plot.over.getBoundingClientRect(), { min, max } = plot.scales.x;
            const at = Math.min(Math.max(plot.posToVal(event.clientX - left, "x"), min), max);
            const row = rowOf(data.entry);
            if (!row) return;
            textOf(row).value = written(Math.round(at / data.step) * data.step);
            textOf(row).dispatchEvent(new Event("input", { bubbles: true }));
          };
          plot.over.addEventListener("pointerdown", (event) => {
            held = true;
            plot.over.setPointerCapture(event.pointerId);
            move(event);
          });
          plot.over.addEventListener("pointermove", (event) => { if (held) move(event); });
          for (const name of ["pointerup", "pointercancel"]) plot.over.addEventListener(name, () => { held = false; });
          place();
        }],
      },
    };
  }

  function attachHandle() {
    const plot = document.querySelector("#cost-curve [data-chart]"), drawn = plot && charts.of(plot);
    if (!drawn || drawn.data.plugins) return;
    charts.draw(plot, { ...drawn.data, plugins: [handle(drawn.data)] });
  }

  // Mark fields that have an error.
  function mistakes() {
    for (const wrong of document.querySelectorAll("#context .wrong")) {
      const field = document.getElementById(wrong.id.replace(/-wrong$/, ""));
      if (wrong.textContent.trim()) field.setAttribute("aria-invalid", "true"); else field.removeAttribute("aria-invalid");
    }
  }

  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target.id === "answer") { line = null; mistakes(); }
    if (event.detail.target.id === "curve") attachHandle();
  });

  // Pressing Decide also fires the change of a field; send one request, the logged one.
  let pressed = null;
  document.addEventListener("htmx:beforeRequest", (event) => {
    const context = document.getElementById("context");
    if (!context) return;
    const now = new URLSearchParams(new FormData(context)).toString();
    if (event.detail.elt.id === "press") pressed = now;
    if (event.detail.elt === context) {
      if (pressed === now) event.preventDefault();
      pressed = null;
    }
  });
})();
