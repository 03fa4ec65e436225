// The engines of a live server: how each is at the moment, and the last two minutes.

import { html, signal, view } from "../lib/html.js";
import { askAgain } from "../lib/ask_again.js";
import { count, foreign, short } from "../lib/format.js";
import { api, description, seesAll } from "../lib/source.js";
import { Strips } from "./fleet_strips.js";

const EVERY_MS = 1000;
const STATES = {
  ready: ["on", "ready"],
  left_out: ["off", "left out"],
  starting: ["", "starts"],
  leaving: ["", "leaving"],
  asleep: ["", "asleep"],
  down: ["off", "down"],
};
const ROLES = { both: "all", prefill: "prefill", decode: "decode" };
const SICK = { left_out: "gets no requests for a while", down: "is down" };

/** The latest answer of `/v1/inspect/engines`; null: none. */
export const engines = signal(null);

/** Whether they are to be shown: several, or one that is a process of its own. */
export const hasEngines = () =>
  engines.value !== null && (engines.value.engines.length > 1 || !!engines.value.engines[0].where);

/** Ask while somebody looks; returns what ends it. */
export function watchEngines() {
  const about = () =>
    description.value?.kind === "live" && seesAll() ? { key: "", changes: true } : null;
  return askAgain(EVERY_MS, about, async () => {
    const found = await (await api("/engines")).json();
    const several = new Set(found.engines.map((each) => each.model)).size > 1;
    found.names = found.engines.map(
      ({ model, engine }) => `${several ? `${foreign(model, 24)} ` : ""}${foreign(engine, 40)}`,
    );
    engines.value = found;
  }).stop;
}

function lead({ engines: all, names }) {
  const number = all.filter((each) => each.state === "ready").length;
  const words = `${count(number)} of ${count(all.length)} engines take requests.`;
  const sick = all.findIndex((each) => each.state in SICK);
  if (sick >= 0) {
    const why = all[sick].reason ? `: ${foreign(all[sick].reason, 200)}` : "";
    return `${words} Engine ${names[sick]} ${SICK[all[sick].state]}${why}.`;
  }
  const loads = all.map((each) => each.running + each.waiting);
  const sum = loads.reduce((total, load) => total + load, 0);
  if (!sum) return `${words} All are idle.`;
  const busiest = loads.indexOf(Math.max(...loads));
  return (
    `${words} The busiest, engine ${names[busiest]}, has ${count(loads[busiest])} of` +
    ` ${count(sum)} requests: ${short((loads[busiest] * all.length) / sum)} times its share.`
  );
}

const COLUMNS = [
  // title, what it says, value, class
  ["role", "Which part of requests it computes.", (one) => ROLES[one.role], "wide"],
  ["running", "Requests that hold blocks.", (one) => count(one.running), "n"],
  ["waiting", "Requests that wait there for room.", (one) => count(one.waiting), "n wide"],
  ["KV", "Share of its KV blocks that requests hold.", (one) => `${short(100 * one.kv)} %`, "n"],
  [
    "prefix hits",
    "Share of all prompt tokens, since it started, that its prefix cache held.",
    ({ prefix_queries: all, prefix_hits: hits }) => (all ? `${short((100 * hits) / all)} %` : "–"),
    "n wide",
  ],
  ["sent", "Requests that the router sent to it first.", (one) => count(one.sent), "n wide"],
  [
    "moved in",
    "Requests that went on in it: from an engine that ended, leaves, or computes prompts.",
    (one) => count(one.came),
    "n wide",
  ],
  ["moved out", "Requests of it that went on in another.", (one) => count(one.left), "n wide"],
  ["failed", "How often it has ended by itself, or was lost.", (one) => count(one.failures), "n"],
];

const EngineRow = ({ one, name }) => {
  const [dot, word] = STATES[one.state] ?? ["", foreign(one.state)];
  return html`<tr>
    <td>${name}</td>
    <td class="fleet-why">
      <span class=${`fleet-chip dot ${dot}`}></span>${word}
      ${one.reason ? html`<span class="muted">: ${foreign(one.reason, 200)}</span>` : null}
    </td>
    ${COLUMNS.map(
      ([title, , value, kind]) =>
        html`<td
          key=${title}
          class=${title === "failed" && one.failures ? `${kind} held` : kind}
        >
          ${value(one)}
        </td>`,
    )}
  </tr>`;
};

export const LiveEngines = view(() => {
  const found = engines.value;
  return html`<p class="lead">${lead(found)}</p>
    <section class="panel">
      <h2>
        Engines <span class="muted">at the moment</span>
        <details class="how">
          <summary aria-label="What is this?"></summary>
          <p>
            An engine that is left out runs, but has failed again and again: it gets no requests for
            a growing time, then one.${" "}
            ${COLUMNS.map(([title, words]) => html`<b>${title}</b>: ${words} `)}
          </p>
        </details>
      </h2>
      <table class="list fleet-engines">
        <thead>
          <tr>
            <th>engine</th>
            <th>state</th>
            ${COLUMNS.map(
              ([title, , , kind]) => html`<th key=${title} class=${kind}>${title}</th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${found.engines.map(
            (one, number) =>
              html`<${EngineRow} key=${number} one=${one} name=${found.names[number]} />`,
          )}
        </tbody>
      </table>
    </section>
    <${Strips} levels=${found} />`;
});
