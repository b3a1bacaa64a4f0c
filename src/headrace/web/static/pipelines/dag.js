// The live graph of a pipeline. The server says in which cell each node stands (pipeline_graph.py);
// here cells get pixels, and nodes their figures: rows per second, what waits, how busy they are.

import { svg as s } from "../dom.js";
import { compact as count } from "../format.js";
import { keyed, set } from "./svg.js";
import { rows as rate } from "./words.js";

const NODE = { width: 216, height: 92 };
const GAP = { x: 76, y: 38 };
const MARGIN = 26;
const SCALE_MIN = 0.74;
const CONTAINER_PAD = 14;

function place(node) {
  return {
    x: MARGIN + node.layer * (NODE.width + GAP.x),
    y: MARGIN + node.row * (NODE.height + GAP.y),
  };
}

/** A drawing to put into the page; `update(graph)` brings it up to date. */
export function makeGraph({ onSelect, grouped = false }) {
  const boxes = s("g", { class: "dag-containers" });
  const links = s("g", { class: "dag-links" });
  const nodes = s("g", { class: "dag-nodes" });
  const drawing = s(
    "svg",
    { class: "dag", role: "group", "aria-label": "graph of operators" },
    s(
      "defs",
      {},
      s(
        "marker",
        {
          id: grouped ? "arrow-physical" : "arrow-logical",
          viewBox: "0 0 8 8",
          refX: 7,
          refY: 4,
          markerWidth: 9,
          markerHeight: 9,
          markerUnits: "userSpaceOnUse",
          orient: "auto-start-reverse",
        },
        s("path", { d: "M0 0 8 4 0 8z", class: "dag-arrow" }),
      ),
    ),
    boxes,
    links,
    nodes,
  );
  let selected = null;
  let ended = false; // it was stopped, or is done: nothing of it runs, and nothing of it fails

  function update(graph, over = false) {
    ended = over;
    const width = 2 * MARGIN + graph.layers * NODE.width + Math.max(0, graph.layers - 1) * GAP.x;
    const height = 2 * MARGIN + graph.rows * NODE.height + Math.max(0, graph.rows - 1) * GAP.y;
    // A graph that is a little too wide is drawn smaller; a wider one is scrolled.
    const room = drawing.parentElement?.clientWidth || width;
    const scale = Math.max(SCALE_MIN, Math.min(1, room / width));
    set(drawing, { viewBox: `0 0 ${width} ${height}`, width: width * scale, height: height * scale });
    const places = new Map(graph.nodes.map((one) => [one.id, place(one)]));
    if (grouped) drawContainers(graph, places);
    keyed(
      links,
      graph.links,
      (one) => `${one.source}>${one.target}/${one.stream}`,
      () => s("path", { fill: "none" }, s("title")),
      (element, one) => drawLink(element, one, places),
    );
    keyed(
      nodes,
      graph.nodes,
      (one) => one.id,
      (one) => makeNode(one),
      (element, one) => drawNode(element, one, places.get(one.id)),
    );
  }

  function drawContainers(graph, places) {
    // Only neighbours in one column or row make a box; others would enclose what is not theirs.
    const found = new Map();
    for (const node of graph.nodes) {
      const at = places.get(node.id);
      const box = found.get(node.container) ?? { id: node.container, x1: 1e9, y1: 1e9, x2: 0, y2: 0 };
      box.x1 = Math.min(box.x1, at.x);
      box.y1 = Math.min(box.y1, at.y);
      box.x2 = Math.max(box.x2, at.x + NODE.width);
      box.y2 = Math.max(box.y2, at.y + NODE.height);
      found.set(node.container, box);
    }
    keyed(
      boxes,
      [...found.values()].filter((one) => one.id),
      (one) => one.id,
      () => s("g", {}, s("rect", { rx: 14, class: "dag-container" }), s("text", { class: "dag-container-name" })),
      (element, one) => {
        set(element.firstChild, {
          x: one.x1 - CONTAINER_PAD,
          y: one.y1 - CONTAINER_PAD,
          width: one.x2 - one.x1 + 2 * CONTAINER_PAD,
          height: one.y2 - one.y1 + 2 * CONTAINER_PAD,
        });
        set(element.lastChild, { x: one.x1 - 4, y: one.y1 - CONTAINER_PAD - 4, text: one.id });
      },
    );
  }

  function drawLink(element, one, places) {
    const from = places.get(one.source);
    const to = places.get(one.target);
    const x1 = from.x + NODE.width;
    const y1 = from.y + NODE.height / 2;
    const x2 = to.x - 4;
    const y2 = to.y + NODE.height / 2;
    const bend = Math.max(30, (x2 - x1) / 2);
    set(element, {
      d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
      class: `dag-link${one.between_containers ? " split" : ""}${one.rows_per_second > 0 ? " flows" : ""}`,
      "stroke-width": (1.5 + Math.min(3, Math.log10(1 + one.rows_per_second) / 2)).toFixed(2),
      "marker-end": `url(#${grouped ? "arrow-physical" : "arrow-logical"})`,
    });
    const between = one.between_containers ? "through a topic between containers" : "in one query";
    set(element.firstChild, { text: `${one.stream}: ${rate(one.rows_per_second)}, ${between}` });
  }

  function makeNode(node) {
    const choose = () => onSelect(node.operator);
    return s(
      "g",
      {
        class: "dag-node",
        tabindex: 0,
        role: "button",
        dataset: { operator: node.operator },
        on: {
          click: choose,
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              choose();
            }
          },
        },
      },
      s("title"),
      s("rect", { class: "dag-card", rx: 12, width: NODE.width, height: NODE.height }),
      s("rect", { class: "dag-stripe", width: 4, height: NODE.height - 20, x: 0, y: 10, rx: 2 }),
      s("text", { class: "dag-name", x: 16, y: 25 }),
      s("text", { class: "dag-copies", x: NODE.width - 14, y: 25, "text-anchor": "end" }),
      s("text", { class: "dag-topic", x: 16, y: 42 }),
      s("text", { class: "dag-rate", x: 16, y: 66 }),
      s("text", { class: "dag-lag", x: NODE.width - 14, y: 66, "text-anchor": "end" }),
      s("rect", { class: "dag-track", x: 16, y: 76, width: NODE.width - 32, height: 4, rx: 2 }),
      s("rect", { class: "dag-busy", x: 16, y: 76, height: 4, rx: 2 }),
    );
  }

  function drawNode(element, node, at) {
    const [title, , , name, copies, topic, flow, lag, , busy] = element.children;
    const trouble = !ended && (node.failures > 0 || node.state === "INACTIVE");
    set(element, {
      transform: `translate(${at.x} ${at.y})`,
      class: `dag-node pressure-${node.pressure}${trouble ? " failing" : ""}${ended ? " resting" : ""}${
        node.operator === selected ? " selected" : ""
      }`,
      "aria-label": `${node.label}, ${rate(node.rows_per_second)}, busy ${Math.round(100 * node.busy)} percent, ${count(node.lag)} rows wait`,
    });
    set(title, {
      text:
        `${node.label}: ${node.state.toLowerCase()}, busy ${Math.round(100 * node.busy)} %` +
        `, ${node.batch_ms} ms a batch, ${count(node.rows_late)} late, ${count(node.rows_bad)} set aside`,
    });
    set(name, { text: shorten(node.label, node.instances > 1 ? 18 : 22) });
    set(copies, { text: node.instances > 1 ? `×${node.instances}` : "" });
    set(topic, { text: shorten(node.topic ? `${node.kind === "source" ? "reads" : "to"} ${node.topic}` : "", 28) });
    set(flow, { text: rate(node.rows_per_second) });
    set(lag, { text: node.lag ? `${count(node.lag)} wait` : "" });
    set(busy, { width: Math.max(0, Math.min(1, node.busy)) * (NODE.width - 32) });
  }

  return {
    element: drawing,
    update,
    select(operator) {
      selected = operator;
      for (const one of nodes.children) {
        one.classList.toggle("selected", one.dataset.operator === operator);
      }
    },
  };
}

function shorten(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

