// Which requests are lanes, and where. Where all have one of their own, a lane is a request; where
// they do not fit, lanes are used again after their request has ended.

import { filter } from "../../lib/address.js";

const LEAST = 3; // pixels
const MOST = 26;

export const matches = (record) =>
  !filter.value ||
  record.id.toLowerCase().includes(filter.value.toLowerCase()) ||
  Object.values(record.labels).some((text) =>
    String(text).toLowerCase().includes(filter.value.toLowerCase()),
  );

const beginOf = (record) => record.arrival ?? record.started;

/** Requests that are there within the view, oldest first. */
function within({ records, finishOf }, begin, end) {
  const shown = [];
  for (const record of records) {
    const from = beginOf(record);
    const finish = finishOf(record);
    if (from === null || from > end || (finish !== null && finish < begin)) continue;
    if (record.lastRow < 0 && record.status === "finished" && !record.known) continue;
    if (matches(record)) shown.push(record);
  }
  return shown.sort(
    (one, other) => beginOf(one) - beginOf(other) || one.number - other.number,
  );
}

/** `{records, slots, height, hidden, packed}`: the lane of each record, counted from the top. */
export function lanesFor(found, begin, end, room) {
  const shown = within(found, begin, end);
  const fit = Math.floor(room / LEAST);
  if (shown.length <= fit) {
    const height = Math.max(LEAST, Math.min(MOST, Math.floor(room / Math.max(1, shown.length))));
    const slots = shown.map((_, slot) => slot);
    return { records: shown, slots, height, hidden: 0, packed: false };
  }
  const slots = pack(shown, found.finishOf);
  const number = 1 + slots.reduce((most, slot) => Math.max(most, slot), 0);
  const height = Math.max(LEAST, Math.min(MOST, Math.floor(room / number)));
  const most = Math.floor(room / height);
  const kept = shown.filter((_, index) => slots[index] < most);
  return {
    records: kept,
    slots: slots.filter((slot) => slot < most),
    height,
    hidden: shown.length - kept.length,
    packed: true,
    finishOf: found.finishOf,
  };
}

/** For each record, in order of arrival, the first lane that is free. */
function pack(records, finishOf) {
  const ends = [];
  return records.map((record) => {
    const begin = beginOf(record);
    let slot = ends.findIndex((end) => end <= begin);
    if (slot < 0) slot = ends.length;
    ends[slot] = finishOf(record) ?? Infinity;
    return slot;
  });
}

/** The record at a lane and a moment. */
export function recordAt(lanes, lane, at) {
  if (!lanes.packed) return lanes.records[lane];
  return lanes.records.find(
    (record, index) =>
      lanes.slots[index] === lane &&
      beginOf(record) <= at &&
      at <= (lanes.finishOf(record) ?? Infinity),
  );
}
