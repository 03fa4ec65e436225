// Compare: the requests of the part of time that was in view, simulated under other settings, below
// the same requests as they were served, simulated too.

import { batch, html, signal, view } from "../../lib/html.js";
import { extra, selectRequest, selected } from "../../lib/address.js";
import { Canvas } from "../../lib/canvas.js";
import { CopyButtons } from "../../lib/copy.js";
import { count, many, percentile, shortId, time } from "../../lib/format.js";
import { api, description, seesAll } from "../../lib/source.js";
import { Store, store } from "../../lib/store.js";
import { drawSides, heightFor, recordIn } from "./compare_drawing.js";
import { honesty, last, mean, signed, timesOf, verdict } from "./compare_words.js";
import { bounds, fixedEnd, inView, show } from "./view.js";

/** null, or what is compared: `{begin, end, against, tokens, answer, sides, trouble}`. */
export const compared = signal(null);
const part = signal(null); // the part of the answer's time that is in view; null is all of it

const AGAINST = [
  ["static", "static batching"],
  ["whole", "prompts whole, not in chunks"],
  ["chunk", "prompts in chunks of"],
  ["budget", "steps of at most"],
];
const MOST_ROWS = 200;
const [RECENT, MOST_TOKENS] = [120, 60_000]; // seconds, and tokens, that are soon replayed
const typed = signal(null); // a number of tokens that is not asked for yet
let asking = null;

/** The part of the steps' time that is in view. */
function range() {
  const [first, last] = bounds();
  const [begin, end] = inView();
  return { begin: Math.max(begin, first), end: Math.min(end, last) };
}

/** Whether there is something to compare: the steps of a live engine come after the page. */
export function canCompare() {
  const { begin, end } = range();
  return end > begin;
}

export function startComparing() {
  if (canCompare()) ask({ ...(isChosen() ? range() : recent()), against: "static", tokens: 256 });
}

/** Whether a person has set what is in view. */
const isChosen = () =>
  description.value?.kind !== "live" || fixedEnd.value !== null || extra.value.span !== undefined;

/** The latest row of several requests, else of one: alone, it is the same under any settings. */
function trafficRow() {
  let row = store.lastRow;
  const isAlone = () => store.sharesOf(row)[1] - store.sharesOf(row)[0] < 2;
  while (row >= store.steps.first && isAlone()) row -= 1;
  return row < store.steps.first ? store.shownRow : row;
}

/** More than is in view at first: what one looks for, such as a long prompt, has often gone by. */
function recent() {
  const last = trafficRow();
  const { begin } = range();
  const end = last < 0 ? range().end : store.endOf(last);
  let [from, tokens] = [end, 1];
  for (let row = last; row >= store.steps.first; row -= 1) {
    if (store.steps.get("time", row) < end - RECENT) break;
    from = Math.min(from, store.steps.get("time", row));
    tokens += store.steps.get("running", row);
  }
  // The page has the latest steps only; the server has those before, as many in a second.
  const seconds = Math.min(RECENT, (MOST_TOKENS / tokens) * (end - from));
  return { begin: Math.max(0, Math.min(begin, end - seconds)), end };
}

export function stopComparing() {
  asking?.abort();
  const { compare: _, from: __, to: ___, ...rest } = extra.value;
  const found = compared.value;
  batch(() => {
    compared.value = null;
    extra.value = rest;
    if (found) show(found.begin, found.end); // what was compared, not the present
  });
}

/** What the address says. */
export function readCompared() {
  const { compare, from, to } = extra.value;
  if (!compare || compared.value) return;
  const [against, tokens] = compare.split(":");
  if (!AGAINST.some(([name]) => name === against)) return;
  ask({ begin: Number(from), end: Number(to), against, tokens: Number(tokens) || 256 });
}

const questionOf = ({ begin, end, against, tokens }) => ({
  begin,
  end,
  against,
  ...(needsTokens(against) ? { tokens } : {}),
});
const needsTokens = (against) => against === "chunk" || against === "budget";

