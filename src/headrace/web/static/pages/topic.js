// One topic: its partitions and rates, its groups, where it lies; what may be done with it.

import { del, get, path, post, put } from "../api.js";
import { lineChart } from "../charts.js";
import { badge, button, card, confirm, copyText, empty, figure, formDialog, h, replace, toast } from "../dom.js";
import * as f from "../format.js";
import { go, link, route } from "../router.js";
import { makeTable } from "../table.js";
import { produce } from "./produce.js";
import { retention } from "./topics.js";

const TABS = [["", "Partitions"], ["messages", "Messages"], ["groups", "Consumer groups"], ["ranges", "Ranges"]];
const api = (ctx, more = "") => path`/api/v1/streams/${ctx.params.stream}/topics/${ctx.params.topic}` + more;

/** Head and tabs of a topic's pages; gives the topic, or null when it cannot be shown. */
export async function topicFrame(ctx, tab) {
  const { stream, topic } = ctx.params;
  const name = `${stream}/${topic}`;
  const base = link`/topics/${stream}/${topic}`;
  const crumbs = [["Topics", "#/topics"], [stream, `#/topics?filter=${encodeURIComponent(`${stream}/`)}`]];
  const body = h("div", { class: "stack" });
  replace(ctx.main, h("div", {}, h("nav", { class: "tabs", "aria-label": "Views of the topic" }, TABS.map(([id, label]) => h("a", { href: id ? `${base}/${id}` : base, "aria-current": id === tab ? "page" : null }, label))), body));
  ctx.head({ title: topic, crumbs });
  const found = await ctx.guard(get(api(ctx), { signal: ctx.signal }));
  if (!found) return null;

  async function edit() {
    const hours = found.expiry_ms === null ? 0 : found.expiry_ms / 3.6e6;
    const size = found.max_bytes === null ? 0 : found.max_bytes / 1048576;
    const done = await formDialog(`Change ${name}`, [
      { name: "hours", label: "Keep messages for (hours)", type: "number", min: 0, step: "any", value: hours, hint: "0: for ever." },
      { name: "mib", label: "Size limit (MiB)", type: "number", min: 0, step: "any", value: size, hint: "0: none." },
    ], (given) => put(api(ctx), { expiry_ms: Math.round(Number(given.hours) * 3.6e6), max_bytes: Math.round(Number(given.mib) * 1048576) }));
    if (done) { toast("Topic changed"); go(location.hash, { replace: true }); }
  }
  async function purge() {
    if (!await confirm(`Purge ${name}?`, `All ${f.number(found.messages)} messages are deleted. Offsets start at 0 again.`, { action: "Purge", word: topic })) return;
    await act(() => post(api(ctx, "/purge")), `${name} purged`);
  }
  async function remove() {
    if (!await confirm(`Delete ${name}?`, `The topic and its ${f.number(found.messages)} messages are deleted for good.`, { action: "Delete", word: topic })) return;
    try { await del(api(ctx)); toast(`${name} deleted`); go("#/topics"); } catch (error) { toast(error.message, "bad"); }
  }
  async function more() {
    const done = await formDialog(`Add partitions to ${name}`, [{ name: "count", label: "How many more", type: "number", min: 1, max: 1000, value: 1, hint: "Keys that went to one partition may go to another afterwards." }], (given) => post(api(ctx, "/partitions"), { count: Number(given.count) }), { action: "Add" });
    if (done) { toast("Partitions added"); go(location.hash, { replace: true }); }
  }
  async function act(work, text) {
    try { await work(); toast(text); go(location.hash, { replace: true }); } catch (error) { toast(error.message, "bad"); }
  }
  ctx.head({ title: topic, crumbs, actions: [
    found.may_send ? button("Produce", () => produce(name, api(ctx, "/messages"), found.parts.map((one) => one.id), () => go(location.hash, { replace: true })), { kind: "primary", iconName: "send" }) : null,
    button("", () => copyText(name), { kind: "quiet", iconName: "copy", label: "Copy the topic's name" }),
    found.may_manage ? button("Change", edit, { iconName: "edit" }) : null,
    found.may_manage ? button("Partitions", more, { iconName: "plus" }) : null,
    found.may_manage ? button("Purge", purge, { kind: "danger", iconName: "broom" }) : null,
    found.may_manage ? button("Delete", remove, { kind: "danger", iconName: "trash" }) : null,
  ] });
  return { found, body, api: (text = "") => api(ctx, text) };
}

