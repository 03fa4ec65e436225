// Which figure says what.

import { html, signal, view } from "../../lib/html.js";
import { go } from "../../lib/address.js";
import { count, percentile, short, time } from "../../lib/format.js";
import { Bars, experiment, Slider } from "./parts.js";
import { median, simulate } from "./server.js";

const RATES = [2, 4, 6, 8, 10, 12, 16];
const REQUESTS = 48;
const OUTPUT = 120;
const PLACES = 8;
const rate = signal(8);
const engines = signal(1);

async function loaded(perSecond, replicas) {
  const requests = Array.from({ length: REQUESTS }, (_, at) => ({
    arrival: at / perSecond,
    prompt: 256,
    output: OUTPUT,
  }));
  const run = await simulate({ requests, max_num_seqs: PLACES, replicas });
  const ttft = run.requests.map((one) => one.ttft).sort((one, other) => one - other);
  return {
    rate: perSecond,
    ttft: percentile(ttft, 0.95),
    tpot: median(run.requests.map((one) => one.tpot)),
    queue: Math.max(...run.steps.waiting),
    throughput: (REQUESTS * OUTPUT) / run.seconds,
  };
}

const trial = experiment(async () => {
  const rows = [];
  for (const perSecond of RATES) rows.push(await loaded(perSecond, engines.value));
  return { engines: engines.value, rows };
});

const answer = experiment(async () => {
  engines.value = 2;
  await trial.start();
  return { one: await loaded(16, 1), two: await loaded(16, 2) };
});

const Figure = view(() => {
  const found = trial.result.value;
  const bars = (head, label, kind, value, shown) =>
    html`<${Bars}
      label=${label}
      head=${["requests a second", head]}
      rows=${found.rows.map((row) => ({
        name: String(row.rate),
        shown: shown(row),
        parts: [[kind, value(row)]],
        mark: row.rate === rate.value,
      }))}
    />`;
  const chosen = found?.rows.find((row) => row.rate === rate.value);
  return html`<${Slider}
      name="load"
      value=${rate.value}
      values=${RATES}
      set=${(value) => {
        rate.value = value;
      }}
      shown=${`${rate.value} a second`}
    />
    <${Slider}
      name="engines"
      value=${engines.value}
      values=${[1, 2]}
      set=${(value) => {
        engines.value = value;
        trial.later();
      }}
    />
    ${
      found &&
      html`<dl class="facts">
          <dt>TTFT, 95 of 100 are faster</dt>
          <dd>${time(chosen.ttft)}</dd>
          <dt>TPOT, the median</dt>
          <dd>${time(chosen.tpot)}</dd>
          <dt>longest queue</dt>
          <dd>${count(chosen.queue)}</dd>
          <dt>tokens a second</dt>
          <dd>${short(chosen.throughput)}</dd>
        </dl>
        ${bars(
          "TTFT P95",
          "Time to first token by load",
          "prefill",
          (row) => row.ttft,
          (row) => time(row.ttft),
        )}
        ${bars(
          "TPOT",
          "Time per output token by load",
          "decode",
          (row) => row.tpot,
          (row) => time(row.tpot),
        )}
        ${bars(
          "tokens a second",
          "Output tokens a second by load",
          "decode",
          (row) => row.throughput,
          (row) => short(row.throughput),
        )}
        <p class="muted">
          Simulated with this server's scheduler: Llama 3.1 8B
          on ${found.engines} ${found.engines === 1 ? "H100" : "H100s"}, ${PLACES} places
          each, ${REQUESTS} requests.
        </p>`
    }`;
});

export const watching = {
  id: "what-to-watch",
  title: "What to watch",
  lead: "Four figures say how a server is.",
  trial,
  Figure,
  Text: view(
    () =>
      html`<p>
          <b>TTFT</b>, the time to the first token, is queue and prefill: how long somebody looks at
          nothing. <b>TPOT</b>, the time per output token, is decode: how fast the text flows.
        </p>
        <p>
          The <b>queue</b> says whether more comes than the server can do. ${" "}
          <b>KV occupancy</b> says how many more requests fit. All four stand on the page${" "}
          <a
            href="#/live"
            onClick=${(event) => {
              event.preventDefault();
              go("live");
            }}
            >Live</a
          >, beside their targets where there are some.
        </p>`,
  ),
  predict: {
    ask: "The load goes from 8 requests a second to 16, and this engine can do about 8. Which" +
      " figure gives the alarm?",
    choices: ["TPOT: text flows half as fast", "TTFT: many times longer", "Tokens a second: fewer"],
  },
  outcome({ rows }) {
    const [low, high] = [8, 16].map((load) => rows.find((row) => row.rate === load));
    const ttft = high.ttft / low.ttft;
    const tpot = high.tpot / low.tpot;
    const isTTFT = ttft > tpot && ttft > low.throughput / high.throughput;
    return {
      right: isTTFT ? 1 : tpot > 1.5 ? 0 : 2,
      say:
        `TTFT: from ${time(low.ttft)} to ${time(high.ttft)}, and it grows as long as the load` +
        ` lasts. TPOT hardly moves: ${time(low.tpot)} and ${time(high.tpot)}, since running` +
        " requests keep their places. Tokens a second stay at what the engine can do:" +
        ` ${short(high.throughput)}.`,
    };
  },
  question: "A second engine joins. Which figure shows it?",
  answer,
  show() {
    rate.value = 16;
    return answer.start();
  },
  reply: ({ one, two }) =>
    `At 16 a second TTFT falls from ${time(one.ttft)} to ${time(two.ttft)}, and tokens a second` +
    ` rise from ${short(one.throughput)} to ${short(two.throughput)}. TPOT stays at` +
    ` ${time(two.tpot)}: more engines end the queue; a single answer comes no faster.`,
};
