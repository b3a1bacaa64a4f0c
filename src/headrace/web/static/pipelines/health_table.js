// Pipelines in a table, worst first: for the front page and for the list.

import { empty, h } from "../dom.js";
import * as f from "../format.js";
import { makeTable } from "../table.js";
import { link } from "../router.js";
import { SEVERITIES, catchUp, firstLine, healthIcon, lag, percent, seconds, shortHash, stateBadge } from "./words.js";

const rank = (one) => `${SEVERITIES.indexOf(one.severity)}${["STOPPED", "FINISHED"].includes(one.state) ? 1 : 0}${one.name}`;

/** Why there is none: who may not manage the server sees the pipelines of topics that they may read. */
export const NONE = { true: "No pipeline was submitted yet.", false: "There is no pipeline that you may see." };

export function makeHealthTable(session, options = {}) {
  return makeTable({
    label: "Pipelines",
    key: (one) => one.name,
    sort: "rank",
    empty: session.may_manage ? empty(NONE.true, "headrace pipeline run FILE.py") : empty(NONE.false),
    ...options,
    columns: [
      { id: "rank", title: "", class: "tight", text: (one) => one.severity, sort: rank, sign: (one) => `${one.severity}${one.state}`, node: healthIcon },
      { id: "name", title: "Pipeline", text: (one) => one.name, node: (one) => h("a", { href: link`/pipelines/${one.name}`, class: "strong" }, one.name) },
      { id: "state", title: "State", wide: true, text: (one) => one.state, sign: (one) => `${one.state}${one.severity}`, node: stateBadge },
      { id: "lag", title: "Behind", number: true, text: lag, sort: (one) => one.lag_seconds, node: (one) => h("span", { title: `${f.number(one.lag_rows)} rows wait` }, lag(one)) },
      { id: "catch", title: "Caught up", number: true, text: catchUp, sort: (one) => (one.catch_up === "never" ? Infinity : one.catch_up_seconds), node: (one) => h("span", { class: one.catch_up === "never" ? "bad-text strong" : "" }, catchUp(one)) },
      { id: "bottleneck", title: "Bottleneck", wide: true, text: (one) => (one.bottleneck ? `${one.bottleneck.operator} ${percent(one.bottleneck.busy)}` : "–"), node: (one) => (one.bottleneck ? h("span", { title: one.bottleneck.reason }, one.bottleneck.operator, " ", h("span", { class: "soft" }, percent(one.bottleneck.busy))) : "–") },
      { id: "watermark", title: "Watermark", number: true, wide: true, text: (one) => seconds(one.watermark_delay_seconds), sort: (one) => one.watermark_delay_seconds },
      { id: "late", title: "Late, dead", number: true, wide: true, text: (one) => `${f.compact(one.rows_late)}, ${f.compact(one.rows_dead)}`, sort: (one) => one.rows_late + one.rows_dead },
      { id: "size", title: "Kept state", number: true, wide: true, text: (one) => (one.state_rows ? f.bytes(one.state_bytes) : "–"), sort: (one) => one.state_bytes },
      { id: "code", title: "Code", wide: true, text: (one) => shortHash(one.package), node: (one) => h("code", { title: one.package }, shortHash(one.package)) },
      { id: "error", title: "Last error", wide: true, class: "error-cell", text: (one) => firstLine(one.last_error?.text) || "–", node: (one) => (one.last_error ? h("a", { href: `${link`/pipelines/${one.name}`}?tab=errors`, class: "bad-text", title: one.last_error.text }, firstLine(one.last_error.text)) : h("span", { class: "faint" }, "–")) },
    ],
  });
}
