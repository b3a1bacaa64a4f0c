// The dashboard's frame: login, navigation, theme, keys. Pages fill it.
//
// HOW A PAGE IS MADE
//   A page is a module listed in pages.js. At import it calls
//
//     route("/topics/:stream/:topic", "Topic", render, { nav: "topics" });        // router.js
//     nav({ id: "topics", label: "Topics", icon: "topics", href: "#/topics",      // nav.js
//           key: "t", group: "Data", order: 20 });     // key: `g t` goes there
//
//   render(ctx) fills the page and may return a teardown function (or a promise of one):
//     ctx.main            the element to fill (empty; show something at once, then fetch)
//     ctx.params          of the pattern, decoded;  ctx.query: URLSearchParams of the address
//     ctx.session         {username, may_manage, rights: {manage_topics, ...}, version}
//     ctx.signal          aborts when the page is left: pass it to api.get(path, {signal})
//     ctx.head({title, crumbs: [[label, href]], lead, actions: [nodes]})   the head of the page
//     ctx.live(topic, act)    act(value) now and whenever it changes, until the page is left
//     ctx.every(ms, act)      a timer that ends with the page
//     ctx.guard(promise)      awaits it; null when it failed (the page shows why) or was left
//   setQuery({tab: "x"}) of router.js puts view state into the address without rendering again;
//   link`/a/${b}` makes an encoded address. What a user may not do is not offered: look at
//   ctx.session.may_manage (pipelines) and ctx.session.rights (broker); the server refuses anyway.
//   setCount(id, text, bad) of nav.js shows a number beside a navigation entry.
//
// LIVE TOPICS (server-sent events, live.js; on the server web/server/live.py: sampler.add(topic, sample))
//   "overview"   Overview without history          "streams"  [StreamRow]
//   "topics"     [[stream id, topic id, messages, bytes, messages/s, bytes/s]]
//   "groups"     [GroupRow]                        "cluster"  ClusterInfo
//
// Modules: dom.js (h, svg, icon, button, badge, card, figure, empty, toast, dialog, confirm,
// formDialog, copyText), format.js, api.js (get, post, put, del, path``, query), table.js,
// charts.js (sparkline, lineChart, bars, meter). Colours are the custom properties of style.css.

import { get, post, del, whenLoggedOut } from "./api.js";
import { button, dialog, h, icon, replace, toast } from "./dom.js";
import { number } from "./format.js";
import { enable, listen, whenStateChanges } from "./live.js";
import { entries, markCurrent, navigation, setCount } from "./nav.js";
import { match, parse, start } from "./router.js";
import "./pages.js";

const shell = document.getElementById("shell");
let session = null;
let leave = () => {};
let frame = null;

// --- theme ---------------------------------------------------------------------------------------

