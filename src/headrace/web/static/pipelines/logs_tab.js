// A container's log: its last lines, of a level, followed while they are written.

import { get, path, query } from "../api.js";
import { h, replace } from "../dom.js";
import { setQuery } from "../router.js";

const LEVELS = [["", "All levels"], ["INFO", "Info and worse"], ["WARNING", "Warnings and worse"], ["ERROR", "Errors"]];
const CLASSES = [[/\b(critical|fatal|error|exception)\b/i, "bad-text"], [/\bwarn(ing)?\b/i, "warn-text"]];

export function logsTab({ ctx, name, live }) {
  let container = ctx.query.get("container") ?? "";
  let level = ctx.query.get("level") ?? "";
  let follow = true;
  let shown = null;
  const chosen = h("select", { "aria-label": "Container", on: { change: () => { container = chosen.value; changed(); } } });
  const levels = h("select", { "aria-label": "Level", on: { change: () => { level = levels.value; changed(); } } }, LEVELS.map(([value, label]) => h("option", { value, selected: value === level }, label)));
  const search = h("input", { type: "search", placeholder: "Find", "aria-label": "Find in the log", dataset: { search: "" }, on: { input: () => draw() } });
  const following = h("input", { type: "checkbox", checked: true, on: { change: () => { follow = following.checked; } } });
  const text = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
  const node = h("section", { class: "card flush" },
    h("div", { class: "toolbar" }, chosen, levels, search, h("label", { class: "inline-field" }, following, "Follow")), text);

  function changed() {
    setQuery({ container, level });
    shown = null;
    load();
  }

  function draw() {
    if (shown === null) return;
    const words = search.value.toLowerCase();
    const lines = shown.split("\n").filter((line) => line.toLowerCase().includes(words));
    replace(text, lines.map((line) => h("span", { class: `log-line ${CLASSES.find(([matcher]) => matcher.test(line.slice(0, 90)))?.[1] ?? ""}` }, `${line}\n`)));
    if (follow) text.scrollTop = text.scrollHeight;
  }

  async function load() {
    if (!container || !node.isConnected) return;
    try {
      const fresh = await get(path`/api/v1/pipelines/${name}/containers/${container}/logs` + query({ lines: 500, level }), { signal: ctx.signal });
      if (fresh === shown) return;
      shown = fresh;
      draw();
      if (!fresh) replace(text, h("span", { class: "soft" }, level ? "No line of this level." : "Nothing is written yet."));
    } catch (error) {
      if (error.name !== "AbortError") replace(text, h("span", { class: "soft" }, error.message));
    }
  }

  function options(value) {
    const ids = value.containers.map((one) => one.id).filter(Boolean);
    // Logs of containers that ended are kept: an error may name one of them.
    if (container && !ids.includes(container)) ids.push(container);
    if (!container) [container = ""] = ids;
    const sign = ids.join();
    if (chosen.dataset.sign === sign) return;
    chosen.dataset.sign = sign;
    replace(chosen, ids.map((one) => h("option", { value: one }, one)));
    chosen.value = container;
  }

  return {
    id: "logs",
    label: "Logs",
    node,
    update(value) {
      options(value);
      if (follow) load();
    },
    show() { shown = null; options(live()); load(); },
  };
}
