// Clients that are connected, and users who may log in.

import { del, get, path, post, put } from "../api.js";
import { badge, button, confirm, dialog, formDialog, h, replace, toast } from "../dom.js";
import * as f from "../format.js";
import { nav } from "../nav.js";
import { route, setQuery } from "../router.js";
import { filterField, makeTable } from "../table.js";

nav({ id: "clients", label: "Clients", icon: "clients", href: "#/clients", key: "l", group: "System", order: 41 });
nav({ id: "users", label: "Users", icon: "users", href: "#/users", key: "u", group: "System", order: 42 });

const refused = (what) => h("div", { class: "note warn" }, `You may not see ${what}.`);
const listed = (table, text) => h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table, { placeholder: text, label: text })), table.node);

route("/clients", "Clients", async (ctx) => {
  const { rights } = ctx.session;
  if (!rights.read_servers && !rights.manage_servers) { replace(ctx.main, refused("who is connected")); return; }
  const table = makeTable({
    label: "Clients", key: (row) => row.id, rows: [], sort: "id", filter: ctx.query.get("filter") ?? "", onView: (view) => setQuery({ filter: view.filter }),
    columns: [
      { id: "id", title: "Client", text: (row) => String(row.id), sort: (row) => row.id },
      { id: "user", title: "User", text: (row) => row.user ?? (row.user_id === null ? "not logged in" : `user ${row.user_id}`) },
      { id: "address", title: "Address", text: (row) => row.address },
      { id: "transport", title: "Transport", wide: true, text: (row) => row.transport.toUpperCase() },
      { id: "groups", title: "Groups", number: true, wide: true, text: (row) => f.number(row.groups), sort: (row) => row.groups },
    ],
  });
  replace(ctx.main, listed(table, "Filter clients"));
  async function load() {
    const found = await get("/api/v1/clients", { signal: ctx.signal });
    table.update(found.clients);
  }
  await ctx.guard(load());
  ctx.every(3000, () => load().catch(() => {}));
}, { nav: "clients" });

const ROLES = [["read", "Read: see everything, change nothing"], ["write", "Write: read, and send messages"], ["admin", "Admin: everything"], ["none", "None: rights are given later"]];

route("/users", "Users", async (ctx) => {
  const { rights } = ctx.session;
  if (!rights.read_users && !rights.manage_users) { replace(ctx.main, refused("the users")); return; }
  const manages = rights.manage_users;
  ctx.head({ title: "Users", actions: [manages ? button("New user", create, { kind: "primary", iconName: "plus" }) : null] });
  const table = makeTable({
    label: "Users", key: (row) => row.id, rows: [], sort: "name", filter: ctx.query.get("filter") ?? "", onView: (view) => setQuery({ filter: view.filter }),
    columns: [
      { id: "name", title: "User", text: (row) => row.name, node: (row) => h("button", { type: "button", class: "link", on: { click: () => show(row) } }, row.name) },
      { id: "state", title: "State", text: (row) => (row.active ? "active" : "inactive"), node: (row) => badge(row.active ? "active" : "inactive", row.active ? "good" : "quiet") },
      { id: "created", title: "Created", wide: true, text: (row) => f.moment(row.created_ms), sort: (row) => row.created_ms },
      ...(manages ? [{ id: "do", title: "", sort: false, number: true, text: () => "", sign: (row) => `${row.name}${row.active}`, node: (row) => h("span", { class: "row-actions" },
        button(row.active ? "Deactivate" : "Activate", () => toggle(row), { kind: "quiet" }), button("", () => remove(row), { kind: "quiet", iconName: "trash", label: `Delete ${row.name}` })) }] : []),
    ],
  });
  replace(ctx.main, listed(table, "Filter users"));
  async function load() {
    const found = await ctx.guard(get("/api/v1/users", { signal: ctx.signal }));
    if (found) table.update(found.users);
  }
  async function create() {
    const done = await formDialog("New user", [
      { name: "name", label: "Name", required: true }, { name: "password", label: "Password", type: "password", required: true, autocomplete: "new-password" },
      { name: "role", label: "Role", options: ROLES, value: "read", hint: "Finer rights: headrace permission set." },
    ], (given) => post("/api/v1/users", given), { action: "Create user" });
    if (done) { toast("User created"); load(); }
  }
  async function toggle(row) {
    try { await put(path`/api/v1/users/${row.name}`, { active: !row.active }); toast(`${row.name} is ${row.active ? "inactive" : "active"} now`); load(); } catch (error) { toast(error.message, "bad"); }
  }
  async function remove(row) {
    if (!await confirm(`Delete ${row.name}?`, "The user and their tokens are deleted; what they are connected with is cut off.", { action: "Delete", word: row.name })) return;
    try { await del(path`/api/v1/users/${row.name}`); toast(`${row.name} deleted`); load(); } catch (error) { toast(error.message, "bad"); }
  }
  async function show(row) {
    try {
      const found = await get(path`/api/v1/users/${row.name}`, { signal: ctx.signal });
      const given = Object.entries(found.rights).filter(([, has]) => has).map(([name]) => name.replace("_", " "));
      await dialog(found.name, (close) => h("div", { class: "dialog-body" },
        h("p", {}, given.length ? "May everywhere:" : "Has no rights that hold everywhere."),
        h("p", { class: "chips" }, given.map((one) => [badge(one, "plain"), " "])),
        found.streams.length ? h("p", { class: "soft" }, `And rights of their own for ${f.plural(found.streams.length, "stream")}.`) : null,
        h("footer", {}, button("Close", () => close(), { kind: "primary" }))));
    } catch (error) { toast(error.message, "bad"); }
  }
  await load();
}, { nav: "users" });
