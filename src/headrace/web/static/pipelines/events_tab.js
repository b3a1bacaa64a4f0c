// What happened, and what went wrong: errors stand beside the log lines that were written with them.

import { get, path } from "../api.js";
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
  let sign = null;

  function drawn(error) {
    const logs = error.container ? `${link`/pipelines/${name}`}?tab=logs&container=${encodeURIComponent(error.container)}&level=ERROR` : null;
    return card(null,
      h("div", { class: "card-head" }, h("h2", { class: "error-title" }, firstLine(error.text)), h("span", { class: "soft nowrap", title: f.moment(error.time_ms) }, f.ago(error.time_ms)),
        button("", () => copyText(error.text), { kind: "quiet", iconName: "copy", label: "Copy the error" })),
      h("dl", { class: "facts" },
        error.operator ? fact("Operator", h("a", { href: `${link`/pipelines/${name}`}?operator=${encodeURIComponent(error.operator)}` }, error.operator)) : null,
        error.record ? fact("Record", recordLink(error.record)) : null,
        error.window ? fact("Window", h("code", {}, error.window)) : null,
        error.container ? fact("Container", h("a", { href: logs }, error.container)) : null),
      error.text.includes("\n") ? h("pre", { class: "sample" }, error.text) : null,
      error.log_line ? [h("h3", { class: "beside" }, "In the log, just before"), h("pre", { class: "sample log-lines" }, error.log_line)] : null);
  }

  function recordLink(record) {
    const [topic, , partition, , offset] = record.split(" ");
    const [stream, ...rest] = topic.split("/");
    return h("a", { href: `${link`/topics/${stream}/${rest.join("/")}`}?tab=messages&partition=${partition}&offset=${offset}` }, record);
  }

  async function load() {
    const found = await ctx.guard(get(path`/api/pipelines/${name}/errors`, { signal: ctx.signal }));
    if (!found) return;
    replace(place, found.errors.length ? found.errors.map(drawn) : empty("Nothing went wrong, as far as anybody remembers."));
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
