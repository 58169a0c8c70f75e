// The page: one form, one prediction at a time, and what became of those before.

import { NeedsToken, base, call, events, hasToken, newId, useToken } from "./api.js";
import { InputForm, element } from "./form.js";
import { collapse, showOutput } from "./output.js";
import { SNIPPETS, shortened } from "./snippets.js";

const MODES = { Predict: ["predictions", "Input", "Output"], Train: ["trainings", "TrainingInput", "TrainingOutput"] };
const ENDS = ["succeeded", "failed", "canceled"];
const HISTORY = 50;
const at = (id) => document.getElementById(id);

let document_ = null; // the OpenAPI document
let mode = "Predict";
let form = null;
let language = "curl";
let running = null; // the id of what runs
let streams = true; // until the server says that this model does not

function schemas() {
  return document_.components?.schemas ?? {};
}

function showForm() {
  form = new InputForm(at("fields"), schemas()[MODES[mode][1]] ?? {}, schemas());
  streams = true;
  showRequest();
}

function showModes() {
  const offered = Object.keys(MODES).filter((name) => `/${MODES[name][0]}` in (document_.paths ?? {}));
  if (!offered.includes(mode)) mode = offered[0] ?? mode;
  const buttons = offered.map((name) => {
    const button = element("button", { type: "button" }, name);
    button.setAttribute("aria-pressed", String(name === mode));
    button.addEventListener("click", () => {
      mode = name;
      showModes();
      showForm();
    });
    return button;
  });
  at("modes").replaceChildren(...buttons);
  at("modes").hidden = offered.length < 2;
}

function snippet() {
  const url = new URL(MODES[mode][0], base).href;
  return SNIPPETS[language](url, JSON.stringify({ input: form.read() }), hasToken());
}

function showRequest() {
  try {
    at("request").textContent = shortened(snippet());
  } catch {
    at("request").textContent = ""; // a field holds no JSON yet; its fault is told when it is run
  }
  const buttons = Object.keys(SNIPPETS).map((name) => {
    const button = element("button", { type: "button" }, name);
    button.setAttribute("aria-pressed", String(name === language));
    button.addEventListener("click", () => {
      language = name;
      showRequest();
    });
    return button;
  });
  at("languages").replaceChildren(...buttons);
}

function showPrediction(seen) {
  const queued = seen.status === "starting" ? ", waiting for its turn" : "";
  at("status").textContent = `${seen.status}${queued}`;
  at("error").textContent = seen.error ?? "";
  at("logs").textContent = collapse(seen.logs ?? "");
  const display = schemas()[MODES[mode][2]]?.["x-cog-array-display"];
  showOutput(at("output"), seen.output, display === "concatenate");
  const figures = Object.entries(seen.metrics ?? {}).flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value)),
  ]);
  at("metrics").replaceChildren(...figures);
}

function remember(input, seen) {
  at("no-history").hidden = true;
  const load = element("button", { type: "button" }, "Use these inputs");
  load.addEventListener("click", () => {
    form.clearFaults();
    form.write(input);
    showRequest();
  });
  const seconds = seen.metrics?.predict_time;
  const text = `${seen.status}${seconds === undefined ? "" : ` in ${Number(seconds).toFixed(2)} s`} `;
  at("history").prepend(element("li", {}, text, load));
  while (at("history").children.length > HISTORY) at("history").lastChild.remove();
}

// Follow events where the model streams; else ask for the state until it has ended. Returns the last state.
async function follow(path, body) {
  if (streams && mode === "Predict") {
    const response = await call(path, { method: "PUT", body, headers: { Accept: "text/event-stream" } });
    if (response.status === 406) streams = false;
    else if (!response.ok) return refused(response);
    else {
      const seen = { status: "starting", output: null, logs: "" };
      for await (const { name, data } of events(response)) {
        if (name === "start") seen.status = "processing";
        else if (name === "output") (seen.output ??= []).push(data.chunk);
        else if (name === "log") seen.logs += data.data;
        else if (name === "completed") Object.assign(seen, data);
        showPrediction(seen);
      }
      return seen;
    }
  }
  const response = await call(path, { method: "PUT", body, headers: { Prefer: "respond-async" } });
  if (!response.ok) return refused(response);
  for (;;) {
    const answer = await call(path);
    if (!answer.ok) return refused(answer);
    const seen = await answer.json();
    showPrediction(seen);
    if (ENDS.includes(seen.status)) return seen;
    await new Promise((done) => setTimeout(done, 250));
  }
}

async function refused(response) {
  const answer = await response.json().catch(() => ({}));
  const others = Array.isArray(answer.detail) ? form.show(answer.detail) : [answer.error ?? answer.detail ?? ""];
  at("form-fault").textContent = others.filter(Boolean).join("\n");
  at("status").textContent = `refused (${response.status})`;
  return null;
}

async function run() {
  form.clearFaults();
  at("form-fault").textContent = "";
  let input;
  try {
    input = form.read();
  } catch {
    return; // the fault is at its field
  }
  running = newId();
  at("run").disabled = true;
  at("cancel").disabled = false;
  showPrediction({ status: "starting" });
  try {
    const seen = await follow(`${MODES[mode][0]}/${running}`, JSON.stringify({ input }));
    if (seen) remember(input, seen);
  } catch (error) {
    if (error instanceof NeedsToken) askForToken();
    else {
      at("status").textContent = "lost";
      at("error").textContent = `The connection to the server broke: ${error.message}`;
    }
  } finally {
    running = null;
    at("run").disabled = false;
    at("cancel").disabled = true;
  }
}

function askForToken() {
  at("sign-in").hidden = false;
  at("token").focus();
}

async function watchHealth() {
  for (;;) {
    if (!document.hidden) {
      try {
        const health = await (await call("health-check")).json();
        const badge = at("health");
        badge.textContent = health.status;
        badge.className = `badge ${["READY", "BUSY"].includes(health.status) ? "good" : "bad"}`;
        at("setup").hidden = !health.setup?.logs;
        at("setup-logs").textContent = collapse(health.setup?.logs ?? "");
        at("setup").open = health.status === "SETUP_FAILED" || health.status === "STARTING";
        if (document_ === null && at("sign-in").hidden) await load();
      } catch {
        at("health").textContent = "no connection";
        at("health").className = "badge bad";
      }
    }
    await new Promise((done) => setTimeout(done, document_ === null ? 500 : 3000));
  }
}

async function load() {
  try {
    const answer = await call("openapi.json");
    if (!answer.ok) return; // the model is not described yet
    document_ = await answer.json();
    at("sign-in").hidden = true;
    document.title = `${document_.info?.title ?? "Model"}: playground`;
    showModes();
    showForm();
  } catch (error) {
    if (!(error instanceof NeedsToken)) throw error;
    askForToken();
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
at("form").addEventListener("reset", (event) => {
  event.preventDefault();
  form.reset();
  showRequest();
});
at("form").addEventListener("input", showRequest);
at("cancel").addEventListener("click", () => running && call(`${MODES[mode][0]}/${running}/cancel`, { method: "POST" }));
at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(at("token").value);
  at("token").value = "";
  load();
});
at("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(snippet());
    at("copied").textContent = "copied";
  } catch {
    at("copied").textContent = "copying is not allowed here: select the text";
  }
});
watchHealth();
