// Where demo traffic is offered, and the line that tells how far it is.

import { computed, html, view } from "../lib/html.js";
import { count, many } from "../lib/format.js";
import { store } from "../lib/store.js";
import { MOST_SECONDS, canSend, forget, isRunning, run, start, stop, whyNot } from "./demo.js";
import { SCENARIOS } from "./scenarios.js";

const Offer = view(({ scenario }) => {
  const why = whyNot(scenario);
  return html`<li>
    <button disabled=${why !== null || isRunning()} onClick=${() => start(scenario.name)}>
      ${scenario.title}
    </button>
    <span class="muted">${why ?? scenario.about}</span>
  </li>`;
});

/** Four buttons, with what each of them shows; nothing where there is no live engine. */
export const DemoOffer = view(() => {
  if (!canSend()) return null;
  return html`<section class="panel demo">
    <h2>Send demo traffic</h2>
    <p class="muted">
      Real requests to this server, from this page: they queue among the others, count towards a
      key's limits, and end after ${MOST_SECONDS} seconds at the latest.
    </p>
    <ul>
      ${SCENARIOS.map((one) => html`<${Offer} key=${one.name} scenario=${one} />`)}
    </ul>
  </section>`;
});

/** Whether nothing has run that a page could show. */
export const isEmpty = computed(() => {
  store.beat.value;
  return !store.length && !store.requests.size;
});

/** The same where a page is empty. */
export const DemoWhereEmpty = view(() => (isEmpty.value ? html`<${DemoOffer} />` : null));

function words({ total, sent, answered, ended, problem }) {
  if (ended === "answered") return `all ${count(total)} are answered.`;
  if (ended === "stopped") return `stopped after ${count(answered)} of ${count(total)} answers.`;
  if (ended === "time") return `its ${MOST_SECONDS} seconds are over; the rest was taken back.`;
  if (ended === "failed") return `the server refused it: ${problem}`;
  if (!total) return "is being prepared.";
  return `${count(sent)} of ${many(total, "request")} sent, ${count(answered)} answered.`;
}

/** On every page while it runs, and until it is closed. */
export const DemoStrip = view(() => {
  const latest = run.value;
  if (!latest) return null;
  const { scenario, ended } = latest;
  const [address, title] = scenario.look;
  return html`<p class=${`demo-strip ${ended === "failed" ? "failed" : ""}`} role="status">
    <span><b>Demo</b> ${scenario.title}: ${words(latest)}</span>
    <a href=${address}>${title}</a>
    ${
      ended
        ? html`<button class="quiet" onClick=${forget}>Close</button>`
        : html`<button onClick=${stop}>Stop</button>`
    }
  </p>`;
});
