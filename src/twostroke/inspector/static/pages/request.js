// Request: its way from the first byte of the call to the last one of the answer.

import { DemoWhereEmpty } from "../demo/panel.js";
import { Component, html, view } from "../lib/html.js";
import { extra, go, selected, selectRequest } from "../lib/address.js";
import { OfGap } from "../lib/drawer.js";
import { aboutGap, aboutRequest, worstGap } from "../lib/explain.js";
import { count, foreign, many, shortId } from "../lib/format.js";
import { isOwn, store } from "../lib/store.js";
import { Blocks } from "./request_blocks.js";
import { watchDetails } from "./request_details.js";
import { Gaps } from "./request_gaps.js";
import { ContextBudget, Stations } from "./request_stations.js";
import { Waits } from "./why/request_waits.js";
import { Tokens, watchTokens } from "./request_tokens.js";

let lastShown = null; // stays while a step or a block of it is looked at

/** The request to show: the selected one, else the one that runs longest, else the latest. */
function chosen() {
  const id = selected.value?.id;
  if (id) lastShown = id;
  if (id) return store.requests.get(id) ?? null;
  if (selected.value && store.requests.has(lastShown)) return store.requests.get(lastShown);
  const of = (status) => store.having(status).filter((record) => !isOwn(record));
  const running = of("running");
  const pool = running.length ? running : of("finished");
  return (
    pool.sort(
      (one, other) => (running.length ? 1 : -1) * ((one.arrival ?? 0) - (other.arrival ?? 0)),
    )[0] ?? null
  );
}

const Budget = ({ record }) => {
  const whole = Math.max(1, record.max || record.prompt + record.output);
  const output = Math.max(0, record.output);
  const part = (tokens) => `${(100 * tokens) / whole}%`;
  return html`<section class="panel">
    <h2>
      Its room
      <span class="muted num">${count(record.prompt + output)} of ${many(whole, "token")}</span>
    </h2>
    <span class="bar" aria-hidden="true">
      <i
        class="prefill"
        style=${{ left: 0, width: part(Math.min(record.prompt, Math.max(record.computed, 0))) }}
      ></i>
      <i class="cached" style=${{ left: 0, width: part(record.cached) }}></i>
      <i class="decode" style=${{ left: part(record.prompt), width: part(output) }}></i
    ></span>
    <p class="legend">
      <span><i class="cached"></i>cached ${count(record.cached)}</span>
      <span
        ><i class="prefill"></i>computed prompt${" "}
        ${count(Math.max(0, Math.min(record.computed, record.prompt) - record.cached))}</span
      >
      <span><i class="decode"></i>output ${count(output)}</span
      ><span><i class="unused"></i>room left ${count(whole - record.prompt - output)}</span>
    </p>
  </section>`;
};

const aboutOption = (record) =>
  `${shortId(record.id)}  ${count(record.prompt)} + ${count(record.output)} tokens,` +
  ` ${record.status}${isOwn(record) ? ", of page Next token" : ""}`;

const Others = view(() => {
  store.beat.value;
  const records = [...store.having("running"), ...store.having("finished")]
    .filter((record) => record.arrival !== null)
    .sort((one, other) => other.arrival - one.arrival)
    .slice(0, 200);
  const id = chosen()?.id;
  return html`<p class="tools">
    <label for="which">Request</label>
    <select
      id="which"
      class="mono"
      value=${id}
      onChange=${(event) => selectRequest(event.target.value)}
    >
      ${records.map(
        (record) =>
          html`<option key=${record.number} value=${record.id}>${aboutOption(record)}</option>`,
      )}
      ${id && !records.some((record) => record.id === id)
        ? html`<option value=${id}>${shortId(id)}</option>`
        : null}
    </select>
    <button onClick=${() => go("timeline")}>On the timeline</button>
  </p>`;
});

const Shown = view(() => {
  store.beat.value;
  const record = chosen();
  if (!record) {
    return html`<section class="panel empty">
      <p>
        ${
          selected.value?.id
            ? `No request ${foreign(selected.value.id)} is known at this moment.`
            : html`No request yet. Ask something in <a href="#/chat">Chat</a>: each answer is shown
                here from the first byte of its call to its last token, with the milliseconds of
                each station between them.`
        }
      </p>
    </section>
    <${DemoWhereEmpty} />`;
  }
  const worst = record.worstGap > 0 ? worstGap(record) : null;
  return html`<${Others} />
    <p class="lead">${aboutRequest(record).join(" ")}</p>
    <${Stations} record=${record} />
    <${Waits} record=${record} />
    <${ContextBudget} record=${record} />
    <${Tokens} record=${record} />
    ${
      worst
        ? html`<section class="panel">
            <h2>Who stuttered it</h2>
            <p>${aboutGap(record, worst).join(" ")}</p>
            <${OfGap} record=${record} gap=${worst} />
          </section>`
        : null
    }
    <${Gaps} record=${record} />
    <div class="columns"><${Blocks} record=${record} /><${Budget} record=${record} /></div>`;
});

/** The parts that a link may lead to. */
const PARTS = { stations: ".panel.stations", tokens: ".panel.text", gaps: ".panel.gaps" };
const PART_MS = 200; // between two looks whether it is there
const MOST_LOOKS = 15;

/** Scroll to the part that the address names, once it is there; what comes above it moves it. */
function showPart() {
  const { part, ...rest } = extra.value;
  if (!Object.hasOwn(PARTS, part ?? "")) return () => {};
  extra.value = rest;
  let looks = 0;
  const timer = setInterval(() => {
    document.querySelector(PARTS[part])?.scrollIntoView();
    looks += 1;
    if (looks >= MOST_LOOKS) stop();
  }, PART_MS);
  const stop = () => {
    clearInterval(timer);
    for (const event of MOVES) removeEventListener(event, stop, true);
  };
  for (const event of MOVES) addEventListener(event, stop, true); // the reader moves it now
  return stop;
}
const MOVES = ["wheel", "pointerdown", "keydown", "touchmove"];

export class RequestPage extends Component {
  componentDidMount() {
    const current = () => chosen()?.id;
    this.stops = [watchDetails(current), watchTokens(current), showPart()];
  }

  componentWillUnmount() {
    for (const stop of this.stops) stop();
  }

  render() {
    return html`<${Shown} />`;
  }
}
