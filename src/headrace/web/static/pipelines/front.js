// The front page: what is wrong, and what to do about it; then all pipelines; then the broker.

import { get } from "../api.js";
import { figure, h, icon, replace, setText } from "../dom.js";
import * as f from "../format.js";
import { listen } from "../live.js";
import { nav, setCount } from "../nav.js";
import { route } from "../router.js";
import { NONE, makeHealthTable } from "./health_table.js";
import { makeProblems } from "./problems.js";
import { severityClass, severityIcon } from "./words.js";

nav({ id: "now", label: "What is wrong", icon: "alert", href: "#/", key: "h", order: 0 });

// On every page: how much needs somebody.
listen("alerts", (alerts) => {
  setCount("now", alerts.critical || alerts.warning || "", alerts.critical > 0); // as the headline counts
  setCount("pipelines", alerts.pipelines || "", alerts.failed > 0);
});

const NOTICES_MAX = 20;

function headline({ problems, severity }) {
  const count = (wanted) => problems.filter((one) => one.severity === wanted).length;
  const critical = count("critical"), warnings = count("warning");
  if (critical) return `${f.plural(critical, "thing needs", "things need")} you now`;
  if (warnings) return `${f.plural(warnings, "thing")} to look at`;
  if (severity === "notice") return "Nothing is wrong; something is under way";
  return "Nothing is wrong";
}

function below(situation, session) {
  const running = situation.pipelines.filter((one) => one.state === "RUNNING");
  const behind = running.filter((one) => !one.keeps_up).length;
  if (!situation.pipelines.length) return NONE[session.may_manage];
  const keeping = behind ? `${f.number(running.length - behind)} of ${f.number(running.length)} running pipelines keep up` : running.length ? `${f.plural(running.length, "running pipeline keeps", "running pipelines keep")} up` : "No pipeline runs";
  const other = situation.pipelines.length - running.length;
  return `${keeping}${other ? ` · ${f.number(other)} not running` : ""} · looked at ${f.clock(situation.now_ms)}`;
}

route("/", "What is wrong", async (ctx) => {
  const mark = h("div", { class: "hero-mark" });
  const title = h("h1", {}, "Looking…");
  const lead = h("p", { class: "lead" });
  const hero = h("section", { class: "hero", role: "status" }, mark, h("div", {}, title, lead));
  ctx.head({ title: "What is wrong" });
  const head = ctx.main.previousElementSibling; // the first line of the page says it all
  head.replaceChildren();
  head.hidden = true;
  const problems = makeProblems(ctx.session, { most: NOTICES_MAX });
  const table = makeHealthTable(ctx.session, { sort: "rank" });
  const messages = figure("Messages in"), stored = figure("Stored"), topics = figure("Topics"), clients = figure("Clients");
  replace(ctx.main, hero, problems.node,
    h("section", { class: "card flush" }, h("div", { class: "card-head" }, h("h2", {}, "Pipelines, worst first"), table.count), table.node),
    h("section", { class: "stack" },
      h("div", { class: "figures" }, [messages, stored, topics, clients].map((one) => one.node)),
      h("p", {}, h("a", { href: "#/overview" }, "Overview of the broker ", icon("right")))));

  function draw(situation) {
    const text = headline(situation);
    document.title = `${text} · Headrace`;
    setText(title, text);
    setText(lead, below(situation, ctx.session));
    hero.className = `hero ${severityClass(situation.severity)}`;
    replace(mark, severityIcon(situation.severity));
    problems.update(situation.problems);
    table.update(situation.pipelines);
  }

  const first = await ctx.guard(get("/api/v1/problems", { signal: ctx.signal }));
  if (first) draw(first);
  ctx.live("problems", draw);
  ctx.live("overview", ({ totals, rates }) => {
    messages.set(f.rate(rates.messages_in), `${f.compact(totals.messages)} in all`);
    stored.set(f.bytes(totals.bytes), totals.segments == null ? "" : f.plural(totals.segments, "segment"));
    topics.set(f.number(totals.topics), f.plural(totals.streams, "stream"));
    if (totals.clients == null) clients.node.hidden = true; // not for who may not read the server's state
    else clients.set(f.number(totals.clients), f.plural(totals.groups, "consumer group"));
  });
}, { nav: "now" });
