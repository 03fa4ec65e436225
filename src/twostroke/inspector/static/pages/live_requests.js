// The requests of the live view, as rows that fill up.

import { html, view } from "../lib/html.js";
import { filter, selected, selectRequest } from "../lib/address.js";
import { heldBack, reasonWord, standsOut } from "../lib/explain.js";
import { count, foreign, short, shortId, time } from "../lib/format.js";
import { isOwn, store } from "../lib/store.js";

const MAX_ROWS = 80;
const MINUTE = 60; // seconds

/**
 * The longest gap of a request, which leads to why; in red where it stands out. With a sign of
 * "at least" where this page does not have all steps.
 */
const LongestGap = ({ record }) => {
  if (!record.worstGap) return "";
  return html`<button
    class=${`link ${standsOut(record) ? "held" : ""}`}
    title=${record.someGapsUnknown ? "of the steps that this page has; why?" : "why?"}
    onClick=${() => selectRequest(record.id)}
  >
    ${record.someGapsUnknown ? "\u2265 " : ""}${time(record.worstGap)}
  </button>`;
};

/** A request as a bar of its greatest length: what was cached, what is computed, what came out. */
const Bar = ({ record }) => {
  const whole = Math.max(
    1,
    record.prompt +
      Math.max(
        record.output,
        Math.min(record.max - record.prompt, 4 * Math.max(32, record.output)),
      ),
  );
  const part = (tokens) => `${(100 * tokens) / whole}%`;
  const computed = Math.min(record.computed, record.prompt);
  return html`<span class="bar" aria-hidden="true">
    <i class="unused" style=${{ left: 0, width: part(record.prompt) }}></i>
    <i class="prefill" style=${{ left: 0, width: part(computed) }}></i>
    <i class="cached" style=${{ left: 0, width: part(Math.min(record.cached, computed)) }}></i>
    <i class="decode" style=${{ left: part(record.prompt), width: part(record.output) }}></i>
  </span>`;
};

const Row = ({ record }) => {
  const now = store.now;
  const held =
    record.status === "preempted"
      ? "preempted"
      : heldBack(record) && reasonWord(heldBack(record).reason);
  const since = record.firstToken ?? now;
  // Of steps that came merged, the first token and the latest are of one moment: no rate is known.
  const wrote = (record.lastToken ?? now) - since;
  const rate = record.output > 1 && wrote > 0 ? (record.output - 1) / wrote : null;
  const note = held || (record.computed < record.prompt ? "prefill" : "");
  return html`<tr
    class="leads"
    aria-selected=${selected.value?.id === record.id}
    onClick=${() => selectRequest(record.id)}
  >
    <td class="mono">
      <button class="link" title=${foreign(record.id)} onClick=${() => selectRequest(record.id)}>
        ${shortId(record.id)}
      </button>
    </td>
    <td class="n wide">${time(now - record.arrival)}</td>
    <td class="grow"><${Bar} record=${record} /></td>
    <td class="n wide">${count(record.prompt)}</td>
    <td class="n">${count(Math.max(0, record.output))}</td>
    <td class="n wide">${rate === null ? "" : short(rate)}</td>
    <td class="n"><${LongestGap} record=${record} /></td>
    <td class="n wide">${record.blocks || ""}</td>
    <td class=${`wide ${held ? "held" : "muted"}`}>${note}</td>
  </tr>`;
};

const matches = (record) =>
  !filter.value ||
  [record.id, record.tenant, ...Object.values(record.labels)].some((text) =>
    String(text).toLowerCase().includes(filter.value.toLowerCase()),
  );

