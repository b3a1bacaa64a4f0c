// Server-sent events: one connection for the whole page, reopened when other topics are wanted.
//
//   const off = listen("overview", (value) => ...);    // off() ends it
//
// The last value of a topic is handed over at once if there is one.

const listeners = new Map(); // topic -> Set of functions
const latest = new Map();
let source = null;
let open = "";
let timer = 0;
let wait = 500;
let enabled = false;
let onState = () => {};

/** state: "live" | "waiting" | "off" */
export function whenStateChanges(act) {
  onState = act;
}

export function enable(value) {
  enabled = value;
  if (!value) latest.clear();
  plan();
}

export function listen(topic, act) {
  if (!listeners.has(topic)) listeners.set(topic, new Set());
  listeners.get(topic).add(act);
  if (latest.has(topic)) act(latest.get(topic));
  plan();
  return () => {
    listeners.get(topic)?.delete(act);
    if (!listeners.get(topic)?.size) {
      listeners.delete(topic);
      latest.delete(topic);
    }
    plan();
  };
}

function plan(after = 30) {
  clearTimeout(timer);
  timer = setTimeout(connect, after);
}

function connect() {
  const wanted = enabled ? [...listeners.keys()].sort().join(",") : "";
  if (wanted === open && source && source.readyState !== EventSource.CLOSED) return;
  source?.close();
  source = null;
  open = wanted;
  if (!wanted) {
    onState("off");
    return;
  }
  const made = new EventSource(`/api/v1/events/stream?topics=${encodeURIComponent(wanted)}`);
  source = made;
  made.onopen = () => { wait = 500; onState("live"); };
  made.onerror = () => {
    if (made !== source) return;
    onState("waiting");
    if (made.readyState === EventSource.CLOSED) {
      wait = Math.min(wait * 2, 15000);
      plan(wait);
    }
  };
  for (const topic of wanted.split(",")) {
    made.addEventListener(topic, (event) => {
      const value = JSON.parse(event.data);
      latest.set(topic, value);
      for (const act of listeners.get(topic) ?? []) act(value);
    });
  }
}
