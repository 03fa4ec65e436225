// Which part of time the timeline shows, and what moves it.

import { signal } from "../../lib/html.js";
import { extra } from "../../lib/address.js";
import { description, playing } from "../../lib/source.js";
import { store } from "../../lib/store.js";

/** Seconds in view, and where the view ends; null follows the moment. */
export const span = signal(10);
export const fixedEnd = signal(null);
export const hovered = signal(null); // a row of the store

const SHORTEST = 0.002;
const REST = 0.3; // of the view is empty at most, where nothing has run since

/** The present; of a server that rests, the last that it did stays in view. */
function latest() {
  const rests = store.length && !store.steps.get("running", store.lastRow);
  return rests ? Math.min(store.now, store.end + REST * span.value) : store.now;
}

export function inView() {
  const end = fixedEnd.value ?? latest() + span.value * 0.02;
  return [end - span.value, end];
}

/** What there is to see: of a recording all of it, of a live engine since this page has it. */
export function bounds() {
  const found = description.value;
  if (found && found.kind !== "live") return [found.first_time, found.last_time];
  const oldest = store.coarse?.levels()[0] ?? store;
  return [oldest.length ? oldest.begin : store.now, store.now];
}

export function keep() {
  const { span: _, end: __, ...rest } = extra.value;
  const kept = { ...rest, span: span.value.toPrecision(4) };
  if (fixedEnd.value !== null) kept.end = fixedEnd.value.toFixed(4);
  extra.value = kept;
}

/** By a factor, around a moment; without one around the end of the view. */
export function zoom(factor, at = null) {
  const [begin, end] = inView();
  const centre = at ?? end;
  const [first, last] = bounds();
  const next = Math.min(
    Math.max(span.value * factor, SHORTEST),
    Math.max(1, 1.2 * (last - first)),
  );
  if (at !== null || fixedEnd.value !== null) {
    fixedEnd.value = centre + (end - centre) * (next / (end - begin));
  }
  span.value = next;
  keep();
}

export function pan(seconds) {
  const [, end] = inView();
  const follows = description.value?.kind === "live" || playing.value;
  const last = follows ? store.now : bounds()[1];
  fixedEnd.value = Math.min(end + seconds, last + span.value * 0.02);
  if (follows && fixedEnd.value >= store.now + span.value * 0.02) fixedEnd.value = null;
  keep();
}

/** Show a part of time, as a link would. */
export function show(begin, end) {
  span.value = Math.max(SHORTEST, end - begin);
  fixedEnd.value = end;
  keep();
}

export function follow() {
  fixedEnd.value = null;
  keep();
}
