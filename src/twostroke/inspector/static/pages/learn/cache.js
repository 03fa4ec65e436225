// The KV cache, which makes decode possible.

import { html, signal, view } from "../../lib/html.js";
import { bytes, count, short, time } from "../../lib/format.js";
import { description } from "../../lib/source.js";
import { Bars, Curves, experiment, Legend, Place, Slider } from "./parts.js";
import { median, place, placeName, prefillSeconds, simulate, steps, sum } from "./server.js";

const START = 128;
const ANSWERS = [32, 64, 128, 256];
const length = signal(128);
const POINTS = 4;

const cacheTrial = experiment(async () => {
  const where = place();
  const tokens = length.value;
  const withCache = await steps(START, tokens, 1, where);
  const rest = withCache.filter((step) => !step.prompt);
  const without = [];
  for (let point = 0; point <= POINTS; point += 1) {
    const at = Math.round(((tokens - 1) * point) / POINTS);
    without.push([at, await prefillSeconds(START + at, where)]);
  }
  const area = without
    .slice(1)
    .reduce(
      (total, [at, seconds], index) =>
        total + ((at - without[index][0]) * (seconds + without[index][1])) / 2,
      0,
    );
  return {
    where,
    tokens,
    without,
    withCache: smooth(rest),
    secondsWith: sum(withCache, "seconds"),
    secondsWithout: area + without[0][1],
    computedWith: START + tokens - 1,
    computedWithout: START * tokens + (tokens * (tokens - 1)) / 2,
  };
});

/** Medians of some neighbours: single steps of a busy machine would hide the level. */
function smooth(rest) {
  const size = Math.max(1, Math.ceil(rest.length / 16));
  const points = [];
  for (let at = 0; at < rest.length; at += size) {
    const part = rest.slice(at, at + size).map((step) => step.seconds);
    points.push([at + 1, median(part)]);
  }
  return points;
}

const cacheAnswer = experiment(async () => {
  const found = description.value.configuration;
  const { device } = await simulate({ requests: [{ prompt: 128, output: 16 }] });
  return {
    here: found?.kv_bytes_per_token ? [found.kv_bytes_per_token, found.weight_bytes] : null,
    big: [device.kv_bytes_per_token, device.weight_bytes],
  };
});

const aboutCurves = ({ withCache, without }) =>
  `Time of each output token: with the cache ${time(withCache[0][1])}; without it up to` +
  ` ${time(without[POINTS][1])}`;

const CacheFigure = view(() => {
  const found = cacheTrial.result.value;
  return html`<${Place} changed=${() => cacheTrial.start()} />
    <${Slider}
      name="answer"
      value=${length.value}
      values=${ANSWERS}
      set=${(tokens) => {
        length.value = tokens;
        cacheTrial.later();
      }}
      shown=${`${length.value} tokens`}
    />
    ${
      found &&
      html`<p>Time of each output token</p>
        <${Curves}
          label=${aboutCurves(found)}
          unit=${time}
          across="tokens of the answer"
          lines=${[
            { kind: "prefill", points: found.without, dots: true },
            { kind: "decode", points: found.withCache },
          ]}
        />
        <${Legend}
          items=${[
            ["prefill", "without: all tokens so far, again"],
            ["decode", "with the cache: the newest token alone"],
          ]}
        />
        <${Bars}
          label="Tokens that go through the model for the whole answer"
          head=${["through the model", "tokens"]}
          rows=${[
            {
              name: "with",
              shown: count(found.computedWith),
              parts: [["decode", found.computedWith]],
            },
            {
              name: "without",
              shown: count(found.computedWithout),
              parts: [["prefill", found.computedWithout]],
            },
          ]}
        />
        <p class="muted">
          ${placeName(found.where)}. Without: prompts of the same length were computed afresh
          at ${POINTS + 1} points; the line joins them.
        </p>`
    }`;
});

export const cache = {
  id: "kv-cache",
  title: "KV cache",
  lead: "What is computed once is kept.",
  trial: cacheTrial,
  Figure: CacheFigure,
  Text: view(
    () =>
      html`<p>
          In each layer a token leaves a <b>key</b> and a <b>value</b>, which later tokens look at.
          They never change, as no token looks ahead. So the server keeps them: the <b>KV cache</b>.
          A pass then takes the newest token alone.
        </p>
        <p>
          Without it, each output token would need a pass over the whole text so far. That can be
          tried: a fresh prompt as long as the text so far is exactly that pass.
        </p>`,
  ),
  predict: {
    ask: "A prompt of 128 tokens, an answer of 128. Without the cache, how many times as many" +
      " tokens go through the model?",
    choices: ["2 times", "10 times", "About 100 times"],
  },
  outcome(found) {
    const ratio = found.computedWithout / found.computedWith;
    return {
      right: ratio < 5 ? 0 : ratio < 40 ? 1 : 2,
      say:
        `${short(ratio)} times: ${count(found.computedWithout)} against` +
        ` ${count(found.computedWith)}. In time: about ${time(found.secondsWithout)} against` +
        ` ${time(found.secondsWith)} (${placeName(found.where)}).`,
    };
  },
  question: "And what does the cache cost?",
  answer: cacheAnswer,
  show: () => cacheAnswer.start(),
  reply({ here, big }) {
    const cost = ([token, weights], name) =>
      `${name}: ${bytes(token)} a token, so ${bytes(8192 * token)} for a context of 8,192; the` +
      ` weights are ${bytes(weights)}. `;
    const own = here ? cost(here, "This model") : "";
    return `Memory. ${own}${cost(big, "Llama 3.1 8B")}Memory, not arithmetic, says how many can` +
      ` be served at once.`;
  },
};
