// Calls of the JSON API. The session is a cookie that scripts cannot read.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let onLoggedOut = () => {};

/** What to do when a call is refused because nobody is logged in. */
export function whenLoggedOut(act) {
  onLoggedOut = act;
}

export async function call(method, path, body, { signal } = {}) {
  const headers = { accept: "application/json", "x-headrace-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server cannot be reached");
  }
  if (answer.ok) {
    if (answer.status === 204) return null;
    return (answer.headers.get("content-type") ?? "").startsWith("application/json") ? answer.json() : answer.text();
  }
  let message = answer.statusText;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* not JSON: the status says it */ }
  if (answer.status === 401 && path !== "/api/v1/session") onLoggedOut();
  throw new ApiError(answer.status, message);
}

export const get = (path, options) => call("GET", path, undefined, options);
export const post = (path, body = {}, options) => call("POST", path, body, options);
export const put = (path, body = {}, options) => call("PUT", path, body, options);
export const del = (path, options) => call("DELETE", path, undefined, options);

/** A path from parts, each one encoded: path`/api/v1/streams/${name}` */
export function path(strings, ...values) {
  return strings.reduce((made, text, i) => made + text + (i < values.length ? encodeURIComponent(values[i]) : ""), "");
}

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
