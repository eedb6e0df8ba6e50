// Draw charts from adjacent JSON: <div data-chart></div><script type="application/json">…</script>.
(function () {
  "use strict";

  const drawn = new Map();

  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function colour(index) { return css(index === null || index === undefined ? "--quiet" : "--c" + (index % 7)); }
  function faded(hex, part) {
    const n = parseInt(hex.slice(1), 16);
    return "rgba(" + (n >> 16 & 255) + "," + (n >> 8 & 255) + "," + (n & 255) + "," + part + ")";
  }

  function written(value) {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && (Math.abs(value) >= 1e9 || Math.abs(value) < 1e-4)) return value.toExponential(2).replace("e+", "e").replaceAll("-", "−");
    return value.toLocaleString("en", { maximumSignificantDigits: 4 }).replace("-", "−");
  }

  // Vertical marks and spans behind the lines.
  function marks(list) {
    return {
      hooks: {
        drawClear: [(u) => {
          const { ctx, bbox } = u;
          for (const mark of list) {
            if (mark.until === null || mark.until === undefined) continue;
            const from = u.valToPos(mark.x, "x", true), to = u.valToPos(mark.until, "x", true);
            ctx.save();
            ctx.fillStyle = faded(colour(mark.colour === undefined ? 3 : mark.colour), 0.16);
            ctx.fillRect(Math.max(from, bbox.left), bbox.top, Math.max(2, Math.min(to, bbox.left + bbox.width) - Math.max(from, bbox.left)), bbox.height);
            ctx.restore();
          }
        }],
        draw: [(u) => {
          const { ctx, bbox } = u, ratio = devicePixelRatio;
          // Labels that would overlap go on separate lines.
          const free = [-Infinity, -Infinity, -Infinity];
          for (const mark of list) {
            const at = u.valToPos(mark.x, "x", true);
            if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
            ctx.save();
            if (mark.until === null || mark.until === undefined) {
              ctx.strokeStyle = colour(mark.colour === undefined ? 3 : mark.colour);
              ctx.lineWidth = 1.5 * ratio;
              ctx.setLineDash([4 * ratio, 3 * ratio]);
              ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke();
            }
            if (mark.text) {
              ctx.font = 12 * ratio + "px system-ui, sans-serif";
              ctx.textAlign = "left";
              const width = ctx.measureText(mark.text).width;
              const left = Math.min(at + 4 * ratio, bbox.left + bbox.width - width);
              const line = free.findIndex((end) => left > end);
              if (line >= 0) {
                ctx.fillStyle = css("--text");
                ctx.fillText(mark.text, left, bbox.top + (12 + 14 * line) * ratio);
                free[line] = left + width + 8 * ratio;
              }
            }
            ctx.restore();
          }
        }],
      },
    };
  }

  function hover(plot, data) {
    const box = document.createElement("div");
    box.className = "hover";
    box.hidden = true;
    plot.append(box);
    return {
      hooks: {
        setCursor: [(u) => {
          const { idx, left, top } = u.cursor;
          if (idx === null || idx === undefined || left < 0) { box.hidden = true; return; }
          const x = u.data[0][idx];
          const head = data.names ? data.names[idx] : data.time ? new Date(x * 1000).toISOString().slice(0, data.hours ? 16 : 10).replace("T", " ") : (data.xLabel ? data.xLabel + " " : "") + written(x);
          box.replaceChildren();
          const title = document.createElement("b");
          title.textContent = head;
          box.append(title);
          for (const one of data.series) {
            const line = document.createElement("div");
            const value = one.values[idx];
            if (value === null || value === undefined) continue;
            line.textContent = one.name + ": " + written(value) + (one.upper ? " – " + written(one.upper[idx]) : "");
            box.append(line);
          }
          box.hidden = false;
          const wide = plot.clientWidth, own = box.offsetWidth, from = u.over.offsetLeft + left;
          box.style.left = (from + 14 + own > wide ? Math.max(0, from - own - 14) : from + 14) + "px";
          box.style.top = Math.max(0, Math.min(u.over.offsetTop + top - 10, plot.clientHeight - box.offsetHeight)) + "px";
        }],
      },
    };
  }

  // Unambiguous dates: minimum tick distance in seconds, label, and second line.
  const DATES = [
    [31536000, "{YYYY}", null, null, null, null, null, null, 1],
    [2419200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
    [86400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  ];

  function options(plot, data) {
    const series = [{}], bands = [];
    for (const one of data.series) {
      const line = colour(one.colour);
      const style = { label: one.name, stroke: line, width: 2, points: { show: false }, spanGaps: false };
      if (one.dashed) style.dash = [6, 4];
      if (one.style === "points") { style.width = 0; style.stroke = line; style.points = { show: true, size: 6, fill: line, stroke: line }; style.paths = () => null; }
      if (one.style === "bars") { style.paths = uPlot.paths.bars({ size: [0.92, 80] }); style.fill = faded(line, 0.65); style.width = 0; }
      if (one.style === "steps") style.paths = uPlot.paths.stepped({ align: 1 });
      if (one.style === "band") {
        const at = series.length;
        series.push({ ...style, width: 0 }, { ...style, width: 0 });
        bands.push({ series: [at + 1, at], fill: faded(line, 0.2) });
        continue;
      }
      series.push(style);
    }
    const axis = { stroke: css("--muted"), grid: { stroke: css("--rule"), width: 1 }, ticks: { stroke: css("--rule"), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    const bars = data.series.some((one) => one.style === "bars");
    const x = { ...axis, label: data.xLabel || undefined };
    if (data.names) {
      x.splits = (u) => u.data[0].filter((_, i) => i % Math.max(1, Math.ceil(data.names.length / Math.max(2, plot.clientWidth / 90))) === 0);
      x.values = (u, splits) => splits.map((at) => data.names[data.x.indexOf(at)] || "");
      x.grid = { show: false };
    } else if (data.time) {
      x.values = DATES;
    } else {
      x.values = (u, splits) => splits.map(written);
    }
    const step = data.x.length > 1 ? (data.x[data.x.length - 1] - data.x[0]) / (data.x.length - 1) : 1;
    return {
      width: Math.max(200, plot.clientWidth),
      height: plot.clientHeight,
      series, bands,
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      padding: [8, 20, 0, 0],
      scales: {
        x: { time: Boolean(data.time), range: (u, low, high) => data.range ? data.range : bars ? [low - step * 0.6, high + step * 0.6] : low === high ? [low - 1, high + 1] : [low, high] },
        y: { range: (u, low, high) => { if (low === null) return [0, 1]; const all = data.yRange || [low, high]; const room = (all[1] - all[0]) * 0.06 || Math.abs(all[1]) * 0.1 || 1; return [data.zero || bars ? Math.min(0, all[0]) : all[0] - room, all[1] + room]; } },
      },
      axes: [x, { ...axis, label: data.yLabel || undefined, size: 64, values: (u, splits) => splits.map(written) }],
      cursor: { drag: { setScale: false, x: false, y: false }, points: { size: 6 } },
      plugins: [marks(data.marks || []), hover(plot, data)].concat(data.plugins || []),
    };
  }

  function rowsOf(data) {
    const rows = [data.x];
    for (const one of data.series) {
      rows.push(one.values);
      if (one.style === "band") rows.push(one.upper);
    }
    return rows;
  }

  function draw(plot, data) {
    const before = drawn.get(plot);
    if (before) before.plot.destroy();
    plot.replaceChildren();
    if (!data.x.length) {
      const empty = document.createElement("p");
      empty.className = "muted";
      empty.textContent = "No data yet.";
      plot.append(empty);
      drawn.delete(plot);
      return null;
    }
    const made = new uPlot(options(plot, data), rowsOf(data), plot);
    drawn.set(plot, { plot: made, data });
    return made;
  }

  function find(root) {
    for (const plot of root.querySelectorAll("[data-chart]")) {
      if (!drawn.has(plot)) draw(plot, JSON.parse(plot.parentElement.querySelector('script[type="application/json"]').textContent));
    }
  }

  function again() { for (const [plot, { data }] of [...drawn]) if (plot.isConnected) draw(plot, data); else drawn.delete(plot); }

  // Other scripts redraw a chart with new data: charts.draw(element, data).
  window.charts = { draw, written, colour, of: (plot) => drawn.get(plot) };

  find(document);
  // The swapped content may have replaced the target.
  document.addEventListener("htmx:afterSettle", (event) => find(event.detail.target.isConnected ? event.detail.target : document));
  document.addEventListener("themechange", again);
  let wait = 0;
  addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(again, 120); });
  document.addEventListener("toggle", (event) => { if (event.target.open) find(event.target); }, true);
})();
