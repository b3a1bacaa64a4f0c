// Deep links: `#/path?query`. Every view state that matters stands in the address.

const routes = [];
let current = null;

/** pattern: "/topics/:stream/:topic". render(ctx) fills ctx.main and may return a teardown. */
export function route(pattern, title, render, { nav = "" } = {}) {
  const names = [];
  const source = pattern.replace(/:(\w+)/g, (_, name) => { names.push(name); return "([^/]+)"; });
  routes.push({ pattern, title, render, nav, names, matcher: new RegExp(`^${source}$`) });
}

export function parse(hash = location.hash) {
  const [path, search = ""] = (hash.replace(/^#/, "") || "/").split("?");
  return { path: path || "/", query: new URLSearchParams(search) };
}

export function match(path) {
  for (const one of routes) {
    const found = one.matcher.exec(path);
    if (found) return { ...one, params: Object.fromEntries(one.names.map((name, i) => [name, decodeURIComponent(found[i + 1])])) };
  }
  return null;
}

/** An address for href and go: link`/topics/${stream}/${topic}` */
export function link(strings, ...values) {
  return `#${strings.reduce((made, text, i) => made + text + (i < values.length ? encodeURIComponent(values[i]) : ""), "")}`;
}

export function go(hash, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", hash);
    current?.();
  } else location.hash = hash;
}

/** Change some of the query in the address; the page is not rendered again. null takes one out. */
export function setQuery(changes) {
  const { path, query } = parse();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const search = query.toString();
  history.replaceState(null, "", `#${path}${search ? `?${search}` : ""}`);
}

export function start(show) {
  current = show;
  addEventListener("hashchange", show);
  show();
}
