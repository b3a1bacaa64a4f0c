// The entries of the navigation. Pages add theirs when they are imported.

import { h, icon, setText } from "./dom.js";

const known = [];
const counts = new Map(); // id -> [text, bad]

/** entry: {id, label, icon, href, key, group, order} */
export function nav(entry) {
  known.push(entry);
  known.sort((a, b) => a.order - b.order);
}

export const entries = () => known;

export function navigation() {
  let group = "";
  const items = [];
  for (const one of known) {
    if (one.group && one.group !== group) items.push(h("div", { class: "nav-group" }, one.group));
    group = one.group ?? "";
    items.push(h("a", { class: "nav-item", href: one.href, dataset: { nav: one.id } }, icon(one.icon), h("span", {}, one.label), h("span", { class: "count" })));
  }
  const made = h("nav", { "aria-label": "Pages" }, items);
  for (const id of counts.keys()) draw(made, id);
  return made;
}

export function markCurrent(id) {
  for (const one of document.querySelectorAll(".nav-item")) {
    if (one.dataset.nav === id) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
}

/** A number beside an entry; "" takes it away. */
export function setCount(id, text, bad = false) {
  counts.set(id, [String(text), bad]);
  draw(document, id);
}

function draw(root, id) {
  const place = root.querySelector(`[data-nav="${id}"] .count`);
  if (!place) return;
  const [text, bad] = counts.get(id);
  setText(place, text);
  place.classList.toggle("bad", bad);
}
