// What has left the store's rings, merged: minutes, then hours, in rings of their own.
//
// A row of the first level is 16 steps, of the second 256. Requests keep the store's numbers.

import { Rows, SHARE_COLUMNS, STEP_COLUMNS } from "./rows.js";

const MERGED = 16;
const STEPS = 8192;
const SHARES = 131072;
const SUMS = ["tokens", "prompt", "new", "budget", "queries", "hits", "span"];

/** Rows that merge so many of those that they are given. */
class Level extends Rows {
  constructor(next) {
    super(STEPS, SHARES);
    this.next = next;
    this.clear();
  }

  clear() {
    super.clear();
    this.row = null; // being merged: columns by name
    this.got = new Map(); // request's number -> columns by name
    this.taken = 0;
    this.next?.clear();
  }

  take(rows, row) {
    const { steps, shares } = rows;
    const value = (name) => steps.get(name, row);
    if (this.row === null) {
      this.row = Object.fromEntries(STEP_COLUMNS.map((name) => [name, value(name)]));
    } else {
      const begin = this.row.time;
      const longest = Math.max(this.row.longest, value("longest"));
      for (const name of STEP_COLUMNS) {
        if (SUMS.includes(name)) this.row[name] += value(name);
        else if (name !== "step" && name !== "time") this.row[name] = value(name);
      }
      Object.assign(this.row, { longest, duration: rows.endOf(row) - begin });
    }
    const [first, end] = rows.sharesOf(row);
    for (let share = first; share < end; share += 1) {
      const number = shares.get("request", share);
      const before = this.got.get(number);
      if (!before) {
        this.got.set(
          number,
          Object.fromEntries(SHARE_COLUMNS.map((name) => [name, shares.get(name, share)])),
        );
        continue;
      }
      for (const name of ["tokens", "prompt", "new", "drafts", "accepted"]) {
        before[name] += shares.get(name, share);
      }
      before.blocks = shares.get("blocks", share);
    }
    this.taken += 1;
    if (this.taken === MERGED) this.flush();
  }

  flush() {
    const { row, got } = this;
    this.row = null;
    this.got = new Map();
    this.taken = 0;
    this.addRow((name) => row[name]);
    for (const columns of got.values()) this.addShare((name) => columns[name]);
  }

  dropStep() {
    this.next?.take(this, this.steps.first);
    super.dropStep();
  }
}

export class Coarse {
  clear() {
    this.fine?.clear();
  }

  /** Levels come into being when there is something to keep. */
  take(rows, row) {
    this.fine ??= new Level(new Level(null));
    this.fine.take(rows, row);
  }

  /** Those that hold something, the oldest rows first. */
  levels() {
    return [this.fine?.next, this.fine].filter((level) => level?.length);
  }
}
