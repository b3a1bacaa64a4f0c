// The message browser: seek by offset or time, filter, decode, copy, follow.

import { get, query } from "../api.js";
import { badge, button, copyText, empty, h, icon, replace } from "../dom.js";
import * as f from "../format.js";
import { route, setQuery } from "../router.js";
import { topicFrame } from "./topic.js";

const FORMATS = [["auto", "Decode: auto"], ["json", "JSON"], ["text", "Text"], ["arrow", "Arrow"], ["hex", "Hex"]];

route("/topics/:stream/:topic/messages", "Messages", async (ctx) => {
  const topic = await topicFrame(ctx, "messages");
  if (!topic) return;
  if (!topic.found.may_poll) {
    replace(topic.body, h("div", { class: "note warn" }, "You may not read the messages of this topic."));
    return;
  }
  const view = {
    partition: ctx.query.get("partition") ?? String(topic.found.parts.find((one) => one.messages)?.id ?? topic.found.parts[0]?.id ?? 0),
    from: ctx.query.get("from") ?? "newest", offset: ctx.query.get("offset") ?? "", time: ctx.query.get("time") ?? "",
    search: ctx.query.get("search") ?? "", format: ctx.query.get("format") ?? "auto", limit: ctx.query.get("limit") ?? "50", open: ctx.query.get("open") ?? "",
  };
  let last = null;
  let following = null;
  let loading = 0;

  const partition = h("select", { "aria-label": "Partition", on: { change: () => { view.partition = partition.value; view.open = ""; load(); } } }, topic.found.parts.map((one) => h("option", { value: one.id, selected: String(one.id) === view.partition }, `Partition ${one.id}`)));
  const offset = h("input", { type: "number", min: 0, class: "short", "aria-label": "Offset", placeholder: "offset", value: view.offset, on: { change: seekOffset } });
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "Time", value: view.time ? f.localInput(Number(view.time)) : "", on: { change: seekTime } });
  const search = h("input", { type: "search", "aria-label": "Filter messages", placeholder: "Filter by text", value: view.search, dataset: { search: "" }, spellcheck: "false", on: { change: () => { view.search = search.value; load(); }, keydown: (event) => { if (event.key === "Enter") { view.search = search.value; load(); } } } });
  const format = h("select", { "aria-label": "Decode as", on: { change: () => { view.format = format.value; load(); } } }, FORMATS.map(([value, label]) => h("option", { value, selected: value === view.format }, label)));
  const limit = h("select", { "aria-label": "How many", class: "wide-only", on: { change: () => { view.limit = limit.value; load(); } } }, ["20", "50", "100", "500"].map((one) => h("option", { value: one, selected: one === view.limit }, one)));
  const modes = h("div", { class: "segmented", role: "group", "aria-label": "Where to read" }, [["oldest", "Oldest"], ["newest", "Newest"], ["offset", "Offset"], ["time", "Time"]].map(([id, label]) => h("button", { type: "button", dataset: { mode: id }, on: { click: () => choose(id) } }, label)));
  const follow = button("Follow", toggleFollow, { iconName: "play", title: "Read the newest again every second" });
  const status = h("span", { class: "soft", role: "status" });
  const list = h("div", { class: "messages", "aria-label": "Messages" });
  const older = button("Older", () => page(-1), { iconName: "left" });
  const newer = button("Newer", () => page(1), { iconName: "right" });

  replace(topic.body, h("section", { class: "card flush" },
    h("div", { class: "toolbar" }, partition, modes, offset, time, h("div", { class: "filter" }, icon("search"), search), format, limit, follow),
    list,
    h("div", { class: "toolbar foot" }, older, newer, status)));

  function choose(id) {
    view.from = id;
    view.open = "";
    if (id === "offset") { offset.hidden = false; if (offset.value === "") offset.value = String(Math.max(0, (last?.end_offset ?? 0) - Number(view.limit))); view.offset = offset.value; offset.focus(); }
    if (id === "time") { if (!time.value) time.value = f.localInput(Date.now() - 600000); view.time = String(new Date(time.value).getTime()); }
    load();
  }
  function seekOffset() { view.offset = offset.value; view.from = "offset"; load(); }
  function seekTime() { if (time.value) { view.time = String(new Date(time.value).getTime()); view.from = "time"; load(); } }

  function page(way) {
    if (!last) return;
    const size = Number(view.limit);
    const first = last.messages[0]?.offset ?? last.end_offset;
    const at = way < 0 ? Math.max(last.start_offset ?? 0, first - size) : last.next_offset;
    view.from = "offset";
    view.offset = String(at);
    view.open = "";
    offset.value = view.offset;
    load();
  }

  function toggleFollow() {
    if (following) { clearInterval(following); following = null; } else {
      view.from = "newest";
      following = setInterval(load, 1000);
      load();
    }
    replace(follow, icon(following ? "pause" : "play"), h("span", {}, following ? "Following" : "Follow"));
    follow.setAttribute("aria-pressed", String(Boolean(following)));
  }

  async function load() {
    const turn = ++loading;
    for (const one of modes.children) one.setAttribute("aria-pressed", String(one.dataset.mode === view.from));
    offset.hidden = view.from !== "offset";
    time.hidden = view.from !== "time";
    setQuery({ partition: view.partition, from: view.from === "newest" ? null : view.from, offset: view.from === "offset" ? view.offset : null, time: view.from === "time" ? view.time : null, search: view.search, format: view.format === "auto" ? null : view.format, limit: view.limit === "50" ? null : view.limit, open: view.open });
    const asked = { partition: view.partition, limit: view.limit, search: view.search, format: view.format };
    if (view.from === "offset") asked.offset = view.offset || "0";
    if (view.from === "oldest") asked.offset = "0";
    if (view.from === "time") asked.time_ms = view.time;
    try {
      const found = await get(topic.api("/messages") + query(asked), { signal: ctx.signal });
      if (turn === loading) show(found);
    } catch (error) {
      if (error.name !== "AbortError" && turn === loading) { status.textContent = error.message; if (following) toggleFollow(); }
    }
  }

  function show(found) {
    const newest = view.from === "newest";
    const same = last && last.messages.length === found.messages.length && last.messages.at(-1)?.offset === found.messages.at(-1)?.offset && last.messages[0]?.offset === found.messages[0]?.offset && last.asked === asked();
    last = found;
    last.asked = asked();
    const rows = newest ? [...found.messages].reverse() : found.messages;
    if (!same) replace(list, rows.length ? rows.map(messageNode) : empty(found.scanned ? "No message matches the filter." : found.end_offset ? "No messages from there on." : "This partition is empty."));
    older.disabled = (found.messages[0]?.offset ?? 0) <= (found.start_offset ?? 0);
    newer.disabled = found.next_offset >= found.end_offset;
    status.textContent = `${f.plural(found.messages.length, "message")}${view.search ? ` of ${f.number(found.scanned)} looked at` : ""}, partition holds ${f.number(found.start_offset ?? 0)} to ${f.number(Math.max(0, found.end_offset - 1))}`;
  }
  const asked = () => JSON.stringify([view.partition, view.search, view.format]);

  function messageNode(message) {
    const preview = message.format === "arrow" ? `${f.plural(message.table.count, "row")}: ${message.table.columns.map((one) => one.name).join(", ")}` : message.value.replace(/\s+/g, " ").slice(0, 240);
    const body = h("div", { class: "message-body" });
    const node = h("details", { class: "message", dataset: { offset: message.offset } }, h("summary", {},
      h("span", { class: "mono offset" }, f.number(message.offset)), h("span", { class: "when soft" }, f.moment(message.timestamp_ms)),
      message.key === null ? null : h("span", { class: "key mono", title: "Key" }, message.key), h("span", { class: "preview mono" }, preview), h("span", { class: "soft size" }, f.bytes(message.bytes))), body);
    node.addEventListener("toggle", () => {
      if (node.open && !body.childNodes.length) replace(body, details(message));
      if (node.open) view.open = String(message.offset); else if (view.open === String(message.offset)) view.open = "";
      setQuery({ open: view.open });
    });
    if (view.open === String(message.offset)) node.open = true;
    return node;
  }

  await load();
  return () => clearInterval(following);
}, { nav: "topics" });

