// Elements, dialogs, toasts. Text is always set as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("a", {class: "x", href: "#/", on: {click}, dataset: {id: 1}}, "text", node, [nodes], null) */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.setAttribute("class", value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(node, child);
    else node.append(child);
  }
}

export function replace(node, ...children) {
  node.replaceChildren();
  append(node, children);
  return node;
}

/** Set a text only when it differs: selection and screen readers stay undisturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const ICONS = {
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  home: "M4 11l8-7 8 7M6 10v10h12V10",
  topics: "M4 6h16M4 12h16M4 18h10",
  streams: "M3 7c3-2.5 6-2.5 9 0s6 2.5 9 0M3 13c3-2.5 6-2.5 9 0s6 2.5 9 0M3 19c3-2.5 6-2.5 9 0s6 2.5 9 0",
  groups: "M9 11a3.5 3.5 0 100-7 3.5 3.5 0 000 7zM2.5 20c.5-4 3-6 6.500-6s6 2 6.500 6M16 4.500a3.500 3.500 0 010 6.500M18 14.500c2 .8 3.200 2.700 3.500 5.500",
  cluster: "M12 3l8 4.500v9L12 21l-8-4.500v-9zM4 7.500l8 4.500 8-4.500M12 12v9",
  workers: "M5 4h14v6H5zM5 14h14v6H5zM8 7h.01M8 17h.01M12 7h4M12 17h4",
  clients: "M4 5h16v11H4zM9 20h6M12 16v4",
  users: "M12 12a4 4 0 100-8 4 4 0 000 8zM4.500 20c.8-4 3.500-6 7.500-6s6.700 2 7.500 6",
  pipelines: "M5 6a2 2 0 104 0 2 2 0 10-4 0M15 18a2 2 0 104 0 2 2 0 10-4 0M7 8v4c0 4 3 6 8 6M15 6a2 2 0 104 0 2 2 0 10-4 0M9 6h6",
  alert: "M12 4l9 16H3zM12 10v4M12 17v.5",
  plus: "M12 5v14M5 12h14",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  broom: "M14 4l6 6M12 8l4 4-7 8H4v-5z",
  send: "M4 12l16-8-6 16-3-6z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  search: "M10.500 17a6.500 6.500 0 100-13 6.500 6.500 0 000 13zM15.500 15.500L21 21",
  sun: "M12 16a4 4 0 100-8 4 4 0 000 8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M20 14.500A8 8 0 019.500 4 8 8 0 1020 14.500z",
  exit: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
  keyboard: "M3 6h18v12H3zM7 10h.01M11 10h.01M15 10h.01M7 14h10",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  right: "M9 5l7 7-7 7",
  left: "M15 5l-7 7 7 7",
  down: "M5 9l7 7 7-7",
  play: "M7 4l13 8-13 8z",
  stop: "M6 6h12v12H6z",
  pause: "M8 5v14M16 5v14",
  refresh: "M20 5v5h-5M4 19v-5h5M5.500 9a7.500 7.500 0 0113-2l1.500 3M18.500 15a7.500 7.500 0 01-13 2L4 14",
  check: "M5 12.500l5 5 9-11",
  logs: "M5 4h14v16H5zM9 9h6M9 13h6M9 17h3",
  edit: "M4 20l1-5L16 4l4 4L9 19z",
  letters: "M3 6h18v13H3zM3 7l9 7 9-7",
};

export function icon(name, props = {}) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", ...props }, svg("path", { d: ICONS[name] ?? ICONS.pulse }));
}

/** A button. kind: "" | "primary" | "danger" | "quiet"; `label` is needed when there is only an icon. */
export function button(text, act, { kind = "", iconName = "", label = "", disabled = false, title = "", type = "button", dataset } = {}) {
  return h("button", { type, class: `button ${kind}${text ? "" : " bare"}`, on: act ? { click: act } : {}, disabled, title: title || (text ? null : label), "aria-label": text ? null : label, dataset },
    iconName ? icon(iconName) : null, text ? h("span", {}, text) : null);
}

/** state: good | warn | bad | quiet | busy. The shape differs too: nothing is told by colour alone. */
export function badge(text, state = "quiet", title = "") {
  return h("span", { class: `badge ${state}`, title: title || null }, text);
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);
}

