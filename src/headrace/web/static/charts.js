// Small SVG charts. Colours come from CSS; each chart says in words what it shows.

import { h, replace, svg } from "./dom.js";
import { clock } from "./format.js";

/** A line without axes. values: numbers. Returns a node; update it with .update(values). */
export function sparkline(values = [], { width = 96, height = 24, label = "" } = {}) {
  const line = svg("path", { class: "spark-line" });
  const area = svg("path", { class: "spark-area" });
  const node = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, area, line);
  node.update = (next) => {
    const points = next.slice(-120);
    const most = Math.max(...points, 0) || 1;
    const step = points.length > 1 ? width / (points.length - 1) : 0;
    const path = points.map((value, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 1.5 - (value / most) * (height - 3)).toFixed(1)}`).join("");
    line.setAttribute("d", path || `M0 ${height - 1.5}L${width} ${height - 1.5}`);
    area.setAttribute("d", path ? `${path}L${width} ${height}L0 ${height}Z` : "");
  };
  node.update(values);
  return node;
}

function niceMaximum(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((one) => one * unit).find((one) => one >= value) ?? value;
}

/** Values over time. series: [{name, points: [[ms, value], ...]}].
 *  Returns {node, update(series)}. `format(value)` makes the labels. */
export function lineChart({ label, height = 180, format = String, series = [] } = {}) {
  const plot = svg("svg", { class: "chart-plot", role: "img", "aria-label": label, height });
  const tip = h("div", { class: "chart-tip", hidden: true });
  const legend = h("div", { class: "chart-legend" });
  const node = h("figure", { class: "chart" }, plot, tip, legend);
  let shown = series;
  const left = 56, right = 8, top = 8, bottom = 20;
  let box = null;

  function draw() {
    const width = Math.max(node.clientWidth, 120);
    const all = shown.flatMap((one) => one.points);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    plot.setAttribute("width", width);
    if (all.length < 2) {
      replace(plot, svg("text", { class: "chart-none", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Collecting samples…"));
      box = null;
      return;
    }
    let start = Infinity, end = -Infinity, most = 0;
    for (const [at, value] of all) {
      start = Math.min(start, at); end = Math.max(end, at); most = Math.max(most, value);
    }
    most = niceMaximum(most);
    const x = (at) => left + ((at - start) / (end - start || 1)) * (width - left - right);
    const y = (value) => top + (1 - value / most) * (height - top - bottom);
    box = { x, y, start, end, width };
    const marks = [];
    for (let i = 0; i <= 4; i += 2) {
      const value = (most * i) / 4;
      marks.push(svg("line", { class: "chart-grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        svg("text", { class: "chart-label", x: left - 8, y: y(value) + 3.5, "text-anchor": "end" }, format(value)));
    }
    const ticks = width > 480 ? 4 : 2;
    for (let i = 0; i <= ticks; i++) {
      const at = start + ((end - start) * i) / ticks;
      marks.push(svg("text", { class: "chart-label", x: x(at), y: height - 4, "text-anchor": i === 0 ? "start" : i === ticks ? "end" : "middle" }, clock(at)));
    }
    const lines = shown.map((one, i) => {
      const path = one.points.map(([at, value], j) => `${j ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const first = one.points[0], last = one.points[one.points.length - 1];
      return svg("g", { class: `series s${i % 6}` },
        shown.length === 1 && first ? svg("path", { class: "chart-area", d: `${path}L${x(last[0]).toFixed(1)} ${y(0)}L${x(first[0]).toFixed(1)} ${y(0)}Z` }) : null,
        svg("path", { class: "chart-line", d: path }));
    });
    replace(plot, ...marks, ...lines, svg("line", { class: "chart-cursor", y1: top, y2: height - bottom, visibility: "hidden" }));
  }

  function nearest(points, at) {
    let best = points[0];
    for (const one of points) if (Math.abs(one[0] - at) < Math.abs(best[0] - at)) best = one;
    return best;
  }

  plot.addEventListener("pointermove", (event) => {
    if (!box) return;
    const inside = event.clientX - plot.getBoundingClientRect().left;
    const at = box.start + ((inside - left) / (box.width - left - right)) * (box.end - box.start);
    const rows = shown.filter((one) => one.points.length).map((one) => [one.name, nearest(one.points, at)]);
    if (!rows.length) return;
    const cursor = plot.querySelector(".chart-cursor");
    const cx = box.x(rows[0][1][0]);
    cursor.setAttribute("x1", cx);
    cursor.setAttribute("x2", cx);
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    replace(tip, h("div", { class: "soft" }, clock(rows[0][1][0])), ...rows.map(([name, [, value]]) => h("div", {}, h("strong", {}, format(value)), name ? ` ${name}` : "")));
    tip.style.setProperty("left", `${Math.min(cx + 12, box.width - 130)}px`);
  });
  plot.addEventListener("pointerleave", () => {
    tip.hidden = true;
    plot.querySelector(".chart-cursor")?.setAttribute("visibility", "hidden");
  });

  function update(next) {
    shown = next;
    replace(legend, ...(next.length > 1 ? next.map((one, i) => h("span", { class: `legend s${i % 6}` }, one.name)) : []));
    draw();
  }
  new ResizeObserver(draw).observe(node);
  update(series);
  return { node, update };
}

/** Rows of [name, value] as horizontal bars. */
export function bars(rows, { format = String, label = "" } = {}) {
  const most = Math.max(...rows.map(([, value]) => value), 0) || 1;
  return h("div", { class: "bars", role: "img", "aria-label": label }, rows.map(([name, value]) => h("div", { class: "bar-row" },
    h("span", { class: "bar-name" }, name),
    h("span", { class: "bar-track" }, h("span", { class: "bar-fill", style: { width: `${Math.max((100 * value) / most, value ? 1 : 0)}%` } })),
    h("span", { class: "bar-value" }, format(value)))));
}

/** How much of something is used. */
export function meter(part, whole, { label = "", warnAt = 0.8, badAt = 0.92 } = {}) {
  const share = whole ? Math.min(part / whole, 1) : 0;
  return h("span", { class: `meter ${share >= badAt ? "bad" : share >= warnAt ? "warn" : ""}`, role: "meter", "aria-label": label, "aria-valuenow": Math.round(100 * share), "aria-valuemin": 0, "aria-valuemax": 100 },
    h("span", { class: "meter-fill", style: { width: `${100 * share}%` } }));
}
