// A table that sorts, filters, and draws only the rows in sight, so that thousands stay fast.
//
//   const table = makeTable({
//     label: "Topics", key: (row) => row.id, rows: [],
//     columns: [{ id: "name", title: "Topic", text: (row) => row.name, node: (row) => h("a", ...),
//                 sort: (row) => row.name, number: false, wide: false }],   // wide: only on wide windows
//     sort: "name", descending: false, filter: "", empty: node,
//     onView: ({sort, descending, filter}) => setQuery(...),                // for the address
//   });
//   main.append(table.node); table.update(rows); table.setFilter("abc");
//
// A cell is drawn anew only when its text changed: focus and selection stay.

import { h, icon, replace, setText } from "./dom.js";
import { plural } from "./format.js";

const ROW_PIXELS = 34;
const SPARE_ROWS = 12;

export function makeTable(options) {
  const { columns, key, label } = options;
  const view = { sort: options.sort ?? columns[0].id, descending: options.descending ?? false, filter: options.filter ?? "" };
  let all = options.rows ?? [];
  let loaded = all.length > 0;
  let shown = [];
  let first = -1, last = -1;
  const kept = new Map(); // key -> {tr, cells: [text]}

  const above = h("tr", { class: "spacer", "aria-hidden": "true" });
  const below = h("tr", { class: "spacer", "aria-hidden": "true" });
  const body = h("tbody", {}, above, below);
  const head = h("thead", {}, h("tr", {}, columns.map((column) => {
    const marker = h("span", { class: "sort-mark", "aria-hidden": "true" });
    column.marker = marker;
    const content = column.sort === false ? h("span", {}, column.title) : h("button", { type: "button", class: "sort", on: { click: () => sortBy(column.id) } }, column.title, marker);
    column.head = h("th", { scope: "col", class: classes(column) }, content);
    return column.head;
  })));
  const grid = h("table", { "aria-label": label, "aria-rowcount": 0 }, head, body);
  const scroller = h("div", { class: "table-scroll", on: { scroll: () => requestAnimationFrame(() => draw()) } }, grid);
  const nothing = h("div", { class: "table-empty", hidden: true });
  const count = h("span", { class: "table-count soft", role: "status" });
  const node = h("div", { class: "table" }, scroller, nothing);

  function classes(column) {
    return [column.number ? "n" : "", column.wide ? "wide-only" : "", column.class ?? ""].join(" ").trim();
  }

  function sortBy(id) {
    if (view.sort === id) view.descending = !view.descending;
    else { view.sort = id; view.descending = Boolean(columns.find((one) => one.id === id)?.number); }
    arrange();
    options.onView?.({ ...view });
  }

  function sortValue(column, row) {
    return typeof column.sort === "function" ? column.sort(row) : column.text(row);
  }

  function arrange() {
    const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
    shown = words.length ? all.filter((row) => { const text = columns.map((one) => one.text(row)).join(" ").toLowerCase(); return words.every((word) => text.includes(word)); }) : all.slice();
    const column = columns.find((one) => one.id === view.sort);
    if (column) {
      const way = view.descending ? -1 : 1;
      shown.sort((a, b) => {
        const x = sortValue(column, a), y = sortValue(column, b);
        if (x === y) return 0;
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        return way * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x < y ? -1 : 1);
      });
    }
    for (const one of columns) {
      const active = one.id === view.sort && one.sort !== false;
      one.head.setAttribute("aria-sort", active ? (view.descending ? "descending" : "ascending") : "none");
      setText(one.marker, active ? (view.descending ? "↓" : "↑") : "");
    }
    grid.setAttribute("aria-rowcount", shown.length);
    setText(count, view.filter ? `${plural(shown.length, "of", "of")} ${all.length}` : String(all.length));
    scroller.hidden = !all.length && (!loaded || Boolean(options.empty));
    nothing.hidden = Boolean(shown.length);
    if (!shown.length && !loaded) replace(nothing, h("p", { class: "soft" }, "Loading…"));
    else if (!shown.length) replace(nothing, all.length ? h("p", { class: "soft" }, "Nothing matches the filter.") : options.empty ?? h("p", { class: "soft" }, "Nothing here yet."));
    draw(true);
  }

  function draw(force = false) {
    const from = Math.max(0, Math.floor(scroller.scrollTop / ROW_PIXELS) - SPARE_ROWS);
    const until = Math.min(shown.length, from + Math.ceil((scroller.clientHeight || 800) / ROW_PIXELS) + 2 * SPARE_ROWS);
    if (!force && from === first && until === last) return;
    first = from; last = until;
    const used = new Set();
    let place = above;
    for (let i = from; i < until; i++) {
      const id = String(key(shown[i]));
      used.add(id);
      const tr = rowOf(id, shown[i], i);
      if (place.nextSibling !== tr) place.after(tr);
      place = tr;
    }
    for (const [id, one] of kept) if (!used.has(id)) { one.tr.remove(); kept.delete(id); }
    above.style.setProperty("height", `${from * ROW_PIXELS}px`);
    below.style.setProperty("height", `${(shown.length - until) * ROW_PIXELS}px`);
  }

  function rowOf(id, row, index) {
    let one = kept.get(id);
    if (!one) {
      one = { tr: h("tr", {}, columns.map((column) => h("td", { class: classes(column), "data-title": column.title }))), cells: [] };
      kept.set(id, one);
    }
    one.tr.setAttribute("aria-rowindex", index + 1);
    columns.forEach((column, i) => {
      const text = column.text(row);
      const sign = column.sign ? column.sign(row) : text;
      if (one.cells[i] === sign) return;
      one.cells[i] = sign;
      const cell = one.tr.children[i];
      if (column.node) {
        const had = cell.contains(document.activeElement);
        replace(cell, column.node(row));
        if (had) cell.querySelector("a, button")?.focus();
      } else cell.textContent = text;
    });
    return one.tr;
  }

  // Arrow keys go from row to row on the links of a column.
  body.addEventListener("keydown", (event) => {
    const way = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const cell = event.target.closest?.("td");
    if (!way || !cell) return;
    const next = cell.parentElement[way]?.children[cell.cellIndex]?.querySelector?.("a, button");
    if (next) { event.preventDefault(); next.focus(); }
  });

  new ResizeObserver(() => draw(true)).observe(scroller);
  arrange();
  return {
    node, count,
    update(rows) { all = rows; loaded = true; arrange(); },
    setFilter(text) { view.filter = text; scroller.scrollTop = 0; arrange(); options.onView?.({ ...view }); },
    get view() { return { ...view }; },
    get rows() { return shown; },
  };
}

/** The field that filters a table; `/` focuses it. */
export function filterField(table, { placeholder = "Filter", label = "Filter the table" } = {}) {
  const input = h("input", { type: "search", placeholder, "aria-label": label, value: table.view.filter, dataset: { search: "" }, autocomplete: "off", spellcheck: "false", on: { input: () => table.setFilter(input.value) } });
  return h("div", { class: "filter" }, icon("search"), input, h("kbd", { class: "wide-only" }, "/"), table.count);
}
