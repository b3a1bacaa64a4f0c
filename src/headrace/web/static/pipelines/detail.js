// One pipeline: how it is, its graph, windows, containers, events, errors, logs, dead letters.
//
// A tab is {id, label, node, update(live), show(), count(live)}; what it shows stands in the address
// (`?tab=logs&container=...`). `live` is PipelineLive with all windows that are known here.

import { get, path } from "../api.js";
import { button, figure, h, replace, setText, toast } from "../dom.js";
import * as f from "../format.js";
import { link, route, setQuery } from "../router.js";
import * as act from "./actions.js";
import { containersTab } from "./containers_tab.js";
import { errorsTab, eventsTab } from "./events_tab.js";
import { graphTab } from "./graph_tab.js";
import { lettersTab } from "./letters_tab.js";
import { logsTab } from "./logs_tab.js";
import { makeProblems } from "./problems.js";
import { NO_WINDOW, catchUp, eventDetail, eventText, lag, percent, rows, seconds, shortHash, stateBadge } from "./words.js";

const POINTS_MAX = 180;
const ENDED = new Set(["STOPPED", "FINISHED", "FAILED"]);
const TOLD = new Set(["RecoverContainer", "ResumeApplication", "StopApplication", "FinishApplication", "Partition", "RollBack", "Replay", "SetOperatorProperty", "ContainerError", "OperatorError", "DataGap"]);

const FIELDS = ["at_ms", "window", "duration_ms", "checkpoint_ms", "rows", "lag", "rows_late", "rows_bad", "state_rows", "watermark_ms"];

/** What is known of each operator's windows, and the newest ones. */
export function mergeWindows(before, fresh) {
  return fresh.map((one) => {
    const known = before.find((each) => each.id === one.id);
    if (!known) return one;
    const newest = known.at_ms.at(-1) ?? 0;
    const from = one.at_ms.findIndex((at) => at > newest);
    if (from < 0) return { ...known, query: one.query };
    const merged = { ...one };
    for (const field of FIELDS) merged[field] = [...known[field], ...one[field].slice(from)].slice(-POINTS_MAX);
    return merged;
  });
}

/** What may be done now. `current()` is asked when a button is pressed, not when it is made. */
function headActions(name, current, session) {
  const live = current();
  if (!session.may_manage) return [];
  const ended = ENDED.has(live.health.state);
  if (ended) return [button("Resume", () => act.resume(name), { kind: "primary", iconName: "play" })];
  const topics = live.graphs.logical.nodes.filter((one) => one.kind === "source" && one.topic);
  return [
    topics.length ? button("Replay", () => act.replay(name, topics), { iconName: "refresh" }) : null,
    button("Roll back", () => act.rollBack(name, committedWindows(current()), current().health.committed_window), { iconName: "left" }),
    live.health.state === "RUNNING" ? button("Stop", () => act.stop(name), { kind: "danger", iconName: "stop" }) : null,
  ];
}

/** Windows of the slowest query that are committed, newest first: what one can go back to. */
function committedWindows(live) {
  const lists = live.windows.filter((one) => one.query && one.window.length);
  if (!lists.length || live.health.committed_window === NO_WINDOW) return [];
  const shortest = lists.reduce((a, b) => (a.window.length <= b.window.length ? a : b));
  const committed = BigInt(`0x${live.health.committed_window}`);
  return shortest.window
    .map((window, index) => ({ window, at_ms: shortest.at_ms[index] }))
    .filter((one) => BigInt(`0x${one.window}`) <= committed)
    .reverse()
    .slice(0, 60);
}

