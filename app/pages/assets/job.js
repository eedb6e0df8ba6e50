// Follow a job: state, progress, log and figures from server-sent events.
(function () {
  "use strict";

  const job = document.getElementById("job");
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
  const at = "/jobs/" + job.dataset.job;
  let source = null, drawing = false, wanted = false;

  function now() { return job.firstElementChild; }
  function sentence(text) { return text.slice(0, 1).toUpperCase() + text.slice(1); }
  function set(id, text) {
    const element = document.getElementById(id);
    if (element && element.textContent !== text) element.textContent = text;
  }

  function time(seconds) {
    if (seconds < 100) return Math.round(seconds) + " s";
    const minutes = Math.round(seconds / 60);
    return minutes < 100 ? minutes + " min" : Math.floor(minutes / 60) + " h " + minutes % 60 + " min";
  }

  // Reload the page's content; the common scripts draw charts and times.
  async function refresh() {
    await htmx.ajax("GET", at, { target: "#job", select: "#job > *", swap: "innerHTML" });
    tellTimes();
  }

  function tellTime(element) {
    const when = new Date(element.dateTime);
    element.textContent = clock.format(when);
    element.title = whole.format(when);
  }

  function tellTimes() {
    const log = document.getElementById("log"), box = log.parentElement;
    for (const one of log.querySelectorAll("time")) tellTime(one);
    box.scrollTop = box.scrollHeight;
  }

  function tellProgress(data) {
    const bar = document.getElementById("progress");
    if (bar) bar.value = data.progress;
    set("percent", percent.format(data.progress).replace("%", " %"));
    set("message", sentence(data.message));
    const started = now().dataset.started;
    if (started && data.progress >= 0.02) {
      const gone = (Date.now() - new Date(started).getTime()) / 1000;
      set("left", "about " + time(Math.max(0, gone * (1 - data.progress) / data.progress)) + " left");
    }
  }

  function tellLine(seq, data) {
    const log = document.getElementById("log"), box = log.parentElement, last = log.lastElementChild;
    if (last && Number(last.dataset.seq) >= seq) return;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const line = document.createElement("li"), when = document.createElement("time"), words = document.createElement("span");
    line.dataset.seq = seq;
    when.dateTime = data.at;
    tellTime(when);
    words.textContent = sentence(data.text);
    line.append(when, words);
    log.append(line);
    if (follows) box.scrollTop = box.scrollHeight;
    if (data.figures) drawTraces();
  }

  // The service builds the charts; redraw the existing ones with its numbers.
  async function drawTraces() {
    const here = document.getElementById("traces");
    if (!here) return;
    if (drawing) { wanted = true; return; }
    drawing = true;
    try {
      const answer = await fetch(at + "/traces", { headers: { "HX-Request": "true" } });
      if (answer.ok) put(here, new DOMParser().parseFromString(await answer.text(), "text/html"));
    } finally {
      drawing = false;
      if (wanted) { wanted = false; setTimeout(drawTraces, 700); }
    }
  }

  function put(here, fresh) {
    const figures = [...fresh.querySelectorAll("figure.chart")];
    const same = figures.length === here.children.length && figures.every((one, i) => one.id === here.children[i].id);
    if (!same) here.replaceChildren(...figures);
    figures.forEach((one, i) => {
      const shown = here.children[i];
      const data = JSON.parse(one.querySelector('script[type="application/json"]').textContent);
      if (same) for (const part of [".legend", "figcaption", "table"]) shown.querySelector(part).replaceChildren(...one.querySelector(part).childNodes);
      charts.draw(shown.querySelector("[data-chart]"), data);
    });
  }

  function stop() { if (source) source.close(); source = null; }

  async function tellState(data) {
    if (data.state !== now().dataset.state) await refresh();
    if (["succeeded", "failed", "cancelled"].includes(data.state)) stop();
    else tellProgress(data);
  }

  function follow() {
    source = new EventSource("/v1/jobs/" + job.dataset.job + "/events");
    source.addEventListener("open", () => { const lost = document.getElementById("lost"); if (lost) lost.hidden = true; });
    source.addEventListener("log", (event) => tellLine(Number(event.lastEventId) / 2, JSON.parse(event.data)));
    source.addEventListener("progress", (event) => tellProgress(JSON.parse(event.data)));
    source.addEventListener("state", (event) => tellState(JSON.parse(event.data)));
    source.addEventListener("error", () => { const lost = document.getElementById("lost"); if (lost) lost.hidden = false; });
  }

  tellTimes();
  if (now().hasAttribute("data-running")) follow();
  addEventListener("pagehide", stop);
  // Pause while the page is hidden; the events are replayed on return.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else if (!source && now().hasAttribute("data-running")) follow();
  });
})();
