// The live graph, the operator that was chosen in it, and the windows and checkpoints below.

import { get, path } from "../api.js";
import { badge, button, card, dialog, h, replace } from "../dom.js";
import * as f from "../format.js";
import { setQuery } from "../router.js";
import * as act from "./actions.js";
import { makeGraph } from "./dag.js";
import { makeTimeline } from "./timeline.js";
import { RESTING, fact, percent, plain, rows, windowText } from "./words.js";

export function graphTab({ ctx, name, live }) {
  let view = ctx.query.get("view") === "physical" ? "physical" : "logical";
  let operator = ctx.query.get("operator");
  const graphs = {
    logical: makeGraph({ onSelect: choose }),
    physical: makeGraph({ onSelect: choose, grouped: true }),
  };
  const timeline = makeTimeline();
  const scroller = h("div", { class: "dag-scroll" });
  const switches = ["logical", "physical"].map((one) =>
    h("button", { type: "button", dataset: { view: one }, on: { click: () => show(one) } }, one === "logical" ? "Logical" : "Physical"));
  const legend = h("div", { class: "dag-legend" },
    h("span", { class: "pressure-low" }, "has room"), h("span", { class: "pressure-some" }, "busy"), h("span", { class: "pressure-high" }, "at its limit"),
    h("span", { class: "split-line" }, "between containers"));
  const panel = h("section", { class: "card operator-panel", hidden: true });
  const node = h("div", { class: "stack" },
    h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Graph"), legend, h("div", { class: "segmented", role: "group", "aria-label": "Which graph" }, switches)), scroller),
    panel,
    card("Windows and checkpoints", h("div", { class: "timeline-scroll" }, timeline.element)));

  function show(one) {
    view = one;
    setQuery({ view: view === "physical" ? view : null });
    update(live());
  }

  function choose(one) {
    operator = operator === one ? null : one;
    setQuery({ operator });
    panel.dataset.sign = "";
    update(live());
    if (operator) panel.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  function update(value) {
    for (const one of switches) one.setAttribute("aria-pressed", String(one.dataset.view === view));
    const graph = graphs[view];
    if (scroller.firstChild !== graph.element) scroller.replaceChildren(graph.element);
    graph.update(value.graphs[view], RESTING.has(value.health.state));
    graph.select(operator);
    timeline.update(value, value.windows);
    drawPanel(value);
  }

  function drawPanel(value) {
    const copies = value.operators.filter((one) => one.name === operator);
    panel.hidden = !copies.length;
    if (!copies.length) return;
    const first = copies[0];
    const node = value.graphs.logical.nodes.find((one) => one.operator === operator);
    // Figures change each second, buttons and fields do not: only those are drawn anew.
    const sign = JSON.stringify([operator, first.properties, copies.length, copies.map((one) => one.recording_id), value.health.state]);
    if (panel.dataset.sign !== sign) {
      panel.dataset.sign = sign;
      replace(panel, panelHead(value, copies, node), h("div", { class: "operator-parts" }, h("div", {}, h("h3", {}, "Now"), h("dl", { class: "facts" })), properties(first), attributes(first)));
    }
    const sum = (field) => copies.reduce((total, one) => total + one[field], 0);
    replace(panel.querySelector(".facts"),
      fact("State", [...new Set(copies.map((one) => one.state.toLowerCase()))].join(", ")),
      fact("Rows", `${rows(sum("rows_in_per_second"))} in, ${rows(sum("rows_out_per_second"))} out`),
      fact("In all", `${f.number(sum("rows_in"))} in, ${f.number(sum("rows_out"))} out`),
      fact("Busy", `${percent(node?.busy ?? 0)}, ${f.duration(node?.batch_ms ?? 0)} a batch`),
      fact("Waiting", `${f.number(node?.lag ?? 0)} rows`),
      fact("Late, set aside", `${f.number(sum("rows_late"))}, ${f.number(sum("rows_bad"))}`),
      fact("Checkpoint", windowText(first.checkpoint_window)),
      first.last_error ? fact("Last error", h("span", { class: "bad-text" }, first.last_error.split("\n")[0])) : null,
      Object.entries(first.metrics).filter(([key]) => !key.endsWith("_ms")).slice(0, 12).map(([key, one]) => fact(key.replaceAll("_", " "), plain(one))));
  }

  function panelHead(value, copies, node) {
    const [first] = copies;
    const running = value.health.state === "RUNNING";
    const manage = ctx.session.may_manage && running;
    const scalable = first.attributes.STATELESS === true; // only then can its rows be shared anew
    return h("div", { class: "card-head" },
      h("h2", {}, operator, " ", copies.length > 1 ? badge(`${copies.length} instances`, "busy") : null),
      h("span", { class: "soft mono operator-function" }, first.function),
      manage && scalable ? button("Scale", () => act.scale(name, operator, copies.length), { iconName: "plus" }) : null,
      manage && first.query ? button("Record rows", () => record(first), { iconName: "pulse" }) : null,
      button("", () => choose(operator), { kind: "quiet", iconName: "close", label: `Close ${operator}` }));
  }

  function properties(first) {
    const entries = Object.entries(first.properties);
    const live_ = first.attributes.LIVE_PROPERTIES ?? [];
    const manage = ctx.session.may_manage && live().health.state === "RUNNING";
    return h("div", {}, h("h3", {}, "Properties"), entries.length
      ? h("dl", { class: "facts property-list" }, entries.map(([key, one]) => fact(key, h("span", { class: "property-value", dataset: { property: key } }, plain(one)),
        live_.includes(key) ? " " : null, live_.includes(key) ? badge("live", "busy") : null,
        manage && first.inputs.length ? button("", () => act.setProperty(name, operator, key, one, live_.includes(key)), { kind: "quiet", iconName: "edit", label: `Change ${key}` }) : null)))
      : h("p", { class: "soft" }, "It has none."));
  }

  function attributes(first) {
    const entries = Object.entries(first.attributes);
    return h("div", {}, h("h3", {}, "Attributes"), entries.length
      ? h("dl", { class: "facts" }, entries.map(([key, one]) => fact(key, plain(one))))
      : h("p", { class: "soft" }, "All are the defaults."));
  }

  async function record(first) {
    const id = await act.record(name, first.id, first.name);
    if (id) await showRecording(id, first);
  }

  function showRecording(id, first) {
    const place = h("div", { class: "recording" }, h("p", { class: "soft" }, "Waiting for the next window…"));
    let timer = 0;
    const look = async () => {
      try {
        const { windows } = await get(path`/api/v1/pipelines/${name}/recordings/${id}`);
        if (windows.length) replace(place, windows.slice(-8).reverse().map((one) => h("div", {}, h("h3", {}, `Window ${one.window}`), h("pre", { class: "sample" }, one.rows.map((row) => JSON.stringify(row)).join("\n")))));
      } catch (error) {
        replace(place, h("p", { class: "problem" }, error.message));
      }
      timer = setTimeout(look, 1000);
    };
    look();
    return dialog(`Rows of ${first.name}`, (close) => h("div", { class: "dialog-body" }, place,
      h("footer", {}, button("Stop recording", async () => { await act.stopRecording(name, first.id, first.name); close(); }, { kind: "primary" }))), { wide: true }).then(() => clearTimeout(timer));
  }

  return { id: "graph", label: "Graph", node, update };
}
