// The broker at a glance: totals, rates over time, the busiest topics.

import { get } from "../api.js";
import { bars, lineChart, meter } from "../charts.js";
import { card, figure, h, replace } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { go, route } from "../router.js";

nav({ id: "overview", label: "Overview", icon: "home", href: "#/overview", key: "o", order: 10 });

const HISTORY_MAX = 720;

route("/", "Headrace", () => go("#/overview", { replace: true }));

route("/overview", "Overview", async (ctx) => {
  ctx.head({ title: "Overview" });
  const messagesIn = figure("Messages in"), bytesIn = figure("Bytes in"), stored = figure("Stored"), topics = figure("Topics"), clients = figure("Clients"), pipelines = figure("Pipelines");
  const rates = lineChart({ label: "Messages a second over time", format: (value) => f.compact(value) });
  const sizes = lineChart({ label: "Bytes a second over time", format: (value) => f.bytes(value) });
  const facts = h("dl", { class: "facts" });
  const busiest = h("div", {}), serverCard = card("Server", facts);
  replace(ctx.main,
    h("div", { class: "figures" }, [messagesIn, bytesIn, stored, topics, clients, pipelines].map((one) => one.node)),
    h("div", { class: "columns" }, card("Messages a second", rates.node), card("Bytes a second", sizes.node)),
    h("div", { class: "columns" }, card("Busiest topics", busiest), serverCard));

  let history = [];
  const names = new Map();

  function draw(value) {
    const { server, totals } = value;
    messagesIn.set(f.rate(value.rates.messages_in), `${f.compact(totals.messages)} in all`);
    bytesIn.set(`${f.bytes(value.rates.bytes_in)}/s`, totals.messages ? `${f.bytes(totals.bytes / totals.messages)} each` : "");
    stored.set(f.bytes(totals.bytes), totals.segments == null ? "" : f.plural(totals.segments, "segment"));
    topics.set(f.number(totals.topics), `${f.plural(totals.streams, "stream")}, ${f.plural(totals.partitions, "partition")}`);
    if (totals.clients == null) { clients.node.hidden = serverCard.hidden = true; } // not for who may not read the server's state
    else clients.set(f.number(totals.clients), f.plural(totals.groups, "consumer group"));
    pipelines.set(f.number(value.pipelines.all), value.pipelines.failed ? `${value.pipelines.failed} failed` : `${value.pipelines.running} running`);
    rates.update([{ name: "", points: history.map(([at, messages]) => [at, messages]) }]);
    sizes.update([{ name: "", points: history.map(([at, , size]) => [at, size]) }]);
    const used = server.disk_total_bytes - server.disk_free_bytes;
    replace(facts,
      row("Version", server.version), server.uptime_ms == null ? null : row("Running for", f.duration(server.uptime_ms)), server.started_ms == null ? null : row("Started", f.moment(server.started_ms)),
      server.hostname ? row("Host", `${server.hostname}, process ${server.process_id}`) : null,
      server.memory_bytes ? row("Memory", f.bytes(server.memory_bytes)) : null, server.cpu_percent ? row("Processor", `${server.cpu_percent} %`) : null,
      server.written_bytes ? row("Read and written", `${f.bytes(server.read_bytes)} and ${f.bytes(server.written_bytes)}`) : null,
      server.disk_total_bytes ? row("Disk", h("span", {}, `${f.bytes(server.disk_free_bytes)} free of ${f.bytes(server.disk_total_bytes)}`, meter(used, server.disk_total_bytes, { label: "Disk used" }))) : null);
  }

  const row = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

  const [first, listed] = await Promise.all([
    ctx.guard(get("/api/v1/overview", { signal: ctx.signal })),
    ctx.guard(get("/api/v1/topics", { signal: ctx.signal })),
  ]);
  if (!first) return;
  history = first.history;
  for (const one of listed?.topics ?? []) names.set(`${one.stream_id}/${one.id}`, `${one.stream}/${one.name}`);
  draw(first);

  ctx.live("overview", (value) => {
    if (value.time_ms > (history.at(-1)?.[0] ?? 0)) history.push([value.time_ms, value.rates.messages_in, value.rates.bytes_in]);
    history = history.slice(-HISTORY_MAX);
    draw(value);
  });
  ctx.live("topics", (rows) => {
    const busy = rows.filter((one) => names.has(`${one[0]}/${one[1]}`)).map((one) => [names.get(`${one[0]}/${one[1]}`), one[4], one[2]]).sort((a, b) => b[1] - a[1] || b[2] - a[2]).slice(0, 8);
    const moving = busy.some(([, now]) => now > 0);
    replace(busiest, busy.length
      ? [moving ? null : h("p", { class: "soft" }, "Nothing comes in at the moment. The largest:"), bars(busy.map(([name, now, all]) => [name, moving ? now : all]), { label: "Busiest topics", format: (value) => (moving ? f.rate(value) : f.compact(value)) })]
      : h("p", { class: "soft" }, "No topics yet."));
  });
}, { nav: "overview" });
