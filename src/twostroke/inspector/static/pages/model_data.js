// What the page Model knows: the tower, steps as points, paths of the cost model, a measurement.

import { batch, signal } from "../lib/html.js";
import { api, description, playing, seesAll } from "../lib/source.js";
import { store } from "../lib/store.js";

const EVERY_MS = 600;
const HISTORY = 256; // steps that are asked for at once
const FOLLOWED = 64; // and again and again, of a live engine
const MAX_POINTS = 4096;
export const BATCHES = [1, 4, 16, 64];
const NEAR = 1.5; // a batch counts as one of these up to this factor away
const MAINLY = 0.9; // share of prompt tokens from which on a step is called prefill
const FEW = 3; // steps from which on their median is a point

/** `ShownModel` of `/v1/inspect/model`; null until it has come. */
export const shown = signal(null);
/** Steps, oldest first: `{step, prompt, requests, context, seconds, flops, bytes, estimate}`. */
export const points = signal([]);
export const paths = signal(null);
export const trouble = signal("");
export const measuring = signal(false);
export const sliders = signal({ batch: 16, context: 128, prompt: 512 });

let lastAsked = -1;
let answeredFor = "";

const json = async (path, options) => (await api(path, options)).json();

/** Ask while the page is shown, until the function that this returns is called. */
export function watchModel() {
  let busy = false;
  const abort = new AbortController();
  const ask = async () => {
    if (busy || document.hidden || !description.value) return;
    busy = true;
    try {
      const source = description.value.engine_id;
      if (source !== answeredFor) await open(source, abort.signal);
      if (shown.value?.tower && seesAll()) await follow(abort.signal);
    } catch (error) {
      if (!abort.signal.aborted && !shown.value) shown.value = { why: error.message, notes: [] };
    } finally {
      busy = false;
    }
  };
  ask();
  const timer = setInterval(ask, EVERY_MS);
  return () => {
    abort.abort();
    clearInterval(timer);
  };
}

async function open(source, abort) {
  const found = await json("/model", { signal: abort });
  batch(() => {
    answeredFor = source;
    lastAsked = -1;
    points.value = [];
    shown.value = found;
    paths.value = null;
  });
  if (!found.tower) return;
  const longest = Math.min(found.tower.context_length, 131072);
  const { batch: together, context, prompt } = sliders.value;
  await slide({
    batch: together,
    context: Math.min(context, longest),
    prompt: Math.min(prompt, longest),
  });
}

async function follow(abort) {
  const isLive = description.value.kind === "live" && playing.value;
  const to = isLive ? null : store.lastStep;
  if (to !== null && (to < 0 || to === lastAsked)) return;
  const known = points.value;
  const newest = known.length ? known[known.length - 1].step : -1;
  const goesOn = newest >= 0 && (to === null || to >= newest);
  const count = goesOn && to === null ? FOLLOWED : HISTORY;
  const upTo = to === null ? "" : `&to=${to}`;
  const since = goesOn ? newest : -1;
  const columns = await json(`/model/steps?count=${count}&since=${since}${upTo}`, {
    signal: abort,
  });
  lastAsked = to ?? -1;
  const added = columns.step.map((_, index) =>
    Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, column[index]])),
  );
  if (!added.length && goesOn) return;
  points.value = [...(goesOn ? known : []), ...added].slice(-MAX_POINTS);
}

let pending = null;

/** Move sliders; the cost model is asked once the one before has answered. */
export async function slide(change) {
  sliders.value = { ...sliders.value, ...change };
  if (pending) {
    pending.again = true;
    return;
  }
  pending = { again: false };
  try {
    do {
      pending.again = false;
      const { context, prompt } = sliders.value;
      paths.value = await json(`/model/paths?context=${context}&prompt=${prompt}&batch=256`);
    } while (pending.again);
  } catch (error) {
    trouble.value = error.message;
  } finally {
    pending = null;
  }
}

export async function measure() {
  if (measuring.value) return;
  measuring.value = true;
  trouble.value = "";
  try {
    const found = await json("/model/measure", { body: {} });
    shown.value = { ...shown.value, measurement: found };
  } catch (error) {
    trouble.value = error.message;
  } finally {
    measuring.value = false;
  }
}

export const kindOf = (point) =>
  !point.requests ? "prefill" : point.prompt ? "mixed" : "decode";

const isNear = (number, to) => number <= to * NEAR && number * NEAR >= to;

function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  return ordered[Math.floor(ordered.length / 2)];
}

function middle(group) {
  const result = {};
  for (const name of ["seconds", "flops", "bytes", "requests", "prompt", "context"]) {
    result[name] = median(group.map((point) => point[name]));
  }
  const estimates = group.map((point) => point.estimate).filter((value) => value !== null);
  result.estimate = estimates.length ? median(estimates) : null;
  result.steps = group.length;
  return result;
}

/**
 * Prefill and decode at each of the batches: of the measurement where it has them, else the median
 * of the steps here, else null. `label` is what stands beside the point.
 */
export function groups() {
  const measured = shown.value?.measurement?.groups ?? [];
  const own = { prefill: [] };
  for (const point of points.value) {
    if (point.prompt >= MAINLY * (point.prompt + point.requests)) own.prefill.push(point);
    if (point.prompt) continue;
    const near = BATCHES.find((wanted) => isNear(point.requests, wanted));
    if (near) (own[near] ??= []).push(point);
  }
  // Prompts differ widely: the larger half of the chunks is what prefill can do.
  const most = Math.max(0, ...own.prefill.map((point) => point.prompt));
  own.prefill = own.prefill.filter((point) => 2 * point.prompt >= most);
  const rows = [{ name: "prefill", label: "prompt", wanted: 0 }].concat(
    BATCHES.map((wanted) => ({ name: "decode", label: String(wanted), wanted })),
  );
  return rows.map(({ name, label, wanted }) => {
    const found = measured.find((group) => group.batch === wanted);
    if (found) return { name, label, wanted, found, from: "measured" };
    const ours = own[wanted || "prefill"] ?? [];
    const enough = ours.length >= FEW ? middle(ours) : null;
    return { name, label, wanted, found: enough, from: "traffic" };
  });
}

/** What was measured of this machine: on demand, or when it was calibrated; else null. */
export const ownRoof = () =>
  shown.value?.measurement?.ceilings ?? shown.value?.calibrated ?? null;

/** The ceilings that hold: measured, where somebody has, else those of the sheet. */
export const roof = () => ownRoof() ?? shown.value?.ceilings ?? null;

/** Measured time over the estimate, of the latest steps; null without either. */
export function errorOfModel() {
  const ratios = points.value
    .slice(-HISTORY)
    .filter((point) => point.estimate)
    .map((point) => point.seconds / point.estimate);
  return ratios.length >= FEW ? median(ratios) : null;
}
