// Topics and streams: what there is, live, and making more of it.

import { del, get, path, post } from "../api.js";
import { button, confirm, empty, formDialog, h, replace, toast } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { go, link, route, setQuery } from "../router.js";
import { filterField, makeTable } from "../table.js";

nav({ id: "topics", label: "Topics", icon: "topics", href: "#/topics", key: "t", group: "Data", order: 20 });
nav({ id: "streams", label: "Streams", icon: "streams", href: "#/streams", key: "s", group: "Data", order: 21 });

const key = (row) => `${row.stream_id}/${row.id}`;

route("/topics", "Topics", async (ctx) => {
  const { rights } = ctx.session;
  const mayCreate = rights.manage_streams || rights.manage_topics;
  const create = mayCreate ? button("New topic", () => createTopic(ctx.query.get("stream") ?? ""), { kind: "primary", iconName: "plus" }) : null;
  ctx.head({ title: "Topics", actions: [create] });
  const table = makeTable({
    label: "Topics", key, rows: [],
    sort: ctx.query.get("sort") ?? "name", descending: ctx.query.get("down") === "1", filter: ctx.query.get("filter") ?? "",
    onView: (view) => setQuery({ sort: view.sort === "name" && !view.descending ? null : view.sort, down: view.descending ? "1" : null, filter: view.filter }),
    empty: empty("No topics yet.", mayCreate ? "headrace topic create shop/orders" : "Ask whoever runs this server for rights to see them."),
    columns: [
      { id: "name", title: "Topic", text: (row) => `${row.stream}/${row.name}`, node: (row) => h("a", { href: link`/topics/${row.stream}/${row.name}` }, h("span", { class: "soft" }, `${row.stream}/`), row.name) },
      { id: "rate", title: "In", number: true, text: (row) => f.rate(row.messages_per_second), sort: (row) => row.messages_per_second },
      { id: "size", title: "Bytes in", number: true, wide: true, text: (row) => `${f.bytes(row.bytes_per_second)}/s`, sort: (row) => row.bytes_per_second },
      { id: "messages", title: "Messages", number: true, text: (row) => f.compact(row.messages), sort: (row) => row.messages },
      { id: "bytes", title: "Size", number: true, text: (row) => f.bytes(row.bytes), sort: (row) => row.bytes },
      { id: "partitions", title: "Partitions", number: true, wide: true, text: (row) => f.number(row.partitions), sort: (row) => row.partitions },
      { id: "replicas", title: "Replicas", number: true, wide: true, text: (row) => f.number(row.replicas), sort: (row) => row.replicas },
      { id: "retention", title: "Retention", wide: true, text: retention, sort: (row) => row.expiry_ms },
      { id: "durability", title: "Durability", wide: true, text: (row) => f.text(row.durability) },
    ],
  });
  replace(ctx.main, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table, { placeholder: "Filter topics", label: "Filter topics" })), table.node));
  const rows = new Map();
  async function load() {
    const found = await ctx.guard(get("/api/v1/topics", { signal: ctx.signal }));
    if (!found) return;
    rows.clear();
    for (const row of found.topics) rows.set(key(row), row);
    table.update([...rows.values()]);
  }
  await load();
  ctx.every(5000, () => { if ([...rows.values()].some((row) => row.durability === null)) load(); });
  ctx.live("topics", (changes) => {
    let known = changes.length === rows.size;
    for (const [stream, topic, messages, bytes, rate, size] of changes) {
      const row = rows.get(`${stream}/${topic}`);
      if (row) Object.assign(row, { messages, bytes, messages_per_second: rate, bytes_per_second: size });
      else known = false;
    }
    if (known) table.update([...rows.values()]);
    else load();
  });
}, { nav: "topics" });

export function retention(row) {
  const limits = [row.expiry_ms === null ? "" : f.duration(row.expiry_ms), row.max_bytes === null ? "" : f.bytes(row.max_bytes)].filter(Boolean);
  return limits.length ? limits.join(", ") : "forever";
}

