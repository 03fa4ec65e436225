// The one store of steps and requests, in rings of numbers: memory stays the same for ever.
//
// It ends at the moment that is shown. A live engine, a recording and a simulation fill it alike:
// `append` takes the columns of `/v1/inspect/steps` and of the feed.

import { Coarse } from "./coarse.js";
import { signal } from "./html.js";
import { Rows } from "./rows.js";

const MAX_ENDED = 4096;
const MAX_SAMPLES = 16384; // requests, that is, not tokens
// Milliseconds between two updates of what is text: more where one takes long, on a busy machine.
const BEAT = 100;
const SLOWEST_BEAT = 500;
const REST = 8; // times what an update took

/** Whether page Next token asked for it, and no user: figures about users leave it out. */
export const isOwn = (record) => record.labels.inspector !== undefined;

export class Store extends Rows {
  /** `coarse`: keep what leaves the rings, merged. */
  constructor(steps = 16384, shares = 262144, coarse = false) {
    super(steps, shares);
    /** `tick` rises with each change, for drawings; `beat` no more often than eyes read. */
    this.tick = signal(0);
    this.beat = signal(0);
    this.beaten = -Infinity;
    this.cost = 0;
    this.coarse = coarse ? new Coarse() : null;
    this.clear();
  }

  clear() {
    super.clear();
    this.coarse?.clear();
    this.timings = new Map(); // row -> seconds by component
    this.requests = new Map(); // id -> record
    this.byNumber = new Map(); // number in the share columns -> record
    this.numRequests = 0;
    this.usersRow = -1; // the latest that was not of this page's own requests alone
    this.held = []; // what the latest step held back
    this.ttft = []; // [time, seconds]
    this.tpot = []; // [time, mean seconds between two tokens] of requests that have ended
    this.errors = [];
    this.now = 0; // the engine's clock
    this.lost = 0; // steps that came too fast, or while there was no connection
  }

  get lastStep() {
    return this.length ? this.lastStepOf(this.lastRow) : -1;
  }

  lastStepOf(row) {
    return this.steps.get("step", row) + this.steps.get("span", row) - 1;
  }

  /** The latest row, without those of this page's own requests alone where others are kept. */
  get shownRow() {
    return this.usersRow < this.steps.first ? this.lastRow : this.usersRow;
  }

  /** When the latest step ended. */
  get end() {
    if (!this.length) return this.now;
    return this.endOf(this.lastRow);
  }

  /** Something has changed. */
  touch() {
    this.tick.value += 1;
    if (this.pulse) return;
    const pause = Math.min(SLOWEST_BEAT, Math.max(BEAT, REST * this.cost));
    const wait = this.beaten + pause - performance.now();
    const beat = () => {
      this.pulse = 0;
      this.beaten = performance.now();
      this.beat.value += 1;
      // The views are drawn in a microtask; what comes after it knows how long that was.
      setTimeout(() => {
        this.cost = performance.now() - this.beaten;
      });
    };
    if (wait <= 0) beat();
    else this.pulse = setTimeout(beat, wait);
  }

  /** Nothing more comes for now: show the latest, all of it at once. */
  settle() {
    clearTimeout(this.pulse);
    this.pulse = 0;
    this.beat.value += 1;
  }

  request(id) {
    let record = this.requests.get(id);
    if (!record) {
      record = {
        id,
        number: this.numRequests++,
        prompt: 0,
        max: 0,
        cached: 0,
        hit: null, // how far the prefix cache had its prompt, of models with recurrent layers
        tenant: "",
        labels: {},
        arrival: null,
        started: null,
        firstToken: null,
        lastToken: null,
        finish: null,
        reason: null,
        status: "waiting",
        computed: 0,
        output: 0,
        blocks: 0,
        preemptions: 0,
        preemptedAt: null,
        preemptedBy: null, // the record of the request that needed its blocks last
        failed: false,
        worstGap: 0,
        worstRow: -1,
        worstBegin: 0,
        someGapsUnknown: false, // tokens came in steps that are not here, or merged
        firstRow: -1,
        lastRow: -1,
      };
      this.requests.set(id, record);
      this.byNumber.set(record.number, record);
    }
    return record;
  }

