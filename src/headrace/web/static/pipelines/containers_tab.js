// Containers: what runs where, and what each is doing.

import { get, path } from "../api.js";
import { badge, button, dialog, h, replace } from "../dom.js";
import * as f from "../format.js";
import { link } from "../router.js";
import { makeTable } from "../table.js";
import * as act from "./actions.js";
import { RESTING } from "./words.js";

const STATES = { ACTIVE: "good", ALLOCATED: "busy", NEW: "busy", KILLED: "bad" };

export function containersTab({ ctx, name, live }) {
  const running = () => live().health.state === "RUNNING";
  const resting = () => RESTING.has(live().health.state);
  const table = makeTable({
    label: "Containers",
    key: (one) => one.index,
    sort: "id",
    columns: [
      { id: "id", title: "Container", text: (one) => one.id || `${one.index + 1}`, node: (one) => h("span", { class: "mono strong" }, one.id || `container ${one.index + 1}`) },
      { id: "state", title: "State", text: (one) => one.state, sign: (one) => `${one.state} ${resting()}`, node: (one) => (one.state === "KILLED" && resting() ? badge("stopped", "quiet") : badge(one.state.toLowerCase(), STATES[one.state])) },
      { id: "operators", title: "Operators", wide: true, text: (one) => one.operators.join(", ") },
      { id: "pid", class: "roomy", title: "Process", number: true, wide: true, text: (one) => (one.pid ? `${one.pid}` : "–") },
      { id: "heartbeat", title: "Heartbeat", number: true, wide: true, text: (one) => (one.heartbeat_age_ms === null ? "–" : f.duration(Math.round(one.heartbeat_age_ms / 100) * 100)), sort: (one) => one.heartbeat_age_ms },
      { id: "memory", title: "Free heap", number: true, wide: true, text: (one) => (one.memory_mb_free === null ? "–" : f.bytes(one.memory_mb_free * 1024 * 1024)), sort: (one) => one.memory_mb_free },
      { id: "gc", class: "roomy", title: "Garbage collection", number: true, wide: true, text: (one) => (one.gc_collection_time === null ? "–" : f.duration(one.gc_collection_time)), sort: (one) => one.gc_collection_time },
      { id: "restarts", title: "Restarts", number: true, wide: true, text: (one) => f.number(one.restarts), sort: (one) => one.restarts },
      { id: "recovery", class: "roomy", title: "Last recovery", number: true, wide: true, text: (one) => (one.recovery_ms ? f.duration(one.recovery_ms) : "–"), sort: (one) => one.recovery_ms },
      { id: "actions", title: "", sort: false, class: "actions-cell", text: () => "", sign: (one) => `${one.id} ${one.state} ${running()}`, node: (one) => buttons(one) },
    ],
  });

  function buttons(one) {
    if (!one.id) return h("span");
    const living = running() && one.state === "ACTIVE";
    return h("span", { class: "row-actions" },
      h("a", { class: "button", href: `${link`/pipelines/${name}`}?tab=logs&container=${encodeURIComponent(one.id)}` }, "Logs"),
      living ? button("Stack trace", () => stackTrace(one.id)) : null,
      living && ctx.session.may_manage ? button("Kill", () => act.kill(name, one.id), { kind: "danger" }) : null);
  }

  function stackTrace(container) {
    const place = h("div", { class: "traces" }, h("p", { class: "soft" }, "Asking the container…"));
    get(path`/api/v1/pipelines/${name}/containers/${container}/stack-trace`).then(
      (trace) => replace(place, thread("Python", trace.python), thread("JVM", trace.jvm)),
      (error) => replace(place, h("p", { class: "problem" }, error.message)),
    );
    return dialog(`Threads of ${container}`, (close) => h("div", { class: "dialog-body" }, place, h("footer", {}, button("Close", () => close(), { kind: "primary" }))), { wide: true });
  }

  const thread = (kind, threads) => threads.map((one) => h("details", { open: threads.length < 4 },
    h("summary", {}, badge(kind, "plain"), ` ${one.name} `, one.state ? h("span", { class: "soft" }, one.state.toLowerCase()) : null),
    h("pre", { class: "sample" }, (one.stack ?? []).map((line) => String(line).trimEnd()).join("\n"))));

  return {
    id: "containers",
    label: "Containers",
    node: h("section", { class: "card flush" }, table.node),
    update(value) { table.update(value.containers); },
    count: (value) => String(value.containers.length),
  };
}
