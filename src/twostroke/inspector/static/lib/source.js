// Fills the store: from the feed of a live engine, or by ranges of a recording or a simulation.

import { batch, signal } from "./html.js";
import { isKept, keptAnswer } from "./kept.js";
import { store } from "./store.js";

const BASE = new URL("../v1/inspect", document.baseURI).href;
const HISTORY = 2048; // steps before the moment that are loaded with it
const MOST_MISSED = 16384; // steps that a page which goes on asks for; beyond, it begins anew
const AHEAD = 512; // steps that are fetched at once while a recording plays
const FACTS_SECONDS = 2; // how often a live engine is asked what waits
const REPLAYED_SECONDS = 1; // the same of a recording that plays

/** `opening`, `open`, `lost` or `key` (asks for one). */
export const connection = signal("opening");
export const trouble = signal("");
export const description = signal(null);
/** Whether the key shows all requests; else counts of the whole engine are not sent, but 0. */
export const seesAll = () => description.value?.all_tenants ?? true;
export const playing = signal(true);
export const speed = signal(1);
export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10, 50];

let stopCurrent = () => {};
let wanted = null; // the step that is being loaded
let isFirst = true; // nothing has been opened yet
let key = sessionStorage.getItem("twostroke-key") ?? "";

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class NeedsKey extends Error {}

/** Any route beside `/v1/inspect`, which paths begin at; `body` makes it a POST. */
export async function api(path, { signal: abort, accept = "application/json", body } = {}) {
  if (isKept) return keptAnswer(path);
  const headers = body ? { accept, "content-type": "application/json" } : { accept };
  const sent = body ? { method: "POST", body: JSON.stringify(body) } : {};
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(BASE + path, { headers, signal: abort, ...sent });
  if (response.status === 401 || response.status === 403) {
    const answer = await response.json().catch(() => ({}));
    throw new NeedsKey(answer.error?.message ?? "this server asks for an API key");
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    const error = new Error(answer.error?.message ?? `the server answered ${response.status}`);
    error.retryAfter = Number(response.headers.get("retry-after")) || null;
    throw error;
  }
  return response;
}

/** The answer of a route, named from the server's root, to a body. A refusal says when to retry. */
export async function post(path, body, options = {}) {
  return (await api(`/../../${path}`, { ...options, body })).json();
}

export const address = (path) => BASE + path;
export const json = async (path, options) => (await api(path, options)).json();
export const hasKey = () => key !== "";

export function useKey(value) {
  key = value.trim();
  sessionStorage.setItem("twostroke-key", key);
  start();
}

/** Open what the server has to show; goes on by itself after a lost connection. */
export function start(step = null) {
  stopCurrent();
  const abort = new AbortController();
  stopCurrent = () => abort.abort();
  run(abort.signal, step);
}

async function run(abort, step) {
  let pause = 500;
  while (!abort.aborted) {
    try {
      const found = await json("", { signal: abort });
      batch(() => {
        const isOther = description.value?.engine_id !== found.engine_id;
        if (isOther) store.clear();
        description.value = found;
        connection.value = "open";
        trouble.value = "";
        // A recording is opened paused at its end, where all of it is known.
        if (isFirst && found.kind !== "live") playing.value = false;
        isFirst = false;
      });
      pause = 500;
      if (found.kind === "live" && step === null && playing.value) await follow(found, abort);
      else await open(found, step, abort);
      if (!playing.value || found.kind !== "live") return;
    } catch (error) {
      if (abort.aborted) return;
      batch(() => {
        connection.value = error instanceof NeedsKey ? "key" : "lost";
        trouble.value = error.message;
      });
      if (error instanceof NeedsKey) return;
    }
    await sleep(pause);
    pause = Math.min(5000, pause * 2);
  }
}

// ---- live --------------------------------------------------------------------------------------

async function follow(found, abort) {
  const missing = found.last_step - store.lastStep;
  if (store.lastStep < found.first_step || missing > MOST_MISSED || missing < 0) {
    const [history, state] = await Promise.all([
      json(`/steps?to=${found.last_step}&count=${HISTORY}`, { signal: abort }),
      json("/state", { signal: abort }),
    ]);
    store.clear();
    learnBefore(state, history);
    store.append(history);
    store.learn(state);
  } else {
    await catchUp(found.last_step, abort);
  }
  const facts = keepFacts(abort);
  try {
    const response = await api(`/events?since=${store.lastStep}`, {
      signal: abort,
      accept: "text/event-stream",
    });
    await readEvents(response.body, (event, data) => {
      if (event === "frame") {
        store.append(data);
      } else if (event === "idle") {
        store.now = data.now;
        store.touch();
      } else if (event === "hello" && data.engine_id !== description.value.engine_id) {
        throw new Error("another engine has started");
      }
    });
  } finally {
    clearInterval(facts);
  }
  if (!abort.aborted) throw new Error("the connection ended");
}

/** The feed would merge what a paused page has missed, and merged steps tell of no gaps. */
async function catchUp(last, abort) {
  while (store.lastStep < last) {
    const path = `/steps?from=${store.lastStep + 1}&to=${last}&fit=first`;
    const frame = await json(path, { signal: abort });
    if (!frame.steps.step.length) return;
    store.append(frame);
  }
}

/** What waits is in no step; so it is asked for, and only while a page looks. */
function keepFacts(abort) {
  let busy = false;
  return setInterval(async () => {
    if (busy || document.hidden || abort.aborted) return;
    busy = true;
    try {
      store.learn(await json("/state", { signal: abort }));
    } catch {
      // The feed notices a lost connection.
    } finally {
      busy = false;
    }
  }, 1000 * FACTS_SECONDS);
}