  /** Facts from `/v1/inspect/state`: what the steps in the store do not say. */
  learn(state) {
    this.now = Math.max(this.now, state.time);
    for (const found of [...state.ended, ...state.running, ...state.waiting]) {
      const record = this.request(found.request_id);
      record.prompt = found.num_prompt_tokens;
      record.max = found.max_total_tokens;
      record.cached = found.num_cached_tokens;
      record.hit = found.prefix_hit ?? null;
      record.tenant = found.tenant;
      record.labels = found.labels;
      record.arrival = found.arrival_time;
      record.started ??= found.first_scheduled_time;
      // One that is in no step here yet comes with its step, and is counted then.
      if (found.first_token_time !== null && found.first_token_time <= this.end) {
        record.firstToken ??= found.first_token_time;
      }
      record.preemptions = found.num_preemptions;
      if (record.lastRow < 0) {
        record.computed = found.num_computed_tokens;
        record.output = found.num_output_tokens;
        record.blocks = found.num_blocks;
      }
      if (found.status === "finished") {
        this.finish(record, found.finish_reason, found.finish_time);
      } else if (record.status !== "finished") {
        record.status = found.status;
      }
    }
    if (!state.some_left_out) this.endGone(state);
    this.touch();
  }

  /** What waited and is no longer there was aborted before its first step. */
  endGone(state) {
    const live = new Set([...state.running, ...state.waiting].map((found) => found.request_id));
    for (const record of this.requests.values()) {
      if (record.status === "waiting" && record.lastRow < 0 && !live.has(record.id)) {
        this.finish(record, "abort", state.time);
      }
    }
  }

  /** Rows `from` to `to` (not included) of a frame, by default all. */
  append(frame, from = 0, to = frame.steps.step.length) {
    // Only the requests of the rows that are taken: the others have not come yet.
    const recordOf = (index) => (index < 0 ? null : this.request(frame.ids[index]));
    let share = 0;
    while (share < frame.shares.row.length && frame.shares.row[share] < from) share += 1;
    const notes = new Map(frame.notes.map((note) => [note.row, note]));
    if (from === 0 && frame.missed) {
      this.lost += frame.missed;
      // What a request got meanwhile is unknown: the time since then is no gap between two tokens.
      for (const record of this.requests.values()) {
        record.lastToken = null;
        record.someGapsUnknown ||= record.status === "running";
      }
    }
    for (let index = from; index < to; index += 1) {
      const row = this.addRow((name) => frame.steps[name][index]);
      this.timings.set(row, seconds(frame.timings, index));
      const note = notes.get(index);
      if (note) this.note(row, note, recordOf);
      let users = frame.shares.row[share] !== index; // a step of none is no page's
      for (; share < frame.shares.row.length && frame.shares.row[share] === index; share += 1) {
        const record = recordOf(frame.shares.request[share]);
        users ||= !isOwn(record);
        this.share(row, frame.shares, share, record);
      }
      if (users) this.usersRow = row;
      if (note) this.ends(row, note, recordOf);
    }
    this.now = Math.max(this.now, this.end);
    this.forget();
    this.touch();
  }

  share(row, columns, index, record) {
    const at = this.addShare((name) => (name === "request" ? record.number : columns[name][index]));
    const begin = this.steps.get("time", row);
    const end = begin + this.steps.get("duration", row);
    const got = columns.new[index];
    // A state that was asked for may be ahead of the feed, or behind it.
    Object.assign(record, { status: "running", finish: null, reason: null });
    record.started ??= begin;
    record.preemptedAt = null;
    record.blocks = columns.blocks[index];
    record.computed =
      columns.start[index] +
      columns.tokens[index] -
      columns.drafts[index] +
      columns.accepted[index];
    if (record.firstRow < 0) {
      record.firstRow = row;
      record.someGapsUnknown ||= record.firstToken !== null;
    }
    record.lastRow = row;
    if (!got) return;
    record.output = Math.max(record.output, record.computed + 1 - record.prompt);
    if (record.firstToken === null) {
      record.firstToken = end;
      if (record.arrival !== null && !isOwn(record)) {
        this.sample(this.ttft, [end, end - record.arrival]);
      }
    } else if (this.steps.get("span", row) > 1) {
      record.someGapsUnknown = true;
    } else if (record.lastToken !== null) {
      const gap = end - record.lastToken;
      this.shares.set("gap", at, gap);
      if (gap > record.worstGap) {
        Object.assign(record, { worstGap: gap, worstRow: row, worstBegin: record.lastToken });
      }
    }
    record.lastToken = end;
  }

  sample(samples, sample) {
    samples.push(sample);
    if (samples.length > MAX_SAMPLES) samples.splice(0, MAX_SAMPLES / 4);
  }

