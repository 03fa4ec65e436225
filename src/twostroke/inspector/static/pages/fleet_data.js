// What the page of a fleet shows: replicas over time, and where requests went. Or one engine's own.

import { signal } from "../lib/html.js";
import { api, description } from "../lib/source.js";
import { store } from "../lib/store.js";

const COLUMNS = 480;
const OWN_COLUMNS = 240;
const AGAIN_MS = 500;
const SHOWN_ROUTES = 40;

export const facts = signal(null);
export const strips = signal(null);
export const routes = signal([]);
/** The replica whose routes are listed; empty: all. */
export const chosenReplica = signal("");
export const trouble = signal("");

/** `{replica, replicas}` where several are recorded together, else null. */
export const fleetOf = () => description.value?.configuration?.fleet ?? null;

const json = async (path) => (await api(path)).json();

/** Load the whole time once, and again while its recordings are read. Returns what ends it. */
export function watchFleet() {
  let timer = 0;
  let ended = false;
  const load = async () => {
    if (!fleetOf()) {
      timer = setTimeout(load, 100); // not open yet, or a single engine
      return;
    }
    try {
      const [found, levels] = await Promise.all([
        json("/fleet"),
        json(`/fleet/occupancy?columns=${COLUMNS}`),
      ]);
      facts.value = found;
      strips.value = levels;
      trouble.value = "";
      if (!ended && found.ready < 1) timer = setTimeout(load, AGAIN_MS);
    } catch (error) {
      trouble.value = error.message;
      if (!ended) timer = setTimeout(load, 4 * AGAIN_MS);
    }
  };
  load();
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}

let asked = "";
let busy = false;

/** The routes up to the moment that is shown. */
export async function loadRoutes() {
  if (!fleetOf() || busy) return;
  const only = chosenReplica.value === "" ? "" : `&replica=${chosenReplica.value}`;
  const path = `/fleet/routes?count=${SHOWN_ROUTES}&before=${store.now}${only}`;
  if (path === asked) return;
  busy = true;
  try {
    routes.value = await json(path);
    asked = path;
  } catch (error) {
    trouble.value = error.message;
  } finally {
    busy = false;
  }
}

/** A page of another replica: another source of steps, and so another address. */
export function replicaLink(number, page = "timeline", query = {}) {
  const url = new URL(document.baseURI);
  url.pathname = url.pathname.replace(
    /(replicas\/\d+\/)?inspect\/[^/]*$/,
    `replicas/${number}/inspect/`,
  );
  const values = new URLSearchParams(query).toString();
  url.hash = `#/${page}${values ? `?${values}` : ""}`;
  return url.href;
}

/** The column of a moment. */
export function columnAt(levels, moment) {
  const columns = levels.imbalance.length;
  const share = (moment - levels.begin) / (levels.end - levels.begin || 1);
  return Math.max(0, Math.min(columns - 1, Math.floor(share * columns)));
}

let own = null;

/** The same strips of the one engine that is shown, from the steps in the store. */
export function ownStrips() {
  if (!store.length) return null;
  const isNew = !own || own.row > store.lastRow || own.first > store.lastRow;
  if (!isNew && performance.now() - own.at < AGAIN_MS) return own.levels;
  const { steps } = store;
  const begin = steps.get("time", steps.first);
  const end = Math.max(store.now, store.end, begin + 1e-6); // idle time, too
  const zeros = () => new Array(OWN_COLUMNS).fill(0);
  const level = { running: zeros(), waiting: zeros(), kv: zeros(), step: zeros() };
  const numbers = zeros();
  const last = { running: zeros(), waiting: zeros(), kv: zeros() }; // of each column
  const total = description.value?.num_blocks || 1;
  for (let row = steps.first; row < steps.end; row += 1) {
    const share = (steps.get("time", row) - begin) / (end - begin);
    const column = Math.min(OWN_COLUMNS - 1, Math.floor(share * OWN_COLUMNS));
    numbers[column] += 1;
    last.running[column] = steps.get("running", row);
    last.waiting[column] = steps.get("waiting", row);
    last.kv[column] = 1 - steps.get("free", row) / total;
    for (const name of Object.keys(last)) level[name][column] += last[name][column];
    level.step[column] = steps.get("step", row);
  }
  for (let column = 0; column < OWN_COLUMNS; column += 1) {
    for (const name of Object.keys(last)) {
      if (numbers[column]) level[name][column] /= numbers[column];
      else if (column) level[name][column] = last[name][column] = last[name][column - 1];
    }
    if (!numbers[column] && column) level.step[column] = level.step[column - 1];
  }
  const levels = { begin, end, replicas: [{ ...level, last }], imbalance: zeros(), routed: {} };
  own = { row: store.lastRow, first: steps.first, at: performance.now(), levels };
  return levels;
}