function isDark() {
  return (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

function toggleTheme() {
  const next = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("headrace.theme", next); } catch { /* it then holds for this page */ }
  for (const one of document.querySelectorAll("[data-theme-button]")) replace(one, icon(next === "dark" ? "sun" : "moon"));
}

function themeButton() {
  const made = button("", toggleTheme, { kind: "quiet", iconName: isDark() ? "sun" : "moon", label: "Change between light and dark" });
  made.dataset.themeButton = "";
  return made;
}

// --- login ---------------------------------------------------------------------------------------

function showLogin() {
  leave();
  leave = () => {};
  session = null;
  frame = null;
  enable(false);
  document.title = "Log in · Headrace";
  const name = h("input", { name: "username", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const problem = h("p", { class: "problem", role: "alert" });
  const go = button("Log in", null, { kind: "primary", type: "submit" });
  const form = h("form", { class: "card", on: { submit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    problem.textContent = "";
    try {
      session = await post("/api/v1/session", { username: name.value, password: password.value });
      show();
    } catch (error) {
      problem.textContent = error.status === 401 ? "Unknown user or wrong password." : error.message;
      password.select();
    } finally {
      go.disabled = false;
    }
  } } },
  h("h1", {}, h("img", { src: "/static/icon.svg", alt: "" }), "Headrace"),
  h("p", { class: "lead" }, "Log in with a user of the broker."),
  h("label", { class: "field" }, h("span", {}, "User"), name),
  h("label", { class: "field" }, h("span", {}, "Password"), password), problem, go);
  replace(shell, h("main", { class: "login", id: "main" }, form));
  name.focus();
}

async function logOut() {
  try { await del("/api/v1/session"); } catch (error) { toast(error.message, "bad"); }
  showLogin();
}

// --- frame ---------------------------------------------------------------------------------------

function showFrame() {
  const state = h("div", { class: "live", role: "status" }, "connecting");
  whenStateChanges((now) => {
    state.className = `live ${now === "live" ? "on" : now === "waiting" ? "waiting" : ""}`;
    state.textContent = { live: "live", waiting: "reconnecting…", off: "not live" }[now];
  });
  const role = session.may_manage ? "manager" : Object.entries(session.rights).some(([right, has]) => has && right.startsWith("manage")) ? "manages some" : "read only";
  const outer = h("div", { class: "frame" });
  const open = (yes) => outer.classList.toggle("open", yes);
  const side = h("aside", { class: "side", "aria-label": "Navigation", on: { click: (event) => { if (event.target.closest("a")) open(false); } } },
    h("a", { class: "brand wide-only", href: "#/" }, h("img", { src: "/static/icon.svg", alt: "" }), "Headrace"),
    navigation(),
    h("div", { class: "side-foot" }, state,
      h("div", { class: "row" },
        h("div", { class: "who" }, h("strong", { title: session.username }, session.username), h("span", { dataset: { role: "" } }, role)),
        themeButton(),
        button("", showHelp, { kind: "quiet", iconName: "keyboard", label: "Keyboard shortcuts" }),
        button("", logOut, { kind: "quiet", iconName: "exit", label: "Log out" }))));
  const main = h("main", { id: "main", tabindex: "-1" });
  replace(outer, h("div", { class: "topbar" },
    button("", () => open(!outer.classList.contains("open")), { kind: "quiet", iconName: "menu", label: "Menu" }),
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/static/icon.svg", alt: "" }), "Headrace")),
  h("div", { class: "veil", on: { click: () => open(false) } }), side, main);
  outer.addEventListener("keydown", (event) => { if (event.key === "Escape") open(false); });
  replace(shell, outer);
  listen("overview", ({ totals }) => { // on every page: it also tells whether we are connected
    setCount("topics", number(totals.topics));
    setCount("groups", totals.groups ? number(totals.groups) : "");
    setCount("clients", totals.clients == null ? "" : number(totals.clients));
  });
  enable(true);
  return { outer, main };
}

function context(found, query, main) {
  const stops = [];
  const stopper = new AbortController();
  stops.push(() => stopper.abort());
  const head = h("div", { class: "page-head" });
  const body = h("div", { class: "stack" });
  replace(main, head, body);
  const ctx = {
    main: body, params: found?.params ?? {}, query, session, signal: stopper.signal,
    head({ title = found.title, crumbs = [], lead = "", actions = [] }) {
      if (stopper.signal.aborted) return; // it was left meanwhile, and the title is another page's
      document.title = `${title} · Headrace`;
      replace(head, h("div", { class: "titles" },
        crumbs.length ? h("div", { class: "crumbs" }, crumbs.map(([label, href], i) => [i ? " / " : "", h("a", { href }, label)])) : null,
        h("h1", {}, title), lead ? h("p", { class: "lead" }, lead) : null),
      actions.some(Boolean) ? h("div", { class: "actions" }, actions) : null);
    },
    // A page that was left while it waited for something goes on: it must not come alive again.
    live(topic, act) { if (!stopper.signal.aborted) stops.push(listen(topic, act)); },
    every(ms, act) {
      if (stopper.signal.aborted) return;
      const timer = setInterval(act, ms);
      stops.push(() => clearInterval(timer));
    },
    async guard(promise) {
      try {
        const found = await promise;
        return stopper.signal.aborted ? null : found;
      } catch (error) {
        if (error.name !== "AbortError" && !stopper.signal.aborted && error.status !== 401) {
          body.prepend(h("div", { class: "note bad", role: "alert" }, error.status === 404 ? `Not found: ${error.message}` : error.message));
        }
        return null;
      }
    },
  };
  return [ctx, () => { for (const stop of stops) stop(); }];
}

async function show() {
  if (!session) {
    try { session = await get("/api/v1/session"); } catch (error) { if (error.status !== 401) toast(error.message, "bad"); }
    if (!session) { showLogin(); return; }
  }
  frame ??= showFrame();
  leave();
  const { path, query } = parse();
  const found = match(path);
  const [ctx, stop] = context(found, query, frame.main);
  let teardown = null;
  let left = false;
  leave = () => { left = true; stop(); if (typeof teardown === "function") teardown(); };
  frame.outer.classList.remove("open");
  markCurrent(found?.nav ?? "");
  scrollTo(0, 0);
  if (!found) {
    ctx.head({ title: "No such page" });
    ctx.main.append(h("p", {}, "This address leads nowhere. ", h("a", { href: "#/" }, "To the start")));
    return;
  }
  ctx.head({});
  const rendered = Promise.resolve(ctx).then(found.render);
  rendered.then((made) => { if (left && typeof made === "function") made(); }, () => {});
  teardown = await ctx.guard(rendered);
}

// --- keys ----------------------------------------------------------------------------------------

let pending = -Infinity; // when `g` was pressed

function showHelp() {
  const keys = entries().filter((one) => one.key).map((one) => [["g", one.key], one.label]);
  return dialog("Keyboard shortcuts", (close) => h("div", { class: "dialog-body" },
    h("div", { class: "shortcuts" }, [
      ...keys, [["/"], "Filter what is listed"], [["↑"], "Row above, on a link of a table"], [["↓"], "Row below"],
      [["d"], "Dark or light"], [["Esc"], "Close a window, leave a field"], [["?"], "This list"],
    ].map(([names, what]) => [h("span", {}, names.map((one, i) => [i ? " " : "", h("kbd", {}, one)])), h("span", {}, what)])),
    h("footer", {}, button("Close", () => close(), { kind: "primary" }))));
}

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (typing) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) event.target.blur();
    return;
  }
  if (!session || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (performance.now() - pending < 1200) {
    pending = -Infinity;
    const entry = entries().find((one) => one.key === event.key);
    if (entry) { event.preventDefault(); location.hash = entry.href; }
    return;
  }
  if (event.key === "g") pending = performance.now();
  else if (event.key === "?") { event.preventDefault(); showHelp(); }
  else if (event.key === "d") toggleTheme();
  else if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  }
});

document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the router
  document.getElementById("main")?.focus();
});

whenLoggedOut(() => { if (session) { toast("The session is over: log in again.", "bad"); showLogin(); } });
start(show);
