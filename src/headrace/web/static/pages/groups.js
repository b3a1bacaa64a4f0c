// Consumer groups: how far behind they are, now and over time.

import { del, get, path } from "../api.js";
import { lineChart } from "../charts.js";
import { badge, button, card, confirm, empty, figure, h, replace, toast } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { go, link, route, setQuery } from "../router.js";
import { filterField, makeTable } from "../table.js";

nav({ id: "groups", label: "Consumer groups", icon: "groups", href: "#/groups", key: "c", group: "Data", order: 22 });

/** How the lag moves, in words and a state. */
export function trend(row) {
  if (row.lag === null) return ["not measured yet", "quiet"];
  if (!row.lag) return ["up to date", "good"];
  if (row.lag_per_second < -0.5) return [`catches up in ${f.duration((row.lag / -row.lag_per_second) * 1000)}`, "busy"];
  if (row.lag_per_second > 0.5) return ["falls behind", row.members ? "warn" : "bad"];
  return [row.members ? "steady" : "nobody reads", row.members ? "quiet" : "warn"];
}

route("/groups", "Consumer groups", async (ctx) => {
  const table = makeTable({
    label: "Consumer groups", key: (row) => `${row.stream}/${row.topic}/${row.name}`, rows: [],
    sort: ctx.query.get("sort") ?? "lag", descending: ctx.query.get("up") !== "1", filter: ctx.query.get("filter") ?? "",
    onView: (view) => setQuery({ sort: view.sort === "lag" ? null : view.sort, up: view.descending ? null : "1", filter: view.filter }),
    empty: empty("No consumer groups yet.", "headrace group create shop/orders billing"),
    columns: [
      { id: "name", title: "Group", text: (row) => row.name, node: (row) => h("a", { href: link`/groups/${row.stream}/${row.topic}/${row.name}` }, row.name) },
      { id: "topic", title: "Topic", wide: true, text: (row) => `${row.stream}/${row.topic}`, node: (row) => h("a", { href: link`/topics/${row.stream}/${row.topic}` }, `${row.stream}/${row.topic}`) },
      { id: "lag", title: "Lag", number: true, text: (row) => f.number(row.lag), sort: (row) => row.lag },
      { id: "trend", title: "Trend", text: (row) => trend(row)[0], node: (row) => badge(...trend(row)) },
      { id: "change", title: "Change", number: true, wide: true, text: (row) => `${row.lag_per_second > 0 ? "+" : ""}${f.rate(row.lag_per_second)}`, sort: (row) => row.lag_per_second },
      { id: "members", title: "Members", number: true, wide: true, text: (row) => f.number(row.members), sort: (row) => row.members },
      { id: "partitions", title: "Partitions", number: true, wide: true, text: (row) => f.number(row.partitions), sort: (row) => row.partitions },
    ],
  });
  replace(ctx.main, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table, { placeholder: "Filter groups", label: "Filter groups" })), table.node));
  const show = (rows) => table.update(rows);
  const found = await ctx.guard(get("/api/v1/groups", { signal: ctx.signal }));
  if (found) show(found.groups);
  ctx.live("groups", show);
}, { nav: "groups" });

route("/groups/:stream/:topic/:group", "Consumer group", async (ctx) => {
  const { stream, topic, group } = ctx.params;
  const address = path`/api/v1/streams/${stream}/topics/${topic}/groups/${group}`;
  const { rights } = ctx.session;
  const remove = async () => {
    if (!await confirm(`Delete ${group}?`, "Its stored offsets are deleted with it. Consumers that join again start anew.", { action: "Delete", word: group })) return;
    try { await del(address); toast("Group deleted"); go("#/groups"); } catch (error) { toast(error.message, "bad"); }
  };
  ctx.head({ title: group, crumbs: [["Consumer groups", "#/groups"], [`${stream}/${topic}`, link`/topics/${stream}/${topic}`]], actions: [rights.manage_streams || rights.manage_topics ? button("Delete", remove, { kind: "danger", iconName: "trash" }) : null] });
  const lag = figure("Lag"), change = figure("Change"), members = figure("Members"), partitions = figure("Partitions");
  const chart = lineChart({ label: "Lag over time", format: (value) => f.compact(value) });
  const parts = makeTable({
    label: "Partitions", key: (row) => row.partition, rows: [], sort: "partition",
    columns: [
      { id: "partition", title: "Partition", text: (row) => String(row.partition), sort: (row) => row.partition, node: (row) => h("a", { href: `${link`/topics/${stream}/${topic}/messages`}?partition=${row.partition}${row.stored_offset === null ? "" : `&from=offset&offset=${row.stored_offset + 1}`}` }, `Partition ${row.partition}`) },
      { id: "lag", title: "Lag", number: true, text: (row) => f.number(row.lag), sort: (row) => row.lag },
      { id: "stored", title: "Stored offset", number: true, text: (row) => f.number(row.stored_offset), sort: (row) => row.stored_offset },
      { id: "newest", title: "Newest offset", number: true, wide: true, text: (row) => f.number(row.current_offset), sort: (row) => row.current_offset },
      { id: "member", title: "Member", wide: true, text: (row) => f.text(row.member) },
    ],
  });
  const who = makeTable({
    label: "Members", key: (row) => row.client_id, rows: [], sort: "id", empty: empty("Nobody reads in this group at the moment."),
    columns: [
      { id: "id", title: "Client", text: (row) => String(row.client_id), sort: (row) => row.client_id },
      { id: "address", title: "Address", text: (row) => f.text(row.address) },
      { id: "partitions", title: "Partitions", text: (row) => row.partitions.join(", ") || "–" },
    ],
  });
  replace(ctx.main, h("div", { class: "figures" }, [lag, change, members, partitions].map((one) => one.node)), card("Lag over time", chart.node),
    h("div", { class: "columns" }, h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Partitions")), parts.node), h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Members")), who.node)));
  async function load() {
    const found = await get(address, { signal: ctx.signal });
    lag.set(f.number(found.lag), trend(found)[0]);
    change.set(f.rate(found.lag_per_second), found.lag_per_second > 0 ? "growing" : found.lag_per_second < 0 ? "shrinking" : "");
    members.set(f.number(found.members));
    partitions.set(f.number(found.parts.length));
    chart.update([{ name: "", points: found.history }]);
    parts.update(found.parts);
    who.update(found.members_list);
  }
  await ctx.guard(load());
  ctx.live("groups", () => load().catch(() => {})); // while somebody looks, lag is measured more often
}, { nav: "groups" });
