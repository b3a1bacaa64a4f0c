// What a user may do to a pipeline. Each asks first, sends, and says what came of it.

import { path, post } from "../api.js";
import { confirm, formDialog, toast } from "../dom.js";
import * as f from "../format.js";
import { windowText } from "./words.js";

const pipeline = (name) => path`/api/v1/pipelines/${name}`;

async function send(what, address, detail) {
  try {
    const answer = await post(address);
    const said = detail ?? answer?.detail;
    toast(`${what}${said ? `: ${said}` : ""}`);
    return true;
  } catch (error) {
    toast(`${what} was refused: ${error.message}`, "bad");
    return false;
  }
}

export async function stop(name) {
  const sure = await confirm(`Stop ${name}?`, "Batches that run are finished and checkpointed; nothing is lost. Resume starts it from there.", { action: "Stop" });
  return sure && send(`Stopping ${name}`, `${pipeline(name)}/stop`, "it drains and ends");
}

export async function resume(name) {
  const sure = await confirm(`Resume ${name}?`, "The same code starts again from its checkpoints.", { action: "Resume", danger: false });
  return sure && send(`Resuming ${name}`, `${pipeline(name)}/resume`);
}

export async function kill(name, container) {
  const sure = await confirm(`Kill container ${container}?`, "Its process ends at once and is started again from its checkpoint. A batch that is cut off is run again; nothing is published twice.", { action: "Kill" });
  return sure && send(`Killing ${container}`, `${pipeline(name)}/containers/${encodeURIComponent(container)}/kill`);
}

export function scale(name, operator, now) {
  return formDialog(
    `Scale ${operator}`,
    [{ name: "instances", label: "Instances", type: "number", min: 1, max: 64, value: now, required: true, hint: "Each runs in a container of its own. The change happens at a committed window." }],
    async (values) => {
      const answer = await post(`${pipeline(name)}/plan/operators/${encodeURIComponent(operator)}/instances`, { instances: Number(values.instances) });
      toast(`${operator} goes to ${f.plural(Number(values.instances), "instance")}: ${answer.detail}`);
    },
    { action: "Scale" },
  );
}

/** `value` tells the type: a number stays one. */
export function setProperty(name, operator, property, value, live) {
  return formDialog(
    `Set ${property} of ${operator}`,
    [{ name: "value", label: property, value: value === null ? "" : String(value), hint: typeof value === "number" ? "A number." : typeof value === "boolean" ? "true or false." : "Text." }],
    async (values) => {
      await post(`${pipeline(name)}/plan/operators/${encodeURIComponent(operator)}/properties`, { [property]: parse(values.value, value) });
      toast(`${property} of ${operator} is set to ${values.value}`);
    },
    { action: "Set", intro: live ? "It counts from the next batch on." : "The operator's queries are started again from where they are." },
  );
}

function parse(text, before) {
  if (typeof before === "boolean") {
    if (text !== "true" && text !== "false") throw new Error("write true or false");
    return text === "true";
  }
  if (typeof before === "number") {
    const found = Number(text);
    if (text.trim() === "" || Number.isNaN(found)) throw new Error("write a number");
    return found;
  }
  return text;
}

export function replay(name, topics) {
  return formDialog(
    `Replay into ${name}`,
    [
      { name: "topic", label: "Topic", options: topics.map((one) => [one.operator, `${one.operator} (${one.topic})`]), value: topics[0]?.operator },
      { name: "kind", label: "From", options: [["time", "a time"], ["offset", "an offset of every partition"], ["earliest", "the earliest message kept"], ["latest", "now: skip what waits"]], value: "time" },
      { name: "start", label: "Time or offset", value: f.localInput(Date.now() - 3_600_000), hint: "A time like 2026-05-01T12:00:00, or offsets like {\"0\": 100}. Not needed for earliest and latest." },
    ],
    async (values) => {
      const starting = values.kind === "time" ? new Date(values.start).toISOString() : values.kind === "offset" ? values.start : values.kind;
      await post(`${pipeline(name)}/replay`, { topic: values.topic, starting });
      toast(`${values.topic} is read again from ${starting}`);
    },
    { action: "Replay", intro: "What reads the topic begins a new checkpoint, without its state; rows that were published before are published again." },
  );
}

export function rollBack(name, windows, committed) {
  const options = windows.map((one) => [one.window, `${f.clock(one.at_ms)} (${one.window})`]);
  return formDialog(
    `Roll ${name} back`,
    [{ name: "window", label: "To window", options: options.length ? options : [[committed, windowText(committed)]], value: committed, hint: "Everything after this window is computed and published again." }],
    async (values) => {
      await post(`${pipeline(name)}/roll-back`, { windowId: values.window });
      toast(`${name} goes back to ${values.window}`);
    },
    { action: "Roll back" },
  );
}

export async function record(name, operatorId, operator) {
  try {
    const { id } = await post(`${pipeline(name)}/operators/${operatorId}/recordings/start`, { numWindows: 20 });
    toast(`Recording sample rows of ${operator}`);
    return id;
  } catch (error) {
    toast(`Recording was refused: ${error.message}`, "bad");
    return null;
  }
}

export const stopRecording = (name, operatorId, operator) =>
  send(`Recording of ${operator} stopped`, `${pipeline(name)}/operators/${operatorId}/recordings/stop`);

/** offsets: {partition: [offset]}; none at all are all letters that wait. */
export async function redrive(name, operator, topic, offsets, many) {
  const sure = await confirm(
    `Send ${many} again?`,
    "They go back to the topic and partition they came from, each once. Those that were sent before are left alone.",
    { action: "Send again", danger: false },
  );
  if (!sure) return false;
  try {
    const done = await post(`${path`/api/v1/pipelines/${name}/dead-letters/${operator}/redrive`}?topic=${encodeURIComponent(topic)}`, { offsets });
    const sent = Object.values(done.sent).reduce((sum, one) => sum + one, 0);
    toast(`${f.plural(sent, "letter")} sent again${done.homeless ? `, ${done.homeless} do not say where they belong` : ""}`);
    return true;
  } catch (error) {
    toast(`Sending again was refused: ${error.message}`, "bad");
    return false;
  }
}
