// Keeping a live drawing up to date: what does not change is left alone, so that it neither flickers
// nor loses the keyboard's focus.

/** Sets attributes; `text` is the element's text, null takes an attribute away. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") {
      if (element.textContent !== String(value)) element.textContent = value;
    } else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  return element;
}

const known = new WeakMap(); // parent -> Map of key to child

/** Keeps one child per key: make(row) for a new one, update(child, row) for all. */
export function keyed(parent, rows, key, make, update) {
  if (!known.has(parent)) known.set(parent, new Map());
  const children = known.get(parent);
  const seen = new Set();
  for (const row of rows) {
    const id = String(key(row));
    seen.add(id);
    let child = children.get(id);
    if (!child) {
      child = make(row);
      children.set(id, child);
      parent.append(child);
    }
    update(child, row);
  }
  for (const [id, child] of children) {
    if (!seen.has(id)) {
      child.remove();
      children.delete(id);
    }
  }
}