/** One figure with its name; returns {node, set(value, note)}. */
export function figure(label, value = "–", note = "") {
  const number = h("div", { class: "figure-value" }, value);
  const small = h("div", { class: "figure-note" }, note);
  const node = h("div", { class: "figure" }, h("div", { class: "figure-label" }, label), number, small);
  return { node, set(text, more = "") { setText(number, String(text)); setText(small, more); } };
}

export function empty(text, ...hints) {
  return h("div", { class: "empty" }, h("p", {}, text), ...hints.map((one) => (one instanceof Node ? one : h("code", {}, one))));
}

export function toast(text, kind = "good") {
  const place = document.getElementById("toasts");
  const node = h("div", { class: `toast ${kind}` }, h("span", {}, text), button("", () => node.remove(), { kind: "quiet", iconName: "close", label: "Dismiss" }));
  place.append(node);
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => node.remove(), kind === "bad" ? 12000 : 5000);
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    const field = h("textarea", { class: "offscreen", "aria-hidden": "true" }, text);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    toast(done ? "Copied" : "The browser does not allow copying", done ? "good" : "bad");
  }
}

/** A modal window. build(close) -> nodes. Resolves with what close() was given. */
export function dialog(title, build, { wide = false } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const before = document.activeElement;
    const node = h("dialog", { class: wide ? "wide" : "", "aria-label": title });
    const close = (value = null) => { result = value; node.close(); };
    const head = h("header", {}, h("h2", {}, title), button("", () => close(), { kind: "quiet", iconName: "close", label: "Close" }));
    append(node, [head, build(close)]);
    node.addEventListener("close", () => { node.remove(); before?.focus?.(); resolve(result); });
    document.body.append(node);
    node.showModal();
    (node.querySelector("[autofocus]") ?? node.querySelector("input, select, textarea") ?? node.querySelector("footer .button"))?.focus();
  });
}

/** Ask first. With `word` the button works only once that word was typed. */
export function confirm(title, text, { action = "Do it", danger = true, word = "" } = {}) {
  return dialog(title, (close) => {
    const go = button(action, null, { kind: danger ? "danger" : "primary", type: "submit", disabled: Boolean(word) });
    const field = word ? h("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": `Type ${word} to confirm`, on: { input: () => { go.disabled = field.value !== word; } } }) : null;
    return h("form", { on: { submit: (event) => { event.preventDefault(); if (!go.disabled) close(true); } } },
      h("p", {}, text),
      word ? h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, word), " to confirm"), field) : null,
      h("footer", {}, button("Cancel", () => close(false)), go));
  });
}

/** A form in a dialog. fields: [{name, label, type, value, required, hint, options, min, max, rows}].
 *  `submit(values)` may throw; what it says is shown and the dialog stays. Resolves true when done. */
export function formDialog(title, fields, submit, { action = "Save", intro = "" } = {}) {
  return dialog(title, (close) => {
    const inputs = new Map();
    const problem = h("p", { class: "problem", role: "alert" });
    const go = button(action, null, { kind: "primary", type: "submit" });
    const rows = fields.map((field) => {
      const common = { name: field.name, id: `field-${field.name}`, required: field.required, "aria-describedby": field.hint ? `hint-${field.name}` : null };
      let input;
      if (field.options) input = h("select", common, field.options.map(([value, label]) => h("option", { value, selected: value === field.value }, label)));
      else if (field.rows) input = h("textarea", { ...common, rows: field.rows, spellcheck: "false", placeholder: field.placeholder }, field.value ?? "");
      else input = h("input", { ...common, type: field.type ?? "text", value: field.value ?? "", min: field.min, max: field.max, step: field.step, placeholder: field.placeholder, autocomplete: field.autocomplete ?? "off", spellcheck: "false" });
      inputs.set(field.name, input);
      return h("label", { class: "field", for: `field-${field.name}` }, h("span", {}, field.label), input, field.hint ? h("small", { id: `hint-${field.name}` }, field.hint) : null);
    });
    return h("form", { on: { submit: async (event) => {
      event.preventDefault();
      go.disabled = true;
      problem.textContent = "";
      try {
        await submit(Object.fromEntries([...inputs].map(([name, input]) => [name, input.value])));
        close(true);
      } catch (error) {
        problem.textContent = error.message;
      } finally {
        go.disabled = false;
      }
    } } }, intro ? h("p", { class: "soft" }, intro) : null, ...rows, problem, h("footer", {}, button("Cancel", () => close(false)), go));
  });
}
