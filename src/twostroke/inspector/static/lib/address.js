// The address bar holds page, moment, selection and filter, so that any view can be sent on. Back
// and Forward lead through pages, selections, conversations and chapters; the rest of an address
// changes in its place.

import { effect, signal } from "./html.js";
import { description, playing, seek } from "./source.js";
import { store } from "./store.js";

/** Where an address without a page leads. */
const FIRST = "live";
export const page = signal(FIRST);
/** `{kind, id}` of a `request` or `gap`, `{kind, step}` or `{kind, block}`; null is nothing. */
export const selected = signal(null);
export const filter = signal("");
/** What a page adds, such as the part of time that is in view. */
export const extra = signal({});

let reading = false;
let corrects = false; // the next address takes the place of one that leads nowhere

/** Change what a page adds, where what the address says is no more. */
export function correct(values) {
  corrects = true;
  extra.value = values;
}

export function select(item) {
  selected.value = item;
}

export function selectRequest(id) {
  selected.value = { kind: "request", id };
}

export function go(name) {
  page.value = name;
}

/** What the address says; the moment is shown once the source is open. */
export function readAddress(pages) {
  reading = true;
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const values = new URLSearchParams(query ?? "");
  page.value = pages.includes(name) ? name : FIRST;
  filter.value = values.get("filter") ?? "";
  selected.value = readSelection(values);
  const {
    request: _,
    at,
    filter: __,
    step: ___,
    block: ____,
    gap: _____,
    ...rest
  } = Object.fromEntries(values);
  extra.value = rest;
  reading = false;
  const step = at === undefined ? NaN : Number(at);
  return Number.isFinite(step) ? step : null;
}

function readSelection(values) {
  if (values.has("request")) return { kind: "request", id: values.get("request") };
  if (values.has("gap")) return { kind: "gap", id: values.get("gap") };
  if (values.has("step")) return { kind: "step", step: Number(values.get("step")) };
  if (values.has("block")) return { kind: "block", block: Number(values.get("block")) };
  return null;
}

export function currentAddress() {
  const values = new URLSearchParams(extra.value);
  const chosen = selected.value;
  if (chosen?.kind === "request") values.set("request", chosen.id);
  if (chosen?.kind === "gap") values.set("gap", chosen.id);
  if (chosen?.kind === "step") values.set("step", chosen.step);
  if (chosen?.kind === "block") values.set("block", chosen.block);
  if (filter.value) values.set("filter", filter.value);
  if (!playing.value && store.lastStep >= 0) values.set("at", store.lastStep);
  const query = values.toString();
  return `#/${page.value}${query ? `?${query}` : ""}`;
}

const SELECTIONS = ["request", "gap", "step", "block"];
const OPEN = ["chat", "chapter"]; // what pages have open; they name it once they show it
const WALK_MS = 700; // selections that follow each other faster share one entry

/** The page of an address, what is selected, and what is open there. */
function placeOf(address) {
  const [name, query] = address.replace(/^#\/?/, "").split("?");
  const values = new URLSearchParams(query ?? "");
  const of = (names) => names.map((one) => values.get(one) ?? "").join("\n");
  return { page: name, selection: of(SELECTIONS), open: of(OPEN).trim() };
}

/** Keep the address up to date, and follow it where somebody changes it. */
export function keepAddress(pages) {
  // Written or read here. Another one is a link whose event is still to come: not written over.
  let known = location.hash;
  let selectedAt = -Infinity;
  let waits = false;

  /** Whether a new address is another place, to which Back leads from the next one. */
  const isElsewhere = (address) => {
    const [before, after] = [placeOf(known), placeOf(address)];
    const now = performance.now();
    const walks = now - selectedAt < WALK_MS;
    const selects = before.selection !== after.selection;
    if (selects) selectedAt = now;
    if (before.page !== after.page) return before.page !== ""; // the first address is completed
    return (selects && !walks) || (before.open !== "" && before.open !== after.open);
  };
  const write = () => {
    waits = false;
    const address = currentAddress();
    const isSame = corrects;
    corrects = false;
    if (!description.value || location.hash !== known || known === address) return;
    const isEntry = !isSame && isElsewhere(address);
    history[isEntry ? "pushState" : "replaceState"](null, "", address);
    known = location.hash;
  };
  const writeSoon = () => {
    if (!waits) setTimeout(write); // what one click changes, and the page it leaves, is one entry
    waits = true;
  };
  effect(() => {
    if (!playing.value) store.tick.value;
    const address = currentAddress();
    if (description.value && !reading && known !== address) writeSoon();
  });
  addEventListener("hashchange", () => {
    known = location.hash;
    const step = readAddress(pages);
    if (corrects) writeSoon();
    // Without a moment in it, a link leads to another view of the one that is shown.
    if (step !== null && step !== store.lastStep) seek(step);
  });
}
