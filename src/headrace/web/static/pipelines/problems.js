// Cards of what is wrong: one sentence, what to do next, and the buttons that do it.

import { button, h, icon, setText } from "../dom.js";
import { go, link } from "../router.js";
import * as act from "./actions.js";
import { set, keyed } from "./svg.js";
import { severityIcon } from "./words.js";

/** Where a problem is looked at. */
export function address(problem) {
  if (problem.subject === "pipeline") return link`/pipelines/${problem.name}`;
  if (problem.subject === "group") return "#/groups";
  if (problem.subject === "topic") return "#/topics";
  return "#/cluster";
}

const tab = (problem, name, more = "") => `${link`/pipelines/${problem.name}`}?tab=${name}${more}`;

const LOOKING = {
  logs: ["Logs", "logs", (one) => go(tab(one, "logs", one.container ? `&container=${encodeURIComponent(one.container)}` : ""))],
  errors: ["Errors", "alert", (one) => go(tab(one, "errors"))],
  "dead letters": ["Dead letters", "letters", (one) => go(tab(one, "letters"))],
};
const DOING = {
  resume: ["Resume", "play", (one) => act.resume(one.name)],
  kill: ["Kill container", "close", (one) => act.kill(one.name, one.container)],
  scale: ["Scale", "plus", (one) => act.scale(one.name, one.operator, 2)],
};

function buttons(problem, session) {
  return problem.actions
    .map((name) => LOOKING[name] ?? (session.may_manage ? DOING[name] : undefined))
    .filter(Boolean)
    .map(([label, iconName, run]) => button(label, () => run(problem), { iconName }));
}

/** A list that is kept up to date. `linked`: titles lead to the page of what they are about. */
export function makeProblems(session, { linked = true, most = Infinity } = {}) {
  const list = h("div", { class: "problems" });
  const more = h("p", { class: "soft" });
  const node = h("div", { class: "problems-box" }, list, more);

  function make(problem) {
    const title = linked ? h("a", { class: "problem-title", href: address(problem) }) : h("span", { class: "problem-title" });
    const card = h("article", {},
      h("div", { class: "problem-icon" }),
      h("div", { class: "problem-words" }, h("h3", {}, title), h("p", { class: "problem-detail" }), h("p", { class: "problem-next" }, icon("right"), h("span"))),
      h("div", { class: "problem-actions" }));
    return card;
  }

  function update(card, problem) {
    const sign = `${problem.severity} ${problem.actions.join()} ${problem.container}`;
    set(card, { class: `problem-card ${problem.severity}`, "data-problem": problem.id, "data-kind": problem.kind });
    if (card.dataset.sign !== sign) {
      card.dataset.sign = sign;
      card.querySelector(".problem-icon").replaceChildren(severityIcon(problem.severity));
      card.querySelector(".problem-actions").replaceChildren(...buttons(problem, session));
    }
    setText(card.querySelector(".problem-title"), problem.title);
    setText(card.querySelector(".problem-detail"), problem.detail);
    setText(card.querySelector(".problem-next span"), problem.next_step);
  }

  return {
    node,
    update(problems) {
      const shown = problems.slice(0, most);
      keyed(list, shown, (one) => one.id, make, update);
      // Worst first, also when it came last.
      shown.forEach((one, index) => {
        const card = [...list.children].find((child) => child.dataset.problem === one.id);
        if (list.children[index] !== card) list.insertBefore(card, list.children[index] ?? null);
      });
      setText(more, problems.length > most ? `and ${problems.length - most} more` : "");
      node.hidden = !problems.length;
    },
  };
}
