// What the page asks of the server. The token is in this module's memory alone, and goes out as a header.

export const base = new URL(".", document.baseURI); // the page is at <base>docs
let token = "";

export class NeedsToken extends Error {}

export function useToken(text) {
  token = text;
}

export function hasToken() {
  return token !== "";
}

export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(new URL(path, base), { ...options, headers, cache: "no-store" });
  if (response.status === 401) throw new NeedsToken();
  return response;
}

// Server-sent events of a response: {name, data} each.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (fields.data !== undefined) yield { name: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12)); // randomUUID is for https alone
  return `page-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
