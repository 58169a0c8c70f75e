// Outputs and logs as a person sees them. Whatever a model returns is text, or the address of a picture, sound or film.

import { element } from "./form.js";

const KINDS = [
  ["img", /^data:image\/(?!svg)|^https?:[^?#]*\.(png|jpe?g|gif|webp|avif|bmp)([?#]|$)/i],
  ["audio", /^data:audio\/|^https?:[^?#]*\.(mp3|wav|ogg|flac|m4a)([?#]|$)/i],
  ["video", /^data:video\/|^https?:[^?#]*\.(mp4|webm|mov|mkv)([?#]|$)/i],
];

function media(address, number) {
  const kind = KINDS.find(([, pattern]) => pattern.test(address))?.[0];
  const name = `output ${number + 1}`;
  const link = element("a", { href: address, download: "" }, `Save ${name}`);
  if (!kind) return [link];
  const shown = element(kind, { src: address });
  if (kind === "img") shown.alt = name;
  else shown.controls = true;
  return [shown, link];
}

function parts(value, number) {
  if (typeof value === "string") {
    return /^(data:[^,]{0,200},|https?:\/\/\S+$)/.test(value) ? media(value, number) : [element("pre", {}, value)];
  }
  return [element("pre", {}, JSON.stringify(value, null, 2))];
}

export function showOutput(place, output, concatenated) {
  if (output === null || output === undefined) return place.replaceChildren();
  if (concatenated && Array.isArray(output)) {
    const text = output.join("");
    const shown = place.querySelector("pre.stream");
    if (shown) shown.textContent = text;
    else place.replaceChildren(element("pre", { className: "stream" }, text));
    return undefined;
  }
  const values = Array.isArray(output) && output.every((value) => typeof value === "string") ? output : [output];
  return place.replaceChildren(...values.flatMap(parts));
}

// What a terminal would show: a carriage return begins its line again.
export function collapse(text) {
  return text
    .split("\n")
    .map((line) => line.replace(/\r+$/, "").split("\r").pop())
    .join("\n");
}
