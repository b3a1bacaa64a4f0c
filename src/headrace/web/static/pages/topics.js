// All topics, live.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { link, route, setQuery } from "../router.js";
import { filterField, makeTable } from "../table.js";

nav({ id: "topics", label: "Topics", icon: "topics", href: "#/topics", key: "t", group: "Data", order: 20 });

const key = (row) => `${row.stream_id}/${row.id}`;

route("/topics", "Topics", async (ctx) => {
  const table = makeTable({
    label: "Topics", key, rows: [],
    sort: ctx.query.get("sort") ?? "name", descending: ctx.query.get("down") === "1", filter: ctx.query.get("filter") ?? "",
    onView: (view) => setQuery({ sort: view.sort, down: view.descending ? "1" : null, filter: view.filter }),
    columns: [
      { id: "name", title: "Topic", text: (row) => `${row.stream}/${row.name}`, node: (row) => h("a", { href: link`/topics/${row.stream}/${row.name}` }, h("span", { class: "soft" }, `${row.stream}/`), row.name) },
      { id: "rate", title: "In", number: true, text: (row) => f.rate(row.messages_per_second), sort: (row) => row.messages_per_second },
      { id: "messages", title: "Messages", number: true, text: (row) => f.number(row.messages), sort: (row) => row.messages },
      { id: "bytes", title: "Size", number: true, text: (row) => f.bytes(row.bytes), sort: (row) => row.bytes },
      { id: "partitions", title: "Partitions", number: true, wide: true, text: (row) => f.number(row.partitions), sort: (row) => row.partitions },
      { id: "retention", title: "Retention", wide: true, text: retention, sort: (row) => row.expiry_ms },
      { id: "durability", title: "Durability", wide: true, text: (row) => f.text(row.durability) },
      { id: "replicas", title: "Replicas", number: true, wide: true, text: (row) => f.number(row.replicas), sort: (row) => row.replicas },
    ],
  });
  replace(ctx.main, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table, { placeholder: "Filter topics", label: "Filter topics" })), table.node));
  const found = await ctx.guard(get("/api/v1/topics", { signal: ctx.signal }));
  if (!found) return;
  const rows = new Map(found.topics.map((row) => [key(row), row]));
  table.update([...rows.values()]);
  ctx.live("topics", (changes) => {
    for (const [stream, topic, messages, bytes, rate, size] of changes) {
      const row = rows.get(`${stream}/${topic}`);
      if (row) Object.assign(row, { messages, bytes, messages_per_second: rate, bytes_per_second: size });
    }
    table.update([...rows.values()]);
  });
}, { nav: "topics" });

export function retention(row) {
  const limits = [row.expiry_ms === null ? "" : f.duration(row.expiry_ms), row.max_bytes === null ? "" : f.bytes(row.max_bytes)].filter(Boolean);
  return limits.length ? limits.join(", ") : "forever";
}