export async function createTopic(stream = "") {
  const { streams } = await get("/api/v1/streams");
  if (!streams.length) { toast("Create a stream first: topics live in streams.", "bad"); return; }
  let made = "";
  const done = await formDialog("New topic", [
    { name: "stream", label: "Stream", options: streams.map((one) => [one.name, one.name]), value: stream },
    { name: "name", label: "Name", required: true, placeholder: "orders" },
    { name: "partitions", label: "Partitions", type: "number", min: 1, max: 1000, value: 1, hint: "Order is kept within a partition. More can be added later." },
    { name: "hours", label: "Keep messages for (hours)", type: "number", min: 0, step: "any", hint: "Empty: the server's default. 0: for ever." },
    { name: "mib", label: "Size limit (MiB)", type: "number", min: 0, step: "any", hint: "Empty: the server's default. 0: none." },
    { name: "replicas", label: "Replicas", type: "number", min: 0, max: 3, value: 0, hint: "Data nodes that keep it. 0: the server's default." },
  ], async (given) => {
    await post(path`/api/v1/streams/${given.stream}/topics`, {
      name: given.name, partitions: Number(given.partitions), replicas: Number(given.replicas || 0),
      expiry_ms: given.hours === "" ? null : Math.round(Number(given.hours) * 3.6e6), max_bytes: given.mib === "" ? null : Math.round(Number(given.mib) * 1048576),
    });
    made = link`/topics/${given.stream}/${given.name}`;
  }, { action: "Create topic" });
  if (done) { toast("Topic created"); go(made); }
}

route("/streams", "Streams", async (ctx) => {
  const manages = ctx.session.rights.manage_streams;
  ctx.head({ title: "Streams", lead: "A stream holds topics that belong together.", actions: [manages ? button("New stream", create, { kind: "primary", iconName: "plus" }) : null] });
  const table = makeTable({
    label: "Streams", key: (row) => row.id, rows: [], sort: "name", filter: ctx.query.get("filter") ?? "",
    onView: (view) => setQuery({ filter: view.filter }),
    empty: empty("No streams yet.", "headrace stream create shop"),
    columns: [
      { id: "name", title: "Stream", text: (row) => row.name, node: (row) => h("a", { href: `#/topics?filter=${encodeURIComponent(`${row.name}/`)}` }, row.name) },
      { id: "topics", title: "Topics", number: true, text: (row) => f.number(row.topics), sort: (row) => row.topics },
      { id: "rate", title: "In", number: true, text: (row) => f.rate(row.messages_per_second), sort: (row) => row.messages_per_second },
      { id: "messages", title: "Messages", number: true, wide: true, text: (row) => f.compact(row.messages), sort: (row) => row.messages },
      { id: "bytes", title: "Size", number: true, wide: true, text: (row) => f.bytes(row.bytes), sort: (row) => row.bytes },
      { id: "created", title: "Created", wide: true, text: (row) => f.moment(row.created_ms), sort: (row) => row.created_ms },
      ...(manages ? [{ id: "do", title: "", sort: false, number: true, text: () => "", sign: (row) => row.name, node: (row) => h("span", { class: "row-actions" },
        button("", () => purge(row), { kind: "quiet", iconName: "broom", label: `Purge ${row.name}` }),
        button("", () => remove(row), { kind: "quiet", iconName: "trash", label: `Delete ${row.name}` })) }] : []),
    ],
  });
  replace(ctx.main, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table, { placeholder: "Filter streams", label: "Filter streams" })), table.node));

  async function load() {
    const found = await ctx.guard(get("/api/v1/streams", { signal: ctx.signal }));
    if (found) table.update(found.streams);
  }
  async function create() {
    const done = await formDialog("New stream", [{ name: "name", label: "Name", required: true, placeholder: "shop" }], (given) => post("/api/v1/streams", { name: given.name }), { action: "Create stream" });
    if (done) { toast("Stream created"); load(); }
  }
  async function purge(row) {
    if (!await confirm(`Purge ${row.name}?`, `All ${f.number(row.messages)} messages of its ${f.plural(row.topics, "topic")} are deleted. The topics stay.`, { action: "Purge", word: row.name })) return;
    try { await post(path`/api/v1/streams/${row.name}/purge`); toast(`${row.name} purged`); load(); } catch (error) { toast(error.message, "bad"); }
  }
  async function remove(row) {
    if (!await confirm(`Delete ${row.name}?`, `The stream, its ${f.plural(row.topics, "topic")} and ${f.number(row.messages)} messages are deleted for good.`, { action: "Delete", word: row.name })) return;
    try { await del(path`/api/v1/streams/${row.name}`); toast(`${row.name} deleted`); load(); } catch (error) { toast(error.message, "bad"); }
  }
  await load();
  ctx.live("streams", (rows) => table.update(rows));
}, { nav: "streams" });
