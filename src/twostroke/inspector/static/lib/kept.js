// Answers the page's questions from what the file itself holds, where it is one without a server.

const element = document.getElementById("recording");
const held = element ? JSON.parse(element.textContent) : null;

/** Whether this page is one file without a server. */
export const isKept = held !== null;
/** The pages that need no server. */
export const KEPT_PAGES = ["live", "timeline", "request"];

/** The answer of a route, as `fetch` gives it. */
export function keptAnswer(path) {
  const [name, query] = path.split("?");
  const values = new URLSearchParams(query ?? "");
  const answer = ANSWERS[name];
  if (!answer) throw new Error("this file has no server to ask");
  const value = answer(values);
  return { json: async () => value, text: async () => JSON.stringify(value) };
}

const ANSWERS = {
  "": () => held.describe,
  "/steps": steps,
  "/state": (values) => stateAt(endOf(rowOf(Number(values.get("step") ?? Infinity)))),
  "/request": () => ({ call: null, blocks: null }),
  "/bound": (values) => boundAt(Number(values.get("to"))),
  "/waits/minutes": minutes,
  "/waits": (values) => held.waits[values.get("id")] ?? null,
  "/find": find,
};

const columns = () => held.frame.steps;

/** The last row whose step is not after the given one. */
function rowOf(step) {
  const { step: numbers } = columns();
  let row = numbers.length - 1;
  while (row > 0 && numbers[row] > step) row -= 1;
  return row;
}

const endOf = (row) => columns().time[row] + columns().duration[row];

/** Rows by `from`, `to`, `count` or `at`, as the server takes them; of some requests alone too. */
function steps(values) {
  const { step: numbers, time } = columns();
  let last = rowOf(Number(values.get("to") ?? Infinity));
  if (values.has("at")) {
    last = Math.max(0, time.findLastIndex((begin) => begin <= Number(values.get("at"))));
  }
  const count = Number(values.get("count") ?? 2048);
  const from = Number(values.get("from") ?? -1);
  const first = values.has("from")
    ? numbers.findIndex((step) => step >= from)
    : Math.max(0, last + 1 - count);
  return first < 0 || first > last ? cut(0, 0) : cut(first, last + 1);
}

/** The rows from `first` to `end`, not included, as a frame of their own. */
function cut(first, end) {
  const { frame } = held;
  const part = (all) => all.slice(first, end);
  const each = (table, change) =>
    Object.fromEntries(Object.entries(table).map(([name, column]) => [name, change(column, name)]));
  const { row } = frame.shares;
  const within = (at) => row[at] >= first && row[at] < end;
  const chosen = row.map((_, at) => at).filter(within);
  const notes = (frame.notes ?? []).filter((note) => note.row >= first && note.row < end);
  return {
    ...frame,
    steps: each(frame.steps, part),
    shares: each(frame.shares, (column, name) =>
      chosen.map((at) => column[at] - (name === "row" ? first : 0)),
    ),
    notes: notes.map((note) => ({ ...note, row: note.row - first })),
    timings: each(frame.timings ?? {}, part),
    first: frame.steps.step[first] ?? -1,
    last: frame.steps.step[end - 1] ?? -1,
  };
}

/** What ran, waited and had ended at a time: of what each request was in the end. */
function stateAt(time) {
  const state = { time, running: [], waiting: [], ended: [] };
  const past = (moment) => moment !== null && moment <= time;
  for (const request of held.requests) {
    const seen = { ...request };
    if (past(request.finish_time)) {
      state.ended.push(seen);
      continue;
    }
    const has = past(request.first_scheduled_time);
    Object.assign(seen, {
      status: has ? "running" : "waiting",
      finish_time: null,
      finish_reason: null,
      first_token_time: past(request.first_token_time) ? request.first_token_time : null,
      first_scheduled_time: has ? request.first_scheduled_time : null,
      num_computed_tokens: 0,
      num_output_tokens: 0,
    });
    if (has) state.running.push(seen);
    else if (request.arrival_time <= time) state.waiting.push(seen);
  }
  return state;
}

/** Of the moment that is nearest to a step: they are kept for some. */
function boundAt(step) {
  const away = ([number]) => Math.abs(number - step);
  return held.bounds.reduce((one, other) => (away(other) < away(one) ? other : one))[1];
}

function minutes(values) {
  const [begin, end] = ["begin", "end"].map((name) => Number(values.get(name)));
  return held.minutes.filter((minute) => minute.begin + 60 > begin && minute.begin <= end);
}

function find(values) {
  const text = values.get("text").toLowerCase();
  const matches = held.requests.filter(({ request_id: id, tenant, labels }) =>
    [id, tenant, ...Object.values(labels)].some((one) => one.toLowerCase().includes(text)),
  );
  const count = Number(values.get("count"));
  const { step: numbers, time } = columns();
  const requests = matches.slice(0, count).map((request) => {
    const end = request.finish_time ?? Infinity;
    const row = Math.max(0, time.findLastIndex((begin) => begin < end));
    const { request_id, tenant, labels } = request;
    return { request_id, tenant, labels, step: numbers[row] };
  });
  return { requests, left_out: Math.max(0, matches.length - count) };
}
