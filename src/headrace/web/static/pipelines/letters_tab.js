// Dead letters: rows that an operator set aside, why, and sending them on their way again.

import { get, path, query } from "../api.js";
import { badge, button, dialog, empty, h, replace, setText } from "../dom.js";
import * as f from "../format.js";
import { setQuery } from "../router.js";
import { makeTable } from "../table.js";
import * as act from "./actions.js";
import { fact, firstLine } from "./words.js";

const COUNT_MS = 15_000; // at least between two looks at how many wait: each asks the broker

export function lettersTab({ ctx, name, live }) {
  let boxes = [];
  let waiting = 0; // letters, as the broker has them
  let counted = -1, askedAt = -Infinity; // bad rows when they were counted last, and when that was
  let chosen = ctx.query.get("letters") ?? "";
  let all = ctx.query.get("redriven") === "1";
  const picked = new Set();
  const strip = h("div", { class: "letter-boxes", role: "group", "aria-label": "Operators with dead letters" });
  const everything = h("input", { type: "checkbox", checked: all, on: { change: () => { all = everything.checked; setQuery({ redriven: all ? 1 : null }); loadLetters(); } } });
  const some = button("Send chosen again", () => send(true), { iconName: "send", disabled: true });
  const rest = button("Send all again", () => send(false), { iconName: "send" });
  const table = makeTable({
    label: "Dead letters",
    key: (one) => `${one.partition}/${one.offset}`,
    sort: "time",
    descending: true,
    empty: empty("No letter waits here."),
    columns: [
      { id: "pick", title: "", sort: false, class: "tight", text: (one) => `${one.redriven}`, sign: (one) => `${one.redriven} ${picked.has(id(one))}`, node: (one) => checkbox(one) },
      { id: "time", title: "Set aside", text: (one) => f.moment(one.time_ms), sort: (one) => one.time_ms, node: (one) => h("button", { class: "link", type: "button", on: { click: () => show(one) } }, f.moment(one.time_ms)) },
      { id: "reason", title: "Reason", class: "long-cell", text: (one) => firstLine(one.reason) },
      { id: "record", title: "Record", wide: true, text: (one) => one.record || "its own row" },
      { id: "payload", title: "Original", wide: true, class: "mono long-cell", text: (one) => one.payload.slice(0, 120) },
      { id: "state", title: "", text: (one) => (one.redriven ? "sent again" : "waits"), node: (one) => badge(one.redriven ? "sent again" : "waits", one.redriven ? "good" : "warn") },
    ],
  });
  const manage = ctx.session.may_manage;
  const list = h("section", { class: "card flush", hidden: true },
    h("div", { class: "toolbar" }, h("label", { class: "inline-field" }, everything, "Also those sent again"), h("span", { class: "spring" }), manage ? some : null, manage ? rest : null), table.node);
  const nothing = h("div", { class: "card" }, empty("Looking…"));
  const node = h("div", { class: "stack" }, nothing, strip, list);

  const id = (one) => `${one.partition}/${one.offset}`;

  function checkbox(one) {
    if (one.redriven || !manage) return h("span");
    const box = h("input", { type: "checkbox", checked: picked.has(id(one)), "aria-label": `Choose letter ${one.offset}`, on: { change: () => {
      if (box.checked) picked.add(id(one)); else picked.delete(id(one));
      some.disabled = !picked.size;
    } } });
    return box;
  }

  function show(one) {
    return dialog(`Letter ${one.offset}`, (close) => h("div", { class: "dialog-body" },
      h("dl", { class: "facts" }, fact("Reason", one.reason || "not said"), fact("Operator", one.operator), one.window ? fact("Window", h("code", {}, one.window)) : null,
        fact("Record", one.record || "the operator's own row"), one.origin ? fact("First stood at", one.origin) : null, one.key ? fact("Key", h("code", {}, one.key)) : null,
        fact("Set aside", f.moment(one.time_ms, { millis: true })), one.redrives ? fact("Sent again before", f.plural(one.redrives, "time")) : null),
      h("h3", { class: "beside" }, one.text ? "Original" : "Original, hexadecimal"), h("pre", { class: "sample" }, pretty(one.payload)),
      h("footer", {}, button("Close", () => close(), { kind: manage && !one.redriven ? "" : "primary" }),
        manage && !one.redriven ? button("Send again", async () => { close(); await redrive({ [one.partition]: [one.offset] }, "this letter"); }, { kind: "primary", iconName: "send" }) : null)), { wide: true });
  }

  function pretty(text) {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
  }

  const box = () => boxes.find((one) => one.topic === chosen) ?? boxes[0];

  function send(onlyChosen) {
    const offsets = {};
    for (const one of onlyChosen ? picked : []) {
      const [partition, offset] = one.split("/").map(Number);
      (offsets[partition] ??= []).push(offset);
    }
    return redrive(offsets, onlyChosen ? f.plural(picked.size, "letter") : `all ${f.plural(box().waiting, "letter")} that wait`);
  }

  async function redrive(offsets, many) {
    if (await act.redrive(name, box().operator, box().topic, offsets, many)) {
      picked.clear();
      some.disabled = true;
      await load();
    }
  }

  async function loadLetters() {
    const from = box();
    list.hidden = !from;
    if (!from) return;
    const found = await ctx.guard(get(path`/api/v1/pipelines/${name}/dead-letters/${from.operator}` + query({ topic: from.topic, count: 200, all: all ? "true" : "" }), { signal: ctx.signal }));
    if (found) table.update(found.letters);
    rest.disabled = !from.waiting;
  }

  const sum = (found) => found.reduce((all, one) => all + one.waiting, 0);
  const none = (bad) => (bad
    ? empty(`${f.plural(bad, "bad row was", "bad rows were")} dropped, and none set aside.`, "Set on_bad_row to \"dead_letter\" to keep them.")
    : empty("No row was ever set aside."));

  async function load() {
    let found;
    try {
      found = await get(path`/api/v1/pipelines/${name}/dead-letters`, { signal: ctx.signal });
    } catch (error) {
      if (error.name !== "AbortError") replace(nothing, h("p", { class: "problem" }, error.message));
      return;
    }
    boxes = found.operators;
    waiting = sum(boxes);
    nothing.hidden = boxes.length > 0;
    if (!boxes.length) replace(nothing, none(live().health.rows_dead));
    replace(strip, boxes.map((one) => {
      const made = h("button", { type: "button", class: "letter-box", "aria-pressed": String(one === box()), dataset: { topic: one.topic }, on: { click: () => { chosen = one.topic; setQuery({ letters: chosen }); picked.clear(); load(); } } },
        h("strong", {}, one.operator), h("span", {}, `${f.number(one.waiting)} wait`), h("span", { class: "soft" }, `${f.number(one.letters)} in ${one.topic}${one.newest_ms ? `, newest ${f.ago(one.newest_ms)}` : ""}`));
      return made;
    }));
    await loadLetters();
  }

  return {
    id: "letters",
    label: "Dead letters",
    node,
    update() {},
    show: load,
    count(value) {
      if (value.health.rows_dead !== counted && performance.now() - askedAt > COUNT_MS) {
        counted = value.health.rows_dead;
        askedAt = performance.now();
        get(path`/api/v1/pipelines/${name}/dead-letters`, { signal: ctx.signal }).then((found) => { waiting = sum(found.operators); }, () => {});
      }
      return waiting ? f.compact(waiting) : "";
    },
  };
}