function details(message) {
  const row = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return [
    h("div", { class: "message-main" },
      h("div", { class: "card-head" }, badge(message.format, "plain"), message.truncated ? badge("shortened", "warn", "Only the beginning is shown") : null, h("span", { class: "grow" }),
        button("Copy value", () => copyText(message.value || JSON.stringify(message.table?.rows)), { iconName: "copy" }),
        button("Copy as JSON", () => copyText(JSON.stringify(message, null, 2)), { iconName: "copy" })),
      message.note ? h("p", { class: "note warn" }, message.note) : null,
      value(message)),
    h("dl", { class: "facts" }, row("Partition", String(message.partition)), row("Offset", f.number(message.offset)), row("Time", f.moment(message.timestamp_ms, { millis: true })),
      row("Sent", f.moment(message.origin_timestamp_ms, { millis: true })), row("Id", h("code", {}, message.id)), row("Key", message.key === null ? "–" : h("code", {}, message.key)), row("Size", f.bytes(message.bytes)),
      message.headers.map((one) => row(one.name, h("span", {}, h("code", {}, one.value), " ", h("span", { class: "faint" }, one.kind))))),
  ];
}

function value(message) {
  if (message.format === "arrow") {
    const { columns, rows, count } = message.table;
    return h("div", { class: "table-scroll arrow" }, h("table", { "aria-label": "Arrow rows" }, h("thead", {}, h("tr", {}, columns.map((one) => h("th", {}, one.name, " ", h("span", { class: "faint" }, one.type))))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", { class: "mono" }, cell ?? "null"))))), count > rows.length ? h("caption", { class: "soft" }, `the first ${rows.length} of ${count} rows`) : null));
  }
  if (message.format === "json") return h("pre", { class: "value" }, coloured(message.value));
  if (message.format === "hex") return h("pre", { class: "value" }, dump(message.value));
  return h("pre", { class: "value" }, message.value || "(empty)");
}

/** JSON with its parts in colours; the text stays exactly as it is. */
export function coloured(text) {
  const parts = [];
  const token = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g;
  let at = 0;
  for (let found = token.exec(text); found; found = token.exec(text)) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const kind = found[1] ? (found[2] ? "j-key" : "j-text") : found[3] ? "j-number" : "j-word";
    parts.push(h("span", { class: kind }, found[1] ?? found[0]));
    if (found[2]) parts.push(found[2]);
    at = token.lastIndex;
  }
  parts.push(text.slice(at));
  return parts;
}

function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const bytes = hex.slice(at, at + 32).match(/../g) ?? [];
    const shown = bytes.map((one) => { const code = parseInt(one, 16); return code > 31 && code < 127 ? String.fromCharCode(code) : "·"; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${bytes.join(" ").padEnd(47)}  ${shown}`);
  }
  return lines.join("\n");
}