async function ask(wanted) {
  asking?.abort();
  asking = new AbortController();
  const { signal: abort } = asking;
  part.value = null;
  typed.value = null;
  compared.value = { ...wanted, answer: null, trouble: "" };
  const { against, tokens, begin, end } = wanted;
  extra.value = {
    ...extra.value,
    compare: needsTokens(against) ? `${against}:${tokens}` : against,
    from: begin.toFixed(4),
    to: end.toFixed(4),
  };
  if (!seesAll()) return;
  try {
    const found = await api("/compare", { signal: abort, body: questionOf(wanted) });
    const answer = inRange(await found.json());
    if (!abort.aborted) compared.value = { ...wanted, answer, sides: sidesOf(answer), trouble: "" };
  } catch (error) {
    if (!abort.aborted) compared.value = { ...wanted, answer: null, trouble: error.message };
  }
}

/** Without the requests that only ran beside those of the range. */
function inRange(answer) {
  const kept = answer.requests.map((request) => request.in_range);
  const of = (values) => values.filter((_, index) => kept[index]);
  const side = (found) => ({
    ...found,
    first_token: of(found.first_token),
    finish: of(found.finish),
  });
  return {
    ...answer,
    beside: kept.filter((inside) => !inside).length,
    requests: of(answer.requests),
    recorded: side(answer.recorded),
    other: side(answer.other),
  };
}

/** Each side's steps in a store of its own, and its requests in the order of the answer. */
function sidesOf(answer) {
  return ["recorded", "other"].map((name) => {
    const data = new Store(2048, 32768);
    data.append(answer[name].frame);
    const records = answer.requests.map((request) => data.requests.get(request.request_id));
    records.forEach((record, index) => {
      if (!record) return;
      // Where steps are merged, the answer knows the moments better.
      record.arrival = answer.requests[index].arrival;
      record.firstToken = answer[name].first_token[index];
      record.finish = answer[name].finish[index];
    });
    return { data, records, settings: answer[name].settings };
  });
}

// ---- markup ------------------------------------------------------------------------------------

const Choice = ({ wanted }) =>
  html`<form
    class="tools"
    onSubmit=${(event) => {
      event.preventDefault();
      const values = new FormData(event.target);
      const tokens = Math.round(Number(values.get("tokens") ?? wanted.tokens)) || wanted.tokens;
      ask({ ...wanted, against: values.get("against"), tokens });
    }}
  >
    <label for="against">Compare with</label>
    <select
      id="against"
      name="against"
      value=${wanted.against}
      onChange=${(event) => ask({ ...wanted, against: event.target.value })}
    >
      ${AGAINST.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}
    </select>
    ${needsTokens(wanted.against)
      ? html`<label class="hidden" for="tokens">Tokens</label>
          <input
            id="tokens"
            name="tokens"
            class="find tokens"
            type="number"
            min="1"
            max="1048576"
            value=${typed.value ?? wanted.tokens}
            onInput=${(event) => {
              typed.value = event.target.value;
            }}
          /><span class="muted">tokens</span><button>Replay</button>`
      : null}
    <span class="spring"></span>
    <button type="button" onClick=${stopComparing}>Back to the timeline</button>
  </form>`;

const Figures = ({ answer }) => {
  const { simulated, other, firsts } = timesOf(answer);
  const sorted = (values) => [...values].sort((one, next) => one - next);
  const at = (values, share) => percentile(sorted(values), share);
  const rows = [
    ["time of a request, mean", mean(simulated), mean(other)],
    ["time of a request, p95", at(simulated, 0.95), at(other, 0.95)],
    ["time to first token, median", at(firsts[0], 0.5), at(firsts[1], 0.5)],
    ["time to first token, p95", at(firsts[0], 0.95), at(firsts[1], 0.95)],
    ["gap between tokens, p99", answer.recorded.p99_gap, answer.other.p99_gap],
    ["gap between tokens, longest", answer.recorded.longest_gap, answer.other.longest_gap],
  ];
  return html`<table class="list" aria-label="Both sides in figures">
    <thead>
      <tr>
        <th>simulated</th>
        <th class="n">as it was set</th>
        <th class="n">the other</th>
        <th class="n">difference</th>
      </tr>
    </thead>
    <tbody>
      ${rows.map(
        ([name, one, next]) =>
          html`<tr key=${name}>
            <td>${name}</td>
            <td class="n">${time(one)}</td>
            <td class="n">${time(next)}</td>
            <td class="n">${signed(next - one)}</td>
          </tr>`,
      )}
    </tbody>
  </table>`;
};