route("/topics/:stream/:topic", "Topic", async (ctx) => {
  const topic = await topicFrame(ctx, "");
  if (!topic) return;
  const { found } = topic;
  const rate = figure("Messages in"), size = figure("Bytes in"), stored = figure("Stored"), kept = figure("Retention", retention(found)), durable = figure("Durability", f.text(found.durability), f.plural(found.replicas, "replica"));
  const chart = lineChart({ label: "Messages a second", format: (value) => f.compact(value) });
  let history = found.history;
  const parts = makeTable({
    label: "Partitions", key: (row) => row.id, rows: found.parts, sort: "id",
    columns: [
      { id: "id", title: "Partition", text: (row) => String(row.id), sort: (row) => row.id, node: (row) => h("a", { href: `${link`/topics/${ctx.params.stream}/${ctx.params.topic}/messages`}?partition=${row.id}` }, `Partition ${row.id}`) },
      { id: "messages", title: "Messages", number: true, text: (row) => f.number(row.messages), sort: (row) => row.messages },
      { id: "bytes", title: "Size", number: true, text: (row) => f.bytes(row.bytes), sort: (row) => row.bytes },
      { id: "start", title: "First offset", number: true, wide: true, text: (row) => f.number(row.start_offset), sort: (row) => row.start_offset },
      { id: "next", title: "Next offset", number: true, wide: true, text: (row) => f.number(row.next_offset), sort: (row) => row.next_offset },
      { id: "segments", title: "Segments", number: true, wide: true, text: (row) => f.number(row.segments), sort: (row) => row.segments },
    ],
  });
  function draw(messages, bytes, messagesIn, bytesIn) {
    rate.set(f.rate(messagesIn), `${f.number(messages)} in all`);
    size.set(`${f.bytes(bytesIn)}/s`, f.plural(found.partitions, "partition"));
    stored.set(f.bytes(bytes), messages ? `${f.bytes(bytes / messages)} each` : "");
    chart.update([{ name: "", points: history.map(([at, value]) => [at, value]) }]);
  }
  replace(topic.body, h("div", { class: "figures" }, [rate, size, stored, kept, durable].map((one) => one.node)), card("Messages a second", chart.node), h("section", { class: "card flush" }, parts.node));
  draw(found.messages, found.bytes, found.messages_per_second, found.bytes_per_second);
  ctx.live("topics", (rows) => {
    const row = rows.find((one) => one[0] === found.stream_id && one[1] === found.id);
    if (!row) return;
    history = [...history, [Date.now(), row[4], row[5]]].slice(-240);
    draw(row[2], row[3], row[4], row[5]);
  });
  ctx.every(5000, async () => {
    try {
      const again = await get(topic.api(), { signal: ctx.signal });
      parts.update(again.parts);
      durable.set(f.text(again.durability), f.plural(again.replicas, "replica"));
    } catch { /* the next one may */ }
  });
}, { nav: "topics" });

route("/topics/:stream/:topic/groups", "Consumer groups", async (ctx) => {
  const topic = await topicFrame(ctx, "groups");
  if (!topic) return;
  const { stream, topic: name } = ctx.params;
  const manages = topic.found.may_manage || ctx.session.rights.manage_topics;
  const place = h("div", {});
  replace(topic.body, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, h("h2", {}, "Consumer groups"), h("span", { class: "grow" }), manages ? button("New group", create, { iconName: "plus" }) : null), place));
  async function create() {
    const done = await formDialog("New consumer group", [{ name: "name", label: "Name", required: true }], (given) => post(topic.api("/groups"), { name: given.name }), { action: "Create group" });
    if (done) { toast("Group created"); load(); }
  }
  async function load() {
    const found = await ctx.guard(get("/api/v1/groups", { signal: ctx.signal }));
    if (found) show(found.groups);
  }
  const table = makeTable({
    label: "Consumer groups", key: (row) => row.id, rows: [], sort: "name", empty: empty("No consumer groups read this topic."),
    columns: [
      { id: "name", title: "Group", text: (row) => row.name, node: (row) => h("a", { href: link`/groups/${stream}/${name}/${row.name}` }, row.name) },
      { id: "members", title: "Members", number: true, text: (row) => f.number(row.members), sort: (row) => row.members },
      { id: "lag", title: "Lag", number: true, text: (row) => f.number(row.lag), sort: (row) => row.lag },
    ],
  });
  place.append(table.node);
  const show = (rows) => table.update(rows.filter((one) => one.stream === stream && one.topic === name));
  await load();
  ctx.live("groups", show);
}, { nav: "topics" });

route("/topics/:stream/:topic/ranges", "Ranges", async (ctx) => {
  const topic = await topicFrame(ctx, "ranges");
  if (!topic) return;
  const found = await ctx.guard(get(topic.api("/ranges"), { signal: ctx.signal }));
  if (!found) return;
  const table = makeTable({
    label: "Ranges", key: (row) => `${row.stream_id}/${row.index}`, rows: [], sort: "partition",
    empty: empty("Nothing was written yet: a range begins with the first message."),
    columns: [
      { id: "partition", title: "Partition", text: (row) => String(row.partition), sort: (row) => row.partition * 1e6 + row.index },
      { id: "index", title: "Range", number: true, text: (row) => String(row.index), sort: (row) => row.index },
      { id: "state", title: "State", text: (row) => (row.end_offset === null ? "open" : "sealed"), node: (row) => (row.end_offset === null ? badge("open", "good") : badge("sealed", "quiet")) },
      { id: "from", title: "From", number: true, text: (row) => f.number(row.start_offset), sort: (row) => row.start_offset },
      { id: "to", title: "To", number: true, wide: true, text: (row) => (row.end_offset === null ? "–" : f.number(row.end_offset)), sort: (row) => row.end_offset },
      { id: "epoch", title: "Epoch", number: true, wide: true, text: (row) => String(row.epoch), sort: (row) => row.epoch },
      { id: "replicas", title: "Replicas", text: (row) => row.replicas.map((one) => `${one.primary ? "primary " : ""}${one.node_id}`).join(", "),
        node: (row) => h("span", {}, row.replicas.map((one) => [badge(`node ${one.node_id}`, one.primary ? "busy" : "quiet", `${one.address}${one.primary ? ", primary: it orders the range" : ""}`), " "])) },
    ],
  });
  table.update(found.ranges);
  replace(topic.body, h("section", { class: "card flush" }, table.node), h("p", { class: "soft" }, "A partition's log is a row of ranges; the last one is open. Marked in colour is the primary, which orders the range."));
}, { nav: "topics" });
