// How pipelines are spoken of: severities, lags, errors, events.

import { badge, h, icon } from "../dom.js";
import * as f from "../format.js";

export const SEVERITIES = ["critical", "warning", "notice", "ok"];
const KINDS = { critical: "bad", warning: "warn", notice: "busy", ok: "good" };
const ICONS = { critical: "alert", warning: "alert", notice: "pulse", ok: "check" };
const STATES = { RUNNING: "good", STOPPING: "busy", STOPPED: "quiet", FINISHED: "quiet", FAILED: "bad", UNREADABLE: "bad" };

/** Told to end, or done: what is down then is down by wish. */
export const RESTING = new Set(["STOPPING", "STOPPED", "FINISHED"]);

/** What runs no more has a sign of its own. */
export const healthIcon = (one) => (one.severity === "ok" && one.state !== "RUNNING" ? icon("stop", { class: "icon faint" }) : severityIcon(one.severity));
export const severityIcon = (severity) => icon(ICONS[severity], { class: `icon severity-${severity}` });
export const severityClass = (severity) => KINDS[severity];

/** The state of a pipeline, coloured by how it is. */
export function stateBadge({ state, severity }) {
  const running = state === "RUNNING" && severity !== "ok";
  return badge(state.toLowerCase(), running ? KINDS[severity] : STATES[state] ?? "quiet");
}

export const rows = (perSecond) => `${f.compact(round(perSecond))} rows/s`;
const round = (value) => (value >= 100 ? Math.round(value) : Math.round(value * 10) / 10);

/** Whole seconds: nobody waits for less. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 1 ? "1 s" : f.duration(1000 * Math.round(value));
}

export function lag(health) {
  if (health.lag_seconds === null) return "–";
  return health.lag_rows ? seconds(health.lag_seconds) : "none";
}

export function catchUp(health) {
  if (health.catch_up === "catching up") return `in ${seconds(health.catch_up_seconds)}`;
  return { "caught up": "caught up", never: "never", unknown: "–" }[health.catch_up];
}

export const shortHash = (hash) => (hash ? hash.slice(0, 8) : "–");
export const firstLine = (text) => (text ?? "").trim().split("\n")[0];
export const percent = (share) => `${Math.round(100 * share)} %`;

/** An event in words: its type taken apart, and what belongs to it. */
export function eventText(event) {
  const words = event.type.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return `${words[0].toUpperCase()}${words.slice(1)}`;
}

const KNOWN = new Set(["id", "time_ms", "type", "level", "reason", "group", "log"]);

export function eventDetail(event) {
  const more = Object.entries(event).filter(([name, value]) => !KNOWN.has(name) && value !== null && value !== "");
  return [firstLine(event.reason), ...more.map(([name, value]) => `${name.replaceAll("_", " ")} ${plain(value)}`)].filter(Boolean).join(" · ");
}

export function plain(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? f.number(value) : String(Math.round(value * 1000) / 1000);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A row of a list of facts. */
export const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];

/** The id that stands for no window: nothing was committed, or checkpointed, so far. */
export const NO_WINDOW = "f".repeat(16);
export const windowText = (id) => (id === NO_WINDOW ? "none yet" : id);
