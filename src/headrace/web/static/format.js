// Numbers, sizes, times as people read them. Nothing known is an en dash.

const NONE = "–";
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function number(value) {
  return missing(value) ? NONE : Math.round(value).toLocaleString("en");
}

/** 1234567 as 1.23 M */
export function compact(value) {
  if (missing(value)) return NONE;
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return `${trim(value / (unit === "k" ? 1e3 : limit))} ${unit}`;
  }
  return size >= 100 || Number.isInteger(value) ? number(value) : trim(value);
}

function trim(value) {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, "");
}

export function rate(value, unit = "/s") {
  return missing(value) ? NONE : `${compact(value)}${unit}`;
}

export function bytes(value) {
  if (missing(value)) return NONE;
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") return `${unit === "B" ? Math.round(size) : trim(size)} ${unit}`;
    size /= 1024;
  }
  return NONE;
}

export function percent(part, whole) {
  return missing(part) || !whole ? NONE : `${trim((100 * part) / whole)} %`;
}

/** 93784000 as 1 d 2 h */
export function duration(ms) {
  if (missing(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  let rest = Math.round(ms / 1000);
  const parts = [];
  for (const [seconds, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count || (parts.length && parts.length < 2)) parts.push(`${count} ${unit}`);
    if (parts.length === 2) break;
  }
  return parts.filter((one) => !one.startsWith("0 ")).join(" ") || "0 s";
}

export function ago(ms, now = Date.now()) {
  return missing(ms) || !ms ? NONE : now - ms < 2000 ? "just now" : `${duration(now - ms)} ago`;
}

const pad = (value, length = 2) => String(value).padStart(length, "0");

/** 2026-05-01 12:30:05.250 in the browser's own zone */
export function moment(ms, { millis = false } = {}) {
  if (missing(ms) || !ms) return NONE;
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${clock(ms)}${millis ? `.${pad(at.getMilliseconds(), 3)}` : ""}`;
}

export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** For <input type="datetime-local"> */
export function localInput(ms) {
  return moment(ms).replace(" ", "T");
}

export const text = (value) => (missing(value) || value === "" ? NONE : String(value));

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