function makeFigures() {
  const made = {
    lag: figure("Behind"), catchUp: figure("Caught up"), rate: figure("Processed"), bottleneck: figure("Bottleneck"),
    watermark: figure("Watermark delay"), late: figure("Late rows"), dead: figure("Dead rows"), state: figure("State"),
    restarts: figure("Restarts"), code: figure("Code"),
  };
  const node = h("div", { class: "figures pipeline-figures" }, Object.values(made).map((one) => one.node));
  for (const [name, one] of Object.entries(made)) one.node.dataset.figure = name;
  return {
    node,
    update(live) {
      const health = live.health;
      made.lag.set(lag(health), `${f.compact(health.lag_rows)} ${health.lag_rows === 1 ? "row waits" : "rows wait"}`);
      made.catchUp.set(catchUp(health), health.catch_up === "never" ? "more arrives than it takes" : "");
      made.rate.set(rows(health.rows_per_second), `${rows(health.arrival_per_second)} arrive`);
      made.bottleneck.set(health.bottleneck?.operator ?? "none", health.bottleneck ? `${percent(health.bottleneck.busy)} busy, ${f.duration(health.bottleneck.batch_ms)} a batch` : "nothing limits it");
      made.watermark.set(seconds(health.watermark_delay_seconds), health.watermark_delay_seconds === null ? "no watermark" : "");
      made.late.set(f.compact(health.rows_late), health.rows_late_lately ? `${f.compact(health.rows_late_lately)} lately` : "none lately");
      made.dead.set(f.compact(health.rows_dead), health.rows_dead_lately ? `${f.compact(health.rows_dead_lately)} lately` : "none lately");
      made.state.set(health.state_rows ? f.bytes(health.state_bytes) : "none", health.state_rows ? `${f.compact(health.state_rows)} rows` : "");
      made.restarts.set(f.number(health.restarts), `${health.containers_active} of ${f.plural(health.containers, "container")} active`);
      made.code.set(shortHash(health.package), live.entry);
      made.code.node.title = health.package;
      made.catchUp.node.classList.toggle("alarm", health.catch_up === "never");
    },
  };
}

route("/pipelines/:name", "Pipeline", async (ctx) => {
  const name = ctx.params.name;
  ctx.head({ title: name, crumbs: [["Pipelines", "#/pipelines"]] });
  const first = await ctx.guard(get(path`/api/v1/pipelines/${name}/live`, { signal: ctx.signal }));
  if (!first) return;
  let live = first;
  let headSign = "";
  let lastEvent = first.events.at(-1)?.id ?? 0;
  const problems = makeProblems(ctx.session, { linked: false });
  const figures = makeFigures();
  const page = { ctx, name, live: () => live };
  const tabs = [graphTab(page), containersTab(page), eventsTab(page), errorsTab(page), logsTab(page), lettersTab(page)];
  const strip = h("nav", { class: "tabs", "aria-label": "Parts of the pipeline" }, tabs.map((tab) => {
    tab.counter = h("span", { class: "tab-count" });
    tab.link = h("a", { href: `${link`/pipelines/${name}`}?tab=${tab.id}`, dataset: { tab: tab.id }, on: { click: (event) => { event.preventDefault(); choose(tab.id, true); } } }, tab.label, tab.counter);
    return tab.link;
  }));
  const place = h("div", { class: "tab-place" });
  replace(ctx.main, problems.node, figures.node, strip, place);
  let current = null;

  function choose(id, byUser = false) {
    const wanted = tabs.find((one) => one.id === id) ?? tabs[0];
    if (byUser) setQuery({ tab: wanted === tabs[0] ? null : wanted.id });
    current = wanted;
    for (const one of tabs) {
      if (one === wanted) one.link.setAttribute("aria-current", "page");
      else one.link.removeAttribute("aria-current");
    }
    replace(place, wanted.node);
    wanted.update(live);
    wanted.show?.();
  }

  function draw() {
    const { health } = live;
    const sentence = health.problems.length ? "" : health.sentence;
    const sign = `${health.state} ${health.severity} ${sentence} ${live.graphs.logical.nodes.length}`;
    if (sign !== headSign) {
      headSign = sign;
      ctx.head({ title: name, crumbs: [["Pipelines", "#/pipelines"]], lead: sentence, actions: [stateBadge(health), ...headActions(name, page.live, ctx.session)] });
    }
    problems.update(health.problems);
    figures.update(live);
    for (const tab of tabs) setText(tab.counter, tab.count ? tab.count(live) : "");
    current?.update(live);
  }

  function tell(events) {
    for (const one of events.filter((each) => each.id > lastEvent && TOLD.has(each.type))) {
      toast(`${eventText(one)}${eventDetail(one) ? `: ${eventDetail(one).slice(0, 140)}` : ""}`, one.level === "ERROR" ? "bad" : "good");
    }
    lastEvent = events.at(-1)?.id ?? lastEvent;
  }

  choose(ctx.query.get("tab"));
  draw();
  ctx.live(`pipeline/${name}`, (fresh) => {
    live = { ...fresh, windows: mergeWindows(live.windows, fresh.windows) };
    tell(fresh.events);
    draw();
  });
  ctx.live("alerts", () => {}); // keeps the pipeline's own topic fed
}, { nav: "pipelines" });
