// What the steps in the store say of drafts: how many were right, where, and how deep they went.

import { signal } from "../lib/html.js";
import { selected } from "../lib/address.js";
import { store } from "../lib/store.js";

export const WINDOW = 60; // seconds
const MAX_SHARES = 60000; // that are looked at for one set of figures
const BINS = 60;
const EVERY_MS = 250;
const MAX_PASSES = 2048;

let cache = null;
let timer = 0;
const later = signal(0);

/** The figures of the selected request, or of all; a few times a second at most. */
export function figures() {
  store.tick.value;
  later.value;
  const id = selected.value?.id ?? null;
  const now = performance.now();
  const same = cache && cache.id === id && cache.first === store.steps.first;
  if (same && cache.row === store.lastRow && cache.end === store.end) return cache.found;
  if (same && now - cache.at < EVERY_MS && store.lastRow > cache.row) {
    clearTimeout(timer);
    timer = setTimeout(() => {
      later.value += 1;
    }, EVERY_MS);
    return cache.found;
  }
  const record = id === null ? null : (store.requests.get(id) ?? null);
  cache = {
    id,
    at: now,
    row: store.lastRow,
    end: store.end,
    first: store.steps.first,
    found: count(record),
  };
  return cache.found;
}

/** A request whose steps are shown one by one: the selected one, else the latest that drafted. */
export function shownRequest() {
  const id = selected.value?.id;
  if (id) return store.requests.get(id) ?? null;
  return figures().latest;
}

function empty(record, begin, end) {
  const bins = () => new Float64Array(BINS);
  return {
    record,
    begin,
    end,
    latest: null,
    passes: 0, // of one request each, that gave tokens and were no prompt
    drafting: 0, // of these, with drafts
    tokens: 0,
    drafted: 0,
    accepted: 0,
    tried: [],
    right: [],
    merged: false,
    bins: { passes: bins(), tokens: bins(), drafted: bins(), accepted: bins() },
    changes: [],
  };
}

function count(record) {
  const { steps, shares } = store;
  const end = store.length ? Math.max(store.end, store.now) : 0;
  const oldest = store.length ? steps.get("time", steps.first) : 0;
  const begin = Math.max(oldest, end - WINDOW);
  const found = empty(record, begin, end);
  let looked = 0;
  for (let row = steps.end - 1; row >= steps.first && looked < MAX_SHARES; row -= 1) {
    const time = steps.get("time", row);
    if (time < begin) break;
    const single = steps.get("span", row) === 1;
    const bin = Math.min(BINS - 1, Math.floor(((time - begin) / (end - begin || 1)) * BINS));
    const [first, last] = store.sharesOf(row);
    looked += last - first;
    for (let share = first; share < last; share += 1) {
      const number = shares.get("request", share);
      if (record && number !== record.number) continue;
      const drafts = shares.get("drafts", share);
      const fresh = shares.get("new", share);
      if (!fresh || shares.get("prompt", share)) continue;
      const right = shares.get("accepted", share);
      const span = single ? 1 : Math.max(1, fresh - right);
      found.passes += span;
      found.tokens += fresh;
      found.drafted += drafts;
      found.accepted += right;
      found.bins.passes[bin] += span;
      found.bins.tokens[bin] += fresh;
      found.bins.drafted[bin] += drafts;
      found.bins.accepted[bin] += right;
      if (!drafts) continue;
      found.drafting += 1;
      found.latest ??= store.byNumber.get(number) ?? null;
      if (single) positions(found, drafts, right);
      else found.merged = true;
    }
    for (const change of store.notes.get(row)?.depths ?? []) {
      if (change.record && (!record || change.record === record)) {
        found.changes.push({ ...change, time });
      }
    }
  }
  return found;
}

/** Positions behind the first wrong one were not compared. */
function positions(found, drafts, right) {
  while (found.tried.length < drafts) {
    found.tried.push(0);
    found.right.push(0);
  }
  for (let at = 0; at < Math.min(drafts, right + 1); at += 1) {
    found.tried[at] += 1;
    if (at < right) found.right[at] += 1;
  }
}

/** [share of the window, quotient] of two columns of bins, where the second is not 0. */
export function quotients(top, bottom) {
  const points = [];
  for (let bin = 0; bin < BINS; bin += 1) {
    if (bottom[bin]) points.push([bin / (BINS - 1), top[bin] / bottom[bin]]);
  }
  return points;
}

/** One request's passes, oldest first: [time, end, drafts, accepted, new tokens, step]. */
export function passesOf(record) {
  const passes = [];
  if (!record) return passes;
  for (const [row, share] of store.sharesFor(record)) {
    const fresh = store.shares.get("new", share);
    if (!fresh || store.steps.get("span", row) > 1) continue;
    const time = store.steps.get("time", row);
    passes.push([
      time,
      time + store.steps.get("duration", row),
      store.shares.get("prompt", share) ? 0 : store.shares.get("drafts", share),
      store.shares.get("accepted", share),
      fresh,
      store.steps.get("step", row),
    ]);
  }
  return passes.slice(-MAX_PASSES);
}

/** One request's depth, as it changed: oldest first. */
export function changesOf(record) {
  const changes = [];
  if (!record) return changes;
  for (let row = Math.max(record.firstRow, store.steps.first); row <= record.lastRow; row += 1) {
    for (const change of store.notes.get(row)?.depths ?? []) {
      if (change.record === record) changes.push({ ...change, time: store.steps.get("time", row) });
    }
  }
  return changes;
}

const times = (gain) => `${gain.toFixed(2)} times`;

const REASONS = {
  fixed: () => "The depth is fixed; it does not adapt.",
  asked: () => "The request allows no more.",
  pays: ({ gain }) =>
    gain
      ? `The most tokens a second: ${times(gain)} those without guesses, as estimated.`
      : "The most tokens a second, as estimated.",
  does_not_pay: ({ gain, pause }) =>
    `Guessing would give ${times(gain)} the tokens a second of none.` +
    (pause ? ` It is tried again in ${pause} steps.` : ""),
  cannot_pay: ({ pause }) =>
    "Were all guesses right, it would still not pay: a pass over more tokens takes too long." +
    (pause ? ` It is looked at again in ${pause} steps.` : ""),
  trial: ({ depth }) =>
    `A trial of ${depth}, to see whether ${depth === 1 ? "it comes" : "they come"} true.`,
  awaited: () => "This step verifies what the trial gave.",
  no_budget: ({ pause }) =>
    "What wrong guesses may cost (0.8 % of the time) is spent." +
    (pause ? ` It is looked at again in ${pause} steps.` : ""),
  remeasure: () => "A step without guesses, to measure how long one takes.",
};

const WORDS = {
  fixed: "fixed",
  asked: "asked for",
  pays: "pays",
  does_not_pay: "does not pay",
  cannot_pay: "cannot pay",
  trial: "trial",
  awaited: "awaited",
  no_budget: "budget spent",
  remeasure: "remeasured",
};

/** Why the depth is what it is, in a sentence. */
export const whyDepth = (change) => REASONS[change.reason]?.(change) ?? change.reason;
export const depthWord = (reason) => WORDS[reason] ?? reason;