const Rows = ({ title, records, hint }) =>
  html`<section class="panel">
    <h2>${title} <span class="muted num">${count(records.length)}</span></h2>
    ${
      records.length
        ? html`<table class="list">
              <colgroup>
                <col style=${{ width: "84px" }} />
                <col class="wide" style=${{ width: "72px" }} />
                <col />
                <col class="wide" style=${{ width: "64px" }} />
                <col style=${{ width: "64px" }} />
                <col class="wide" style=${{ width: "72px" }} />
                <col style=${{ width: "96px" }} />
                <col class="wide" style=${{ width: "64px" }} />
                <col class="wide" style=${{ width: "128px" }} />
              </colgroup>
              <thead>
                <tr>
                  <th>request</th>
                  <th class="n wide">age</th>
                  <th>progress</th>
                  <th class="n wide">prompt</th>
                  <th class="n">output</th>
                  <th class="n wide">tokens/s</th>
                  <th class="n">longest gap</th>
                  <th class="n wide">blocks</th>
                  <th class="wide">held back</th>
                </tr>
              </thead>
              <tbody>
                ${records.slice(0, MAX_ROWS).map((record) =>
                  html`<${Row} key=${record.number} record=${record} />`)}
              </tbody>
            </table>
            ${records.length > MAX_ROWS
              ? html`<p class="muted">and ${count(records.length - MAX_ROWS)} more</p>`
              : null}`
        : html`<p class="empty">${hint}</p>`
    }
  </section>`;

export const Requests = view(() => {
  store.beat.value;
  selected.value;
  const byArrival = (one, other) => (one.arrival ?? 0) - (other.arrival ?? 0);
  const shown = (status) => store.having(status).filter(matches).sort(byArrival);
  const running = shown("running");
  const waiting = [
    ...shown("preempted"),
    ...shown("waiting"),
    ...shown("loading"),
    ...shown("held"),
  ];
  const ended = store
    .having("finished")
    .filter((record) => !isOwn(record) && matches(record))
    .sort((one, other) => other.finish - one.finish)
    .slice(0, 12);
  return html`<${Rows} title="Running" records=${running} hint="Nothing runs." />
    ${waiting.length
      ? html`<${Rows} title="Waiting, in order of arrival" records=${waiting} />`
      : null}
    ${ended.length ? html`<${Ended} records=${ended} />` : null}`;
});

/** How many ended in the time that the figures above are about. */
function endedLately(listed) {
  const late = store
    .having("finished")
    .filter((record) => store.now - record.finish <= MINUTE && !isOwn(record)).length;
  const more = late < listed ? `; the latest ${count(listed)} are listed` : "";
  return `${late ? count(late) : "none"} in the last minute${more}`;
}

const Ended = ({ records }) =>
  html`<section class="panel">
    <h2>
      Ended lately
      <span class="muted num">${endedLately(records.length)}</span>
    </h2>
    <table class="list">
      <colgroup>
        <col style=${{ width: "84px" }} />
        <col />
        <col />
        <col class="wide" />
        <col style=${{ width: "14%" }} />
        <col style=${{ width: "96px" }} />
        <col class="wide" />
      </colgroup>
      <thead>
        <tr>
          <th>request</th>
          <th class="n">took</th>
          <th class="n">TTFT</th>
          <th class="n wide">prompt</th>
          <th class="n">output</th>
          <th class="n">longest gap</th>
          <th class="n wide">end</th>
        </tr>
      </thead>
      <tbody>
        ${records.map(
          (record) =>
            html`<tr
              key=${record.number}
              class="leads"
              aria-selected=${selected.value?.id === record.id}
              onClick=${() => selectRequest(record.id)}
            >
              <td class="mono">
                <button class="link" onClick=${() => selectRequest(record.id)}>
                  ${shortId(record.id)}
                </button>
              </td>
              <td class="n">${time(record.finish - record.arrival)}</td>
              <td class="n">
                ${record.firstToken === null ? "" : time(record.firstToken - record.arrival)}
              </td>
              <td class="n wide">${count(record.prompt)}</td>
              <td class="n">${count(record.output)}</td>
              <td class="n"><${LongestGap} record=${record} /></td>
              <td class=${`n wide ${record.reason === "error" ? "held" : "muted"}`}>
                ${record.reason}
              </td>
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
