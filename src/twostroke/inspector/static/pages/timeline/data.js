// What is drawn for a part of time: the store's steps, beyond them merged ones.
//
// Of a live engine those that have left the store's rings (`lib/coarse.js`); of a recording the
// server's overview, which is asked for when the view leaves what the store holds.

import { signal } from "../../lib/html.js";
import { json, description } from "../../lib/source.js";
import { Rows } from "../../lib/rows.js";
import { store } from "../../lib/store.js";

const WAIT = 150; // milliseconds without a change before the server is asked
const MOST_ROWS = 1024;
const SLACK = 0.03; // of the view: what lies beyond the moment

const overview = signal(null);
let asked = { from: 0, to: 0, engine: "" };
let timer = 0;

/** `{parts, records, lives, finishOf}`; `lives` are the requests of the overview by id. */
export function dataFor(begin, end) {
  const fine = { data: store, rows: store.rowsWithin(begin, end) };
  if (description.value?.kind === "live") {
    const levels = begin < store.begin ? (store.coarse?.levels() ?? []) : [];
    const parts = levels.map((data) => ({ data, rows: data.rowsWithin(begin, store.begin) }));
    return own([...parts, fine]);
  }
  if (covers(begin, end)) return own([fine]);
  ask(begin, end);
  const wide = overview.value;
  if (!wide || wide.engine !== description.value?.engine_id) return own([fine]);
  const records = [...wide.lives.values()].map((life) => store.requests.get(life.id) ?? life);
  for (const record of store.requests.values()) {
    if (!wide.lives.has(record.id)) records.push(record);
  }
  const outside = [
    { data: wide.rows, rows: wide.rows.rowsWithin(begin, Math.min(end, store.begin)) },
    fine,
    { data: wide.rows, rows: after(wide.rows, end) },
  ];
  return {
    parts: store.length ? outside : [{ data: wide.rows, rows: wide.rows.rowsWithin(begin, end) }],
    records,
    lives: wide.lives,
    finishOf: (record) => record.finish ?? wide.lives.get(record.id)?.finish ?? null,
    moment: store.now,
  };
}

const own = (parts) => ({
  parts,
  records: [...store.requests.values()],
  lives: null,
  finishOf: (record) => record.finish,
  moment: null,
});

/** The rows that begin when the store's steps have ended. */
function after(rows, end) {
  if (!rows.length || end <= store.end) return [0, 0];
  return [rows.rowAt(store.end) + 1, rows.rowsWithin(store.end, end)[1]];
}

function covers(begin, end) {
  const found = description.value;
  if (!found || !store.length) return true;
  const slack = SLACK * (end - begin);
  const first = store.steps.get("step", store.steps.first) <= found.first_step;
  return (
    (first || begin >= store.begin - slack) &&
    (store.lastStep >= found.last_step || end <= store.now + slack)
  );
}

/** Ask for the view and as much around it, unless what is there is as fine. */
function ask(begin, end) {
  const found = description.value;
  const wide = end - begin;
  const from = Math.max(found.first_time, begin - wide / 2);
  const to = Math.min(found.last_time, end + wide / 2);
  const known =
    asked.engine === found.engine_id &&
    asked.ready === found.ready &&
    asked.from <= Math.max(begin, found.first_time) &&
    asked.to >= Math.min(end, found.last_time) &&
    asked.to - asked.from < 4 * (to - from);
  if (known) return;
  clearTimeout(timer);
  timer = setTimeout(async () => {
    asked = { from, to, engine: found.engine_id, ready: found.ready };
    const query = `begin=${from}&end=${to}&max_steps=${MOST_ROWS}`;
    try {
      overview.value = read(await json(`/overview?${query}`), found.engine_id);
    } catch {
      asked = { from: 0, to: 0, engine: "" }; // the next drawing asks again
    }
  }, WAIT);
}

function read(answer, engine) {
  const rows = new Rows(MOST_ROWS, 1);
  const { steps } = answer;
  steps.step.forEach((_, index) => rows.addRow((name) => steps[name][index]));
  const lives = new Map();
  for (const found of answer.requests) {
    lives.set(found.request_id, {
      id: found.request_id,
      number: -1 - lives.size, // the store's count from 0 on
      arrival: found.arrival,
      started: found.started,
      firstToken: found.first_token,
      finish: found.finish,
      reason: found.reason,
      prompt: found.prompt,
      output: found.output,
      labels: {},
      status: found.finish === null ? "running" : "finished",
      lastRow: -1,
      known: true,
    });
  }
  return { engine, rows, lives };
}
