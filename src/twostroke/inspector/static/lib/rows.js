// Rings of numbers: steps as rows, and what each request got in them. Memory stays the same.

export const STEP_COLUMNS = [
  "step",
  "span",
  "time",
  "duration",
  "longest",
  "tokens",
  "prompt",
  "new",
  "budget",
  "running",
  "waiting",
  "free",
  "cached",
  "used",
  "allocated",
  "queries",
  "hits",
];
export const SHARE_COLUMNS = [
  "request",
  "start",
  "tokens",
  "prompt",
  "new",
  "blocks",
  "drafts",
  "accepted",
];

/** A ring of rows; a row's number stays the same until it is dropped. */
class Ring {
  /** `types` are arrays by column; the capacity is a power of two. */
  constructor(types, capacity) {
    this.mask = capacity - 1;
    this.capacity = capacity;
    this.columns = Object.fromEntries(
      Object.entries(types).map(([name, type]) => [name, new type(capacity)]),
    );
    this.clear();
  }

  clear() {
    this.first = 0;
    this.end = 0;
  }

  get(name, row) {
    return this.columns[name][row & this.mask];
  }

  set(name, row, value) {
    this.columns[name][row & this.mask] = value;
  }
}

const all = (names, type) => Object.fromEntries(names.map((name) => [name, type]));

/** Steps and their shares; the oldest go when there is no room. */
export class Rows {
  /** Capacities are powers of two. A share's `gap` is the seconds since the token before, or 0. */
  constructor(steps, shares) {
    this.steps = new Ring(all([...STEP_COLUMNS, "firstShare"], Float64Array), steps);
    this.shares = new Ring({ ...all(SHARE_COLUMNS, Int32Array), gap: Float32Array }, shares);
    this.notes = new Map(); // row -> what happened beside tokens
  }

  clear() {
    this.steps.clear();
    this.shares.clear();
    this.notes.clear();
  }

  get length() {
    return this.steps.end - this.steps.first;
  }

  get lastRow() {
    return this.steps.end - 1;
  }

  /** When the first row began. */
  get begin() {
    return this.length ? this.steps.get("time", this.steps.first) : 0;
  }

  /** When a row ended. */
  endOf(row) {
    return this.steps.get("time", row) + this.steps.get("duration", row);
  }

  /** A new row; `fill(name)` gives its columns. */
  addRow(fill) {
    if (this.length >= this.steps.capacity) this.dropStep();
    const row = this.steps.end;
    for (const name of STEP_COLUMNS) this.steps.set(name, row, fill(name));
    this.steps.set("firstShare", row, this.shares.end);
    this.steps.end = row + 1;
    return row;
  }

  /** A new share of the last row. */
  addShare(fill) {
    if (this.shares.end - this.shares.first >= this.shares.capacity) this.dropStep();
    const at = this.shares.end;
    for (const name of SHARE_COLUMNS) this.shares.set(name, at, fill(name));
    this.shares.set("gap", at, 0);
    this.shares.end = at + 1;
    return at;
  }

  dropStep() {
    const row = this.steps.first;
    this.notes.delete(row);
    this.steps.first = row + 1;
    this.shares.first =
      this.steps.first < this.steps.end
        ? this.steps.get("firstShare", this.steps.first)
        : this.shares.end;
  }

  /** Share rows of a step: [first, end). */
  sharesOf(row) {
    const next = row + 1 < this.steps.end ? this.steps.get("firstShare", row + 1) : this.shares.end;
    return [this.steps.get("firstShare", row), next];
  }

  /** The row of the last step that began at or before a time. */
  rowAt(time) {
    return Math.max(this.steps.first, this.rowUpTo("time", time));
  }

  rowOfStep(step) {
    const row = this.rowUpTo("step", step);
    return row >= this.steps.first ? row : -1;
  }

  rowUpTo(name, value) {
    let low = this.steps.first;
    let high = this.steps.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps.get(name, middle) <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Rows within a time: [first, end). */
  rowsWithin(begin, end) {
    if (!this.length) return [0, 0];
    return [this.rowAt(begin), Math.min(this.steps.end, this.rowAt(end) + 1)];
  }
}
