// All pipelines.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { nav } from "../nav.js";
import { route, setQuery } from "../router.js";
import { filterField } from "../table.js";
import { makeHealthTable } from "./health_table.js";

nav({ id: "pipelines", label: "Pipelines", icon: "pipelines", href: "#/pipelines", key: "p", order: 15 });

route("/pipelines", "Pipelines", async (ctx) => {
  ctx.head({ title: "Pipelines", lead: "Worst first. A pipeline's page has its graph, its windows, its logs." });
  const table = makeHealthTable(ctx.session, {
    sort: ctx.query.get("sort") ?? "rank",
    descending: ctx.query.get("down") === "1",
    filter: ctx.query.get("filter") ?? "",
    onView: ({ sort, descending, filter }) => setQuery({ sort: sort === "rank" ? null : sort, down: descending ? 1 : null, filter }),
  });
  replace(ctx.main, h("section", { class: "card flush" }, h("div", { class: "toolbar" }, filterField(table)), table.node));
  const first = await ctx.guard(get("/api/v1/problems", { signal: ctx.signal }));
  if (first) table.update(first.pipelines);
  ctx.live("problems", (situation) => table.update(situation.pipelines));
}, { nav: "pipelines" });
