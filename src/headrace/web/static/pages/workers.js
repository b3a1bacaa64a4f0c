// Workers: what each leads and how it does; a map of the shards, where a manager moves one.

import { get, path, put } from "../api.js";
import { badge, empty, figure, formDialog, h, replace, toast } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { route } from "../router.js";
import { makeTable } from "../table.js";

nav({ id: "workers", label: "Workers", icon: "workers", href: "#/workers", key: "w", group: "System", order: 40.5 });

const COLOURS = 6, BUSY_MS = 100, LATE_MS = 20;

route("/workers", "Workers", async (ctx) => {
  const { rights } = ctx.session;
  if (!rights.read_servers && !rights.manage_servers) {
    replace(ctx.main, h("div", { class: "note warn" }, "You may not see the state of the servers."));
    return;
  }
  let before = new Map(), at = 0, last = { workers: [], shards: [] };
  const count = figure("Workers"), shards = figure("Shards"), asked = figure("Requests"), late = figure("Loop delay");
  const delay = (ms) => (ms >= BUSY_MS ? "bad" : ms >= LATE_MS ? "warn" : "good");
  const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const table = makeTable({
    label: "Workers", key: (row) => row.name, rows: [], sort: "number", empty: empty("No workers."),
    columns: [
      { id: "number", title: "Worker", text: (row) => `${row.number}${row.coordinates ? " coordinator" : ""}`, sort: (row) => row.number,
        node: (row) => h("span", { class: "worker-name", title: row.name }, h("span", { class: `swatch c${row.number % COLOURS}`, "aria-hidden": "true" }), String(row.number), row.coordinates ? badge("coordinator", "good") : null) },
      { id: "address", title: "Address", wide: true, text: (row) => row.address, node: (row) => h("span", { title: row.host }, row.address) },
      { id: "shards", title: "Shards", number: true, text: (row) => f.number(row.shards), sort: (row) => row.shards },
      { id: "partitions", title: "Partitions", number: true, text: (row) => f.number(row.partitions), sort: (row) => row.partitions },
      { id: "connections", title: "Connections", number: true, wide: true, text: (row) => f.number(row.connections), sort: (row) => row.connections },
      { id: "rate", title: "Requests", number: true, text: (row) => f.rate(row.rate), sort: (row) => row.rate },
      { id: "passed", title: "Passed on", number: true, wide: true, text: (row) => f.percent(row.requests_passed_on, row.requests), sort: (row) => row.requests_passed_on / (row.requests || 1) },
      { id: "delay", title: "Loop delay", number: true, text: (row) => milliseconds(row.loop_delay_ms), sort: (row) => row.loop_delay_ms, node: (row) => badge(milliseconds(row.loop_delay_ms), delay(row.loop_delay_ms)) },
      { id: "cpu", title: "CPU", number: true, wide: true, text: (row) => `${row.cpu_percent.toFixed(0)} %`, sort: (row) => row.cpu_percent },
      { id: "memory", title: "Memory", number: true, wide: true, text: (row) => f.bytes(row.memory_bytes), sort: (row) => row.memory_bytes },
    ],
  });
  const map = h("div", { class: "shard-map" }), tiles = new Map();
  const hint = rights.manage_servers ? "Choose a shard to move it." : "";
  replace(ctx.main, h("div", { class: "stack" },
    h("div", { class: "figures" }, [count, shards, asked, late].map((one) => one.node)),
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Workers")), table.node),
    h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, "Who leads which shard"), h("span", { class: "soft" }, hint)), map,
      h("p", { class: "soft shard-legend" }, "A tile is a shard, with the number of the worker that leads it. Coloured ones hold partitions; a dot marks those that somebody gave to a worker."))));

  const named = (name) => { const one = last.workers.find((worker) => worker.name === name); return one ? `worker ${one.number}` : name ? `${name.slice(0, 8)}… (away)` : "nobody"; };

  function describe(row) {
    const parts = [`Shard ${row.shard}`, `led by ${named(row.worker)}`, f.plural(row.partitions, "partition")];
    if (row.epoch !== null) parts.push(`epoch ${row.epoch}`);
    if (row.pinned) parts.push(`given to ${named(row.pinned)}`);
    return parts.join(", ");
  }

  function drawTile(row) {
    const worker = last.workers.find((one) => one.name === row.worker);
    const moves = rights.manage_servers && row.shard > 0;
    let tile = tiles.get(row.shard);
    if (!tile) {
      tile = h(moves ? "button" : "span", moves ? { type: "button", on: { click: () => move(row.shard) } } : { role: "img" }, h("b", {}), h("i", {}));
      tiles.set(row.shard, tile);
      map.append(tile);
    }
    tile.className = `shard ${worker ? `c${worker.number % COLOURS}` : "none"}${row.partitions ? " used" : ""}${row.pinned ? " pinned" : ""}`;
    tile.title = describe(row);
    tile.setAttribute("aria-label", tile.title);
    tile.children[0].textContent = row.shard;
    tile.children[1].textContent = worker ? `w${worker.number}` : "–";
  }

  function draw(found) {
    const now = performance.now(), seconds = (now - at) / 1000;
    for (const one of found.workers) one.rate = before.has(one.name) ? Math.max(0, one.requests - before.get(one.name)) / seconds : null;
    before = new Map(found.workers.map((one) => [one.name, one.requests]));
    at = now;
    last = found;
    const hosts = new Set(found.workers.map((one) => one.host)).size, nobody = found.shards.filter((one) => !one.worker).length;
    count.set(f.number(found.workers.length), `on ${f.plural(hosts, "host")}`);
    shards.set(f.number(found.shards.length), nobody ? `${f.number(nobody)} led by nobody` : "all led");
    const sum = (name) => found.workers.reduce((all, one) => all + (one[name] ?? 0), 0);
    asked.set(found.workers.some((one) => one.rate !== null) ? f.rate(sum("rate")) : "–", `${f.percent(sum("requests_passed_on"), sum("requests"))} passed on`);
    const latest = Math.max(0, ...found.workers.map((one) => one.loop_delay_ms));
    late.set(milliseconds(latest), "worst, 99 of 100 in a minute");
    table.update(found.workers);
    found.shards.forEach(drawTile);
  }

  async function move(shard) {
    const row = last.shards.find((one) => one.shard === shard);
    const options = [["", "Balance decides"], ...last.workers.map((one) => [one.name, `Worker ${one.number}: ${f.plural(one.shards, "shard")}, ${one.address}`])];
    let moved = null;
    const done = await formDialog(`Move shard ${shard}`, [{ name: "worker", label: "To", options, value: row.pinned ?? "" }],
      async (given) => { moved = await put(path`/api/v1/shards/${shard}`, given); },
      { action: "Move", intro: `${describe(row)}. It stays where you put it while that worker lives; its clients see a short pause.` });
    if (!done) return;
    toast(!moved.pinned ? `Balance decides who leads shard ${shard}` : moved.worker === moved.pinned ? `Shard ${shard} is led by ${named(moved.worker)}` : `Shard ${shard} goes to ${named(moved.pinned)} as soon as it can`);
    load().catch(() => {});
  }

  async function load() {
    draw(await get("/api/v1/workers", { signal: ctx.signal }));
  }
  await ctx.guard(load());
  ctx.every(2000, () => load().catch(() => {}));
}, { nav: "workers" });
