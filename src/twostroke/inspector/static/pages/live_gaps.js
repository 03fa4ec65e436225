// Gaps between tokens in the last minute: there may be a hundred thousand.

import { percentile } from "../lib/format.js";
import { playing } from "../lib/source.js";
import { isOwn, store } from "../lib/store.js";

const REST = 40; // times what counting took passes before it is counted again

let latest = null;
let again = 0;

/**
 * `{sorted, points}`: the gaps of the last `most` seconds, ascending, and the medians of `bins`
 * parts of the last `within` seconds as [share of the time, seconds].
 */
export function lateGaps(now, most, within, bins) {
  const began = performance.now();
  if (playing.value && latest && began < again) return latest;
  const parts = Array.from({ length: bins }, () => []);
  const all = [];
  const own = new Set(
    [...store.requests.values()].filter(isOwn).map((record) => record.number),
  );
  for (let row = store.lastRow; row >= store.steps.first; row -= 1) {
    const age = now - store.endOf(row);
    if (age > most) break;
    const bin = Math.max(0, Math.min(bins - 1, Math.floor((1 - age / within) * bins)));
    const [first, end] = store.sharesOf(row);
    for (let share = first; share < end; share += 1) {
      const gap = store.shares.get("gap", share);
      if (!gap || own.has(store.shares.get("request", share))) continue;
      all.push(gap);
      if (age <= within) parts[bin].push(gap);
    }
  }
  const points = parts.flatMap((part, bin) =>
    part.length ? [[bin / (bins - 1), percentile(Float32Array.from(part).sort(), 0.5)]] : [],
  );
  latest = { sorted: Float32Array.from(all).sort(), points };
  again = performance.now() + REST * (performance.now() - began);
  return latest;
}