const Each = ({ answer }) =>
  html`<details>
    <summary>Each request</summary>
    <table class="list" aria-label="Each request on both sides">
      <thead>
        <tr>
          <th>request</th>
          <th class="n">prompt</th>
          <th class="n">output</th>
          <th class="n">recorded</th>
          <th class="n">simulated</th>
          <th class="n">the other</th>
          <th class="n">difference</th>
        </tr>
      </thead>
      <tbody>
        ${answer.requests.slice(0, MOST_ROWS).map((request, index) => {
          const one = answer.recorded.finish[index];
          const other = answer.other.finish[index];
          const taken = (finish) => (finish === null ? "" : time(finish - request.arrival));
          return html`<tr key=${request.request_id}>
            <td class="mono">
              <button class="link" onClick=${() => selectRequest(request.request_id)}>
                ${shortId(request.request_id)}
              </button>
            </td>
            <td class="n">${count(request.prompt)}</td>
            <td class="n">${count(request.output)}</td>
            <td class="n">${taken(request.finish)}</td>
            <td class="n">${taken(one)}</td>
            <td class="n">${taken(other)}</td>
            <td class="n">${one === null || other === null ? "" : signed(other - one)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${answer.requests.length > MOST_ROWS
      ? html`<p class="muted">
          and ${count(answer.requests.length - MOST_ROWS)} more; copied as JSON are all
        </p>`
      : null}
  </details>`;

let layout = null;

const Plot = ({ found }) =>
  html`<div class="sides" style=${{ height: `${heightFor(found.answer.requests.length)}px` }}>
    <${Canvas}
      name="fill"
      label=${`${many(found.answer.requests.length, "request")} as lanes, above as they were` +
      ` served, below with the other settings, on one scale of time`}
      draw=${(context, width, height, palette) => {
        selected.value;
        layout = drawSides(context, palette, { ...found, width, height, view: viewOf(found) });
      }}
      bind=${(canvas) =>
        canvas.addEventListener("click", (event) => {
          const record = layout && recordIn(layout, event, canvas);
          if (record) selectRequest(record.id);
        })}
    />
  </div>`;

const whole = ({ answer }) => [
  Math.min(...answer.requests.map((request) => request.arrival)),
  Math.max(last(answer.recorded.finish), last(answer.other.finish)),
];
const viewOf = (found) => part.value ?? whole(found);

export function zoomCompared(factor) {
  if (!compared.value?.answer) return;
  const [begin, end] = viewOf(compared.value);
  const [first, latest] = whole(compared.value);
  const wide = Math.min((end - begin) * factor, latest - first);
  const middle = (begin + end) / 2;
  const from = Math.max(first, Math.min(middle - wide / 2, latest - wide));
  part.value = wide >= latest - first ? null : [from, from + wide];
}

export function panCompared(share) {
  if (!part.value) return;
  const [first, latest] = whole(compared.value);
  const [begin, end] = part.value;
  const by = Math.max(first - begin, Math.min(latest - end, share * (end - begin)));
  part.value = [begin + by, end + by];
}

export const Compare = view(() => {
  const found = compared.value;
  if (!found) return null;
  const { answer, trouble } = found;
  description.value;
  if (!seesAll()) {
    return html`<section class="panel compare">
      <${Choice} wanted=${found} />
      <p class="empty">A comparison replays the requests of all keys: an admin key shows it.</p>
    </section>`;
  }
  return html`<section class="panel compare">
    <${Choice} wanted=${found} />
    ${trouble ? html`<p class="empty" role="alert">Not compared: ${trouble}.</p>` : null}
    ${!answer && !trouble
      ? html`<p class="empty" role="status">
          Simulating ${time(found.end - found.begin)} of requests, twice.
        </p>`
      : null}
    ${answer
      ? html`<p class="lead">${verdict(answer)}</p>
          <p class="muted">${honesty(answer)}</p>
          <${Plot} found=${found} />
          <p class="legend">
            <span><i class="prefill"></i>prefill</span
            ><span><i class="decode tick"></i>decode</span>
            <span><i class="waiting tick"></i>waits</span
            ><span><i class="lost"></i>later than above</span>
            <span><i class="real tick"></i>recorded end</span>
          </p>
          <${Figures} answer=${answer} />
          <${Each} answer=${answer} />
          <${CopyButtons}
            path="/compare"
            body=${questionOf(found)}
            value=${() => answer}
          />`
      : null}
  </section>`;
});
