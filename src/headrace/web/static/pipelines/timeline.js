// Windows and checkpoints over the last minutes: one lane for each query, a bar for each batch (as
// high as it took long, marked where its checkpoint was written), and below what waited.

import { svg as s } from "../dom.js";
import { clock, compact as count, duration as milliseconds } from "../format.js";
import { keyed, set } from "./svg.js";

const SPAN_MS = 90_000; // at most; of a pipeline that is younger, its life
const SPAN_MS_MIN = 20_000;
const LANE = 64;
const LAG = 74;
const LEFT = 132;
const RIGHT = 12;
const TOP = 8;
const AXIS = 22;

/** Instances of one operator are told apart by their number. */
function label(one, rows) {
  const copies = rows.filter((each) => each.operator === one.operator);
  return copies.length > 1 ? `${one.operator} ${copies.indexOf(one) + 1}` : one.operator;
}

export function makeTimeline() {
  let span = SPAN_MS;
  const lanes = s("g");
  const lag = s(
    "g",
    { class: "tl-lag" },
    s("text", { class: "tl-name", x: 0 }),
    s("text", { class: "tl-figure", x: 0 }),
    s("path", { class: "tl-area" }),
    s("path", { class: "tl-line", fill: "none" }),
  );
  const axis = s("g", { class: "tl-axis" });
  const drawing = s("svg", { class: "timeline", role: "img", "aria-label": "windows and checkpoints" }, lanes, lag, axis);

  function update(live, windows) {
    const width = Math.max(480, drawing.parentElement?.clientWidth ?? 900);
    const rows = windows.filter((one) => one.query);
    const height = TOP + rows.length * LANE + LAG + AXIS;
    set(drawing, { viewBox: `0 0 ${width} ${height}`, width, height });
    const end = live.now_ms;
    const first = Math.min(...windows.map((one) => one.at_ms[0] ?? end));
    span = Math.min(SPAN_MS, Math.max(SPAN_MS_MIN, end - first + 1_000));
    const x = (ms) => LEFT + ((ms - end + span) / span) * (width - LEFT - RIGHT);
    keyed(
      lanes,
      rows.map((one, index) => ({ ...one, index, label: label(one, rows) })),
      (one) => one.id,
      () =>
        s(
          "g",
          {},
          s("line", { class: "tl-base" }),
          s("line", { class: "tl-trigger" }, s("title")),
          s("text", { class: "tl-name", x: 0 }),
          s("text", { class: "tl-figure", x: 0 }),
          s("g"),
        ),
      (element, one) => drawLane(element, one, live, x, width),
    );
    drawLag(windows, TOP + rows.length * LANE, x, width, end);
    drawAxis(x, height, end);
  }

  function drawLane(element, one, live, x, width) {
    const [base, trigger, name, figure, bars] = element.children;
    const bottom = TOP + (one.index + 1) * LANE - 12;
    const inside = one.at_ms.map((at, index) => index).filter((index) => one.at_ms[index] > live.now_ms - span);
    const limit = live.trigger_ms ?? live.window_ms;
    const top = Math.max(limit * 1.15, ...inside.map((index) => one.duration_ms[index]));
    const tall = (ms) => (ms / top) * (LANE - 22);
    set(base, { x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom });
    set(trigger, { x1: LEFT, x2: width - RIGHT, y1: bottom - tall(limit), y2: bottom - tall(limit) });
    set(trigger.firstChild, { text: `a batch may take ${milliseconds(limit)}: the trigger` });
    set(name, { y: bottom - 22, text: one.label.length > 18 ? `${one.label.slice(0, 17)}…` : one.label });
    const last = one.duration_ms.at(-1);
    set(figure, { y: bottom - 6, text: last === undefined ? "no window yet" : `${milliseconds(last)} a batch` });
    keyed(
      bars,
      inside.map((index) => ({ index })),
      ({ index }) => one.at_ms[index],
      () => s("g", {}, s("title"), s("rect", { class: "tl-bar", rx: 1.5 }), s("circle", { class: "tl-check", r: 2 })),
      (bar, { index }) => {
        const [title, rect, check] = bar.children;
        const duration = one.duration_ms[index];
        const wide = Math.max(2, x(one.at_ms[index]) - x(one.at_ms[index] - duration) - 1);
        const over = duration > limit;
        set(rect, {
          x: Math.max(LEFT, x(one.at_ms[index]) - wide),
          y: bottom - Math.max(1.5, tall(duration)),
          width: wide,
          height: Math.max(1.5, tall(duration)),
          class: `tl-bar${over ? " over" : ""}${one.rows_bad[index] ? " bad" : ""}`,
        });
        set(check, { cx: x(one.at_ms[index]), cy: bottom + 5, class: `tl-check${one.checkpoint_ms[index] > limit / 2 ? " slow" : ""}` });
        set(title, {
          text:
            `${clock(one.at_ms[index])} window ${one.window[index]}\n` +
            `${milliseconds(duration)}, ${count(one.rows[index])} rows, checkpoint ${milliseconds(one.checkpoint_ms[index])}` +
            (one.rows_late[index] ? `, ${count(one.rows_late[index])} late` : "") +
            (one.rows_bad[index] ? `, ${count(one.rows_bad[index])} set aside` : ""),
        });
      },
    );
  }

  function drawLag(windows, top, x, width, end) {
    const [name, figure, area, line] = lag.children;
    const bottom = top + LAG - 8;
    // What waits anywhere: of each operator the value that held at a moment.
    const times = [...new Set(windows.flatMap((one) => one.at_ms))].filter((at) => at > end - span).sort((a, b) => a - b);
    const points = times.map((at) => [at, windows.reduce((sum, one) => sum + valueAt(one, at), 0)]);
    const most = Math.max(1, ...points.map((one) => one[1]));
    const y = (value) => bottom - (value / most) * (LAG - 26);
    set(name, { y: bottom - 22, text: "rows that wait" });
    set(figure, { y: bottom - 6, text: points.length ? count(points.at(-1)[1]) : "none" });
    const path = points.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    set(line, { d: path || "M0 0" });
    set(area, {
      d: points.length ? `${path}L${x(points.at(-1)[0]).toFixed(1)} ${bottom}L${x(points[0][0]).toFixed(1)} ${bottom}Z` : "M0 0",
    });
  }

  function drawAxis(x, height, end) {
    const step = span > 45_000 ? 15_000 : 5_000;
    const first = Math.ceil((end - span) / step) * step;
    const ticks = [];
    for (let at = first; at <= end; at += step) ticks.push(at);
    keyed(
      axis,
      ticks,
      (at) => at,
      () => s("g", {}, s("line"), s("text", { "text-anchor": "middle" })),
      (element, at) => {
        set(element.firstChild, { x1: x(at), x2: x(at), y1: TOP, y2: height - AXIS });
        set(element.lastChild, { x: Math.min(x(at), x(end) - 24), y: height - 6, text: clock(at) });
      },
    );
  }

  return { element: drawing, update };
}

function valueAt(one, at) {
  let found = 0;
  for (let index = one.at_ms.length - 1; index >= 0; index -= 1) {
    if (one.at_ms[index] <= at) {
      found = one.lag[index];
      break;
    }
  }
  return found;
}
