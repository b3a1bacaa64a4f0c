// What happened, and what went wrong: errors stand beside the log lines that were written with them.

import { get, path, query } from "../api.js";
import { badge, button, card, copyText, empty, h, replace } from "../dom.js";
import * as f from "../format.js";
import { link } from "../router.js";
import { filterField, makeTable } from "../table.js";
import { eventDetail, eventText, firstLine, fact } from "./words.js";

export function eventsTab() {
  const table = makeTable({
    label: "Events",
    key: (one) => one.id,
    sort: "time",
    descending: true,
    columns: [
      { id: "time", title: "Time", text: (one) => f.clock(one.time_ms), sort: (one) => one.id, node: (one) => h("span", { title: f.moment(one.time_ms) }, f.clock(one.time_ms)) },
      { id: "type", title: "Event", text: eventText, node: (one) => badge(eventText(one), one.level === "ERROR" ? "bad" : "plain") },
      { id: "detail", title: "Detail", text: eventDetail, class: "long-cell", node: (one) => h("span", { title: eventDetail(one) }, eventDetail(one)) },
    ],
  });
  return {
    id: "events",
    label: "Events",
    node: h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table)), table.node),
    update(value) { table.update(value.events); },
  };
}

export function errorsTab({ ctx, name, live }) {
  const place = h("div", { class: "stack" });
  const known = new Map(); // errors that are drawn
  let sign = null;

  function drawn(error) {
    const logs = error.container ? `${link`/pipelines/${name}`}?tab=logs&container=${encodeURIComponent(error.container)}&level=ERROR` : null;
    return card(null,
      h("div", { class: "card-head" }, h("h2", { class: "error-title" }, firstLine(error.text)), h("span", { class: "soft nowrap", title: f.moment(error.time_ms) }, f.clock(error.time_ms)),
        button("", () => copyText(error.text), { kind: "quiet", iconName: "copy", label: "Copy the error" })),
      h("dl", { class: "facts" },
        error.operator ? fact("Operator", h("a", { href: `${link`/pipelines/${name}`}?operator=${encodeURIComponent(error.operator)}` }, error.operator)) : null,
        error.record ? fact("Record", recordLink(parseRecord(error.record))) : null,
        error.window ? fact("Window", h("code", {}, error.window)) : null,
        error.container ? fact("Container", h("a", { href: logs }, error.container)) : null),
      error.record ? sample(parseRecord(error.record)) : null,
      error.text.includes("\n") ? h("pre", { class: "sample" }, error.text) : null,
      error.log_line ? [h("h3", { class: "beside" }, "In the log, just before"), h("pre", { class: "sample log-lines" }, error.log_line)] : null);
  }

  /** `shop/orders partition 0 offset 7`, as errors name a record. */
  function parseRecord(record) {
    const [address, , partition, , offset] = record.split(" ");
    const [stream, ...rest] = address.split("/");
    return { record, stream, topic: rest.join("/"), partition, offset };
  }

  const recordLink = ({ record, stream, topic, partition, offset }) =>
    h("a", { href: `${link`/topics/${stream}/${topic}/messages`}?partition=${partition}&from=offset&offset=${offset}&open=${offset}` }, record);

  /** The row itself, read when somebody wants to see it. */
  function sample({ stream, topic, partition, offset }) {
    const text = h("pre", { class: "sample" }, "Reading…");
    const read = async () => {
      try {
        const { messages } = await get(path`/api/v1/streams/${stream}/topics/${topic}/messages` + query({ partition, offset, limit: 1 }), { signal: ctx.signal });
        const [found] = messages;
        text.textContent = found?.offset === Number(offset) ? (typeof found.value === "string" ? found.value : JSON.stringify(found.value, null, 2)) : "It is not kept any more.";
      } catch (error) {
        text.textContent = error.message;
      }
    };
    return h("details", { class: "row-sample", on: { toggle: (event) => { if (event.target.open && text.textContent === "Reading…") read(); } } }, h("summary", {}, "The row"), text);
  }

  async function load() {
    const found = await ctx.guard(get(path`/api/v1/pipelines/${name}/errors`, { signal: ctx.signal }));
    if (!found) return;
    // What is drawn stays as it is: a row that somebody opened does not close when another error comes.
    const cards = found.errors.map((error) => {
      const key = `${error.time_ms} ${error.operator} ${error.text}`;
      if (!known.has(key)) known.set(key, drawn(error));
      return known.get(key);
    });
    for (const [key, card] of known) if (!cards.includes(card)) known.delete(key);
    replace(place, cards.length ? [...new Set(cards)] : empty("Nothing went wrong, as far as anybody remembers."));
  }

  return {
    id: "errors",
    label: "Errors",
    node: place,
    update(value) {
      const now = String(value.health.last_error?.time_ms ?? 0) + value.events.filter((one) => one.level === "ERROR").length;
      if (now === sign || !place.isConnected) return;
      sign = now;
      load();
    },
    show() { sign = null; this.update(live()); },
    count: (value) => { const many = value.events.filter((one) => one.level === "ERROR").length; return many ? String(many) : ""; },
  };
}
