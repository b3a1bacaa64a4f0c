// Sending one message by hand.

import { post } from "../api.js";
import { formDialog, toast } from "../dom.js";

export async function produce(name, address, partitions, done) {
  const sent = await formDialog(`Produce to ${name}`, [
    { name: "value", label: "Value", rows: 7, placeholder: '{"order": 1}', required: true },
    { name: "key", label: "Key", hint: "Messages with the same key go to the same partition." },
    { name: "partition", label: "Partition", options: [["", "by key, or in turn"], ...partitions.map((one) => [String(one), `partition ${one}`])] },
    { name: "headers", label: "Headers", rows: 2, placeholder: "source=dashboard", hint: "One name=value in a line." },
  ], (given) => post(address, {
    value: given.value, key: given.key || null, partition: given.partition === "" ? null : Number(given.partition), headers: parseHeaders(given.headers),
  }), { action: "Send" });
  if (sent) { toast("Message sent"); done(); }
}

function parseHeaders(text) {
  const found = {};
  for (const line of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1 || at === line.length - 1) throw new Error(`“${line}” is not of the form name=value`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}