  note(row, note, recordOf) {
    const kept = { preempted: [], finished: [], error: note.error };
    for (const started of note.started) {
      const record = this.request(started.request_id);
      record.arrival = started.arrival_time;
      record.prompt = started.num_prompt_tokens;
      record.max = started.max_total_tokens;
      record.cached = started.num_cached_tokens;
      record.hit = started.prefix_hit ?? null;
      record.tenant = started.tenant;
    }
    for (const [id, labels] of Object.entries(note.labels)) this.request(id).labels = labels;
    if (note.held_back) {
      this.held = note.held_back.map(([number, reason, by, behind]) => ({
        record: recordOf(number),
        reason,
        by: recordOf(by),
        behind,
      }));
      kept.held = this.held;
    }
    for (const [number, by] of note.preempted) {
      const record = recordOf(number);
      record.status = "preempted";
      record.preemptions += 1;
      record.preemptedAt = this.steps.get("time", row);
      record.preemptedBy = recordOf(by);
      kept.preempted.push([record, recordOf(by)]);
    }
    if (note.error) this.sample(this.errors, [this.steps.get("time", row), note.error]);
    kept.depths = (note.depths ?? []).map(([number, step, depth, reason, gain, pause]) => ({
      record: recordOf(number),
      step,
      depth,
      reason,
      gain,
      pause,
    }));
    this.notes.set(row, kept);
  }

  ends(row, note, recordOf) {
    const end = this.steps.get("time", row) + this.steps.get("duration", row);
    for (const [number, reason] of note.finished) {
      const record = recordOf(number);
      this.finish(record, reason, end);
      this.notes.get(row).finished.push([record, reason]);
    }
  }

  finish(record, reason, time) {
    if (record.status === "finished") return;
    // A state may tell of it before the feed does: it is one error.
    if (reason === "error" && !record.failed) this.sample(this.errors, [time, "error"]);
    record.failed = reason === "error";
    Object.assign(record, { status: "finished", reason, finish: time, blocks: 0 });
    if (isOwn(record)) return;
    if (record.output > 1 && record.lastToken > record.firstToken && record.firstToken !== null) {
      this.sample(this.tpot, [time, (record.lastToken - record.firstToken) / (record.output - 1)]);
    }
  }

  dropStep() {
    this.coarse?.take(this, this.steps.first);
    this.timings.delete(this.steps.first);
    super.dropStep();
  }

  /** Drop the oldest of the requests that have ended and are in no step any more. */
  forget() {
    if (this.requests.size <= 2 * MAX_ENDED) return;
    for (const [id, record] of this.requests) {
      if (this.requests.size <= MAX_ENDED) break;
      if (record.status === "finished" && record.lastRow < this.steps.first) {
        this.requests.delete(id);
        this.byNumber.delete(record.number);
      }
    }
  }

  // ---- what pages ask --------------------------------------------------------------------------

  having(status) {
    return [...this.requests.values()].filter((record) => record.status === status);
  }

  /** The requests of a row: [record, its tokens, those of its prompt]. */
  sizesOf(row) {
    const [first, end] = this.sharesOf(row);
    const sizes = [];
    for (let share = first; share < end; share += 1) {
      const record = this.byNumber.get(this.shares.get("request", share));
      if (record)
        sizes.push([record, this.shares.get("tokens", share), this.shares.get("prompt", share)]);
    }
    return sizes;
  }

  /** Share rows of one request, oldest first: [step's row, share's row]. */
  *sharesFor(record, from = this.steps.first) {
    const begin = Math.max(from, record.firstRow, this.steps.first);
    for (let row = begin; row <= record.lastRow && row < this.steps.end; row += 1) {
      const [first, end] = this.sharesOf(row);
      for (let share = first; share < end; share += 1) {
        if (this.shares.get("request", share) === record.number) yield [row, share];
      }
    }
  }
}

/** The gaps of one request, oldest first: [when it ended, seconds, step's row]. */
export function gapsOf(rows, record, from, to) {
  const found = [];
  for (const [row, share] of rows.sharesFor(record, from)) {
    if (to !== undefined && row >= to) break;
    const gap = rows.shares.get("gap", share);
    if (gap) found.push([rows.endOf(row), gap, row]);
  }
  return found;
}

function seconds(timings, index) {
  const result = {};
  for (const [component, column] of Object.entries(timings)) result[component] = column[index];
  return result;
}

export const store = new Store(16384, 262144, true);
