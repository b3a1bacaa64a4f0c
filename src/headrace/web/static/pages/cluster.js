// The cluster: placement managers, data nodes, brokers; who leads, and whether all is replicated.

import { get } from "../api.js";
import { badge, card, empty, figure, h, replace } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { route } from "../router.js";
import { makeTable } from "../table.js";

nav({ id: "cluster", label: "Cluster", icon: "cluster", href: "#/cluster", key: "n", group: "System", order: 40 });

const STATES = { leader: "good", follower: "quiet", silent: "warn", unreachable: "bad" };

route("/cluster", "Cluster", async (ctx) => {
  const { rights } = ctx.session;
  if (!rights.read_servers && !rights.manage_servers) {
    replace(ctx.main, h("div", { class: "note warn" }, "You may not see the state of the servers."));
    return;
  }
  const health = h("div", {});
  const nodes = figure("Data nodes"), leader = figure("Leading broker"), ranges = figure("Ranges"), replicated = figure("Replication");
  const table = makeTable({
    label: "Data nodes", key: (row) => row.id, rows: [], sort: "id", empty: empty("No data nodes."),
    columns: [
      { id: "id", title: "Node", text: (row) => String(row.id), sort: (row) => row.id },
      { id: "address", title: "Address", text: (row) => row.address },
      { id: "state", title: "State", text: (row) => state(row)[0], node: (row) => badge(...state(row)) },
      { id: "ranges", title: "Ranges", number: true, text: (row) => f.number(row.ranges), sort: (row) => row.ranges },
      { id: "open", title: "Open", number: true, wide: true, text: (row) => f.number(row.open_ranges), sort: (row) => row.open_ranges },
      { id: "disk", title: "Disk free", number: true, wide: true, text: (row) => f.bytes(row.disk_free_bytes), sort: (row) => row.disk_free_bytes },
    ],
  });
  const managers = h("div", {}), brokers = h("div", {});
  replace(ctx.main, health, h("div", { class: "figures" }, [nodes, leader, ranges, replicated].map((one) => one.node)),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Data nodes")), table.node),
    h("div", { class: "columns" }, card("Placement managers", managers), card("Brokers", brokers)));

  const state = (row) => (!row.alive ? ["lost", "bad"] : row.draining ? ["draining", "warn"] : ["alive", "good"]);
  const people = (rows, tell) => (rows.length ? h("ul", { class: "plain-list" }, rows.map((one) => h("li", {}, h("code", {}, one.address), tell(one)))) : h("p", { class: "soft" }, "none"));

  function draw(found) {
    if (!found) return;
    replace(health, found.healthy ? h("div", { class: "note good" }, "Healthy: everybody is there, somebody leads, everything is replicated as wanted.") : h("div", { class: "note bad" }, h("strong", {}, "Not healthy: "), found.problems.join("; ")));
    nodes.set(`${found.data_nodes.filter((one) => one.alive).length} of ${found.data_nodes.length}`, "alive");
    leader.set(found.brokers.find((one) => one.role === "leader")?.address ?? "none", f.plural(found.brokers.length, "broker"));
    ranges.set(f.number(found.ranges), f.plural(found.streams, "log"));
    const short = found.ranges_under_replicated;
    replicated.set(short ? `${f.number(short)} short` : "complete", found.ranges_unavailable ? `${found.ranges_unavailable} unavailable` : found.ranges_sealing ? `${found.ranges_sealing} being sealed` : "");
    table.update(found.data_nodes);
    replace(managers, people(found.placement_managers, (one) => badge(one.state, STATES[one.state] ?? "quiet")));
    replace(brokers, people(found.brokers, (one) => badge(one.role, one.role === "leader" ? "good" : "quiet")));
  }
  draw(await ctx.guard(get("/api/v1/cluster", { signal: ctx.signal })));
  ctx.live("cluster", draw);
}, { nav: "cluster" });