async function readEvents(body, handle) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      const event = /^event: (.*)$/m.exec(block)?.[1] ?? "message";
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data) handle(event, JSON.parse(data.slice(6)));
    }
  }
}

// ---- recordings, and the past of a live engine -------------------------------------------------

async function open(found, step, abort) {
  const at = step ?? found.last_step;
  await show(Math.max(found.first_step, Math.min(at, found.last_step)), abort);
  if (found.kind !== "live" && found.ready < 1) watchReading(abort);
  if (playing.value) play(abort);
}

/** The moment after a step: the steps that led to it, and what the requests are. */
async function show(step, abort) {
  const past = description.value.kind === "live" ? "" : `?step=${step}`;
  const [history, state] = await Promise.all([
    json(`/steps?to=${step}&count=${HISTORY}`, { signal: abort }),
    json(`/state${past}`, { signal: abort }),
  ]);
  batch(() => {
    store.clear();
    learnBefore(state, history);
    store.append(history);
    if (past) store.learn(state);
    store.now = store.end;
  });
  wanted = null;
}

/** Arrival and prompt must be known before the steps are read, so that latencies can be counted. */
function learnBefore(state, history) {
  const shown = new Set(history.ids);
  for (const found of [...state.ended, ...state.running]) {
    if (!shown.has(found.request_id)) continue;
    const record = store.request(found.request_id);
    record.prompt = found.num_prompt_tokens;
    record.arrival = found.arrival_time;
    record.max = found.max_total_tokens;
    record.cached = found.num_cached_tokens;
    record.hit = found.prefix_hit ?? null;
    record.tenant = found.tenant;
    record.labels = found.labels;
    const begin = history.steps.time[0] ?? 0;
    if (found.first_token_time !== null && found.first_token_time <= begin) {
      record.firstToken = found.first_token_time;
    }
    if (found.first_scheduled_time !== null && found.first_scheduled_time <= begin) {
      record.started = found.first_scheduled_time;
    }
  }
}

async function watchReading(abort) {
  while (!abort.aborted && description.value.ready < 1) {
    await sleep(300);
    try {
      const found = await json("", { signal: abort });
      description.value = found;
      if (found.ready >= 1) store.learn(await json(`/state?step=${store.lastStep}`));
    } catch {
      return;
    }
  }
}

async function play(abort) {
  let queue = null; // a frame, and how much of it has been shown
  let shown = 0;
  let position = store.end;
  let before = performance.now();
  let learned = before;
  while (!abort.aborted && playing.value) {
    if (queue === null) {
      const from = store.lastStep + 1;
      if (from > description.value.last_step) {
        playing.value = false;
        return;
      }
      const path = `/steps?from=${from}&to=${from + AHEAD - 1}&fit=first`;
      try {
        queue = await json(path, { signal: abort });
      } catch (error) {
        if (!abort.aborted) await goOnLater(error, abort);
        return;
      }
      shown = 0;
      if (!queue.steps.step.length) return;
    }
    await new Promise(requestAnimationFrame);
    if (abort.aborted || !playing.value) return; // paused, or elsewhere by now
    if (performance.now() - learned > 1000 * REPLAYED_SECONDS) {
      await learnMoment(abort); // what waits is in no step
      learned = performance.now();
      before = Math.max(before, learned - 1000 / 60); // and the time that it took is not played
    }
    const now = performance.now();
    position += ((now - before) / 1000) * speed.value;
    before = now;
    const times = queue.steps.time;
    // A long silence is shortened: nobody wants to watch an idle server.
    if (times[shown] > position + 2 * speed.value) position = times[shown];
    let end = shown;
    while (end < times.length && times[end] <= position) end += 1;
    if (end > shown) {
      store.append(queue, shown, end);
      shown = end;
    }
    store.now = Math.max(store.end, position);
    if (shown >= times.length) queue = null;
  }
}

/** What runs, waits and has ended after the step that is shown, of a recording. */
async function learnMoment(abort) {
  const step = store.lastStep;
  try {
    const state = await json(`/state?step=${step}`, { signal: abort });
    if (store.lastStep === step) store.learn(state);
  } catch {
    // The next steps notice a lost connection.
  }
}

/** The connection was lost while a recording played: try again from the step that is shown. */
async function goOnLater(error, abort) {
  batch(() => {
    connection.value = "lost";
    trouble.value = error.message;
  });
  await sleep(500);
  if (!abort.aborted) start(Math.max(0, store.lastStep));
}

// ---- what the time bar does --------------------------------------------------------------------

export function pause() {
  if (!playing.value) return;
  playing.value = false;
  stopCurrent();
  store.settle();
  if (description.value && description.value.kind !== "live") learnMoment();
}

export function resume() {
  wanted = null;
  playing.value = true;
  const found = description.value;
  const isOver = found && store.lastStep >= found.last_step; // then it begins again
  start(found?.kind === "live" ? null : isOver ? found.first_step : Math.max(0, store.lastStep));
}

export const toggle = () => (playing.value ? pause() : resume());

export function seek(step) {
  playing.value = false;
  wanted = Math.max(description.value?.first_step ?? 0, step);
  start(wanted);
}

/** To the step that ran at a time. */
export async function seekTo(time) {
  const found = await json(`/steps?at=${time}&count=1&max_shares=1`);
  if (found.last >= 0) seek(found.last);
}

/** So many steps on or back. */
export function stepBy(number) {
  seek((wanted ?? store.lastStep) + number);
}

/** To the end: now, where it is live. */
export function toNow() {
  if (description.value?.kind === "live") {
    playing.value = true;
    start();
  } else {
    seek(description.value.last_step);
  }
}
