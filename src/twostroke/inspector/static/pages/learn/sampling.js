// From the model's distribution to one token.

import { html, signal, view } from "../../lib/html.js";
import { foreign, short } from "../../lib/format.js";
import { Bars, experiment, Legend, Slider } from "./parts.js";
import { complete } from "./server.js";

const TEMPERATURES = [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3];
const KEPT = [1, 2, 3, 5, 8, 12];
const DRAWS = 40;
const MAX_LETTERS = 400;
const text = signal("The server keeps the");
const temperature = signal(1);
const kept = signal(12);

/** Probabilities of the likeliest tokens after temperature, among the first `most`. */
export function reshaped(logprobs, heat, most) {
  const head = logprobs.slice(0, most);
  if (heat === 0) return head.map((_, at) => (at ? 0 : 1));
  const weights = head.map((value) => Math.exp((value - head[0]) / heat));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

async function distribution(prompt) {
  const found = await complete({ prompt, max_tokens: 1, logprobs: 20 });
  return Object.entries(found.choices[0].logprobs.top_logprobs[0])
    .sort((one, other) => other[1] - one[1])
    .slice(0, KEPT.at(-1));
}

async function draw(prompt, heat, most) {
  const body = { prompt, max_tokens: 1, n: DRAWS, temperature: heat, top_k: most, top_p: 1 };
  const found = await complete({ ...body, seed: Math.floor(1e9 * Math.random()) });
  const counts = new Map();
  for (const choice of found.choices) counts.set(choice.text, (counts.get(choice.text) ?? 0) + 1);
  return counts;
}

const trial = experiment(async () => {
  const settings = { heat: temperature.value, most: kept.value };
  const tokens = await distribution(text.value);
  return { ...settings, tokens, drawn: await draw(text.value, settings.heat, settings.most) };
});

const answer = experiment(async () => {
  temperature.value = 0;
  await trial.start();
  const drawn = await draw(text.value, 0, kept.value);
  return [...drawn].sort((one, other) => other[1] - one[1]);
});

const named = (token) => `“${foreign(token, 16).replaceAll(" ", "\u00a0")}”`;
const percent = (share) => `${short(100 * share)} %`;

const Figure = view(() => {
  const found = trial.result.value;
  const change = (setting) => (value) => {
    setting.value = value;
    trial.later();
  };
  const shares = found
    ? reshaped(
        found.tokens.map((token) => token[1]),
        found.heat,
        found.most,
      )
    : [];
  return html`<label for="learn-prompt">The text so far</label>
    <textarea
      id="learn-prompt"
      rows="2"
      maxlength=${MAX_LETTERS}
      value=${text.value}
      onInput=${(event) => {
        if (event.target.value) change(text)(event.target.value.slice(0, MAX_LETTERS));
      }}
    ></textarea>
    <${Slider}
      name="temperature"
      value=${temperature.value}
      values=${TEMPERATURES}
      set=${change(temperature)}
      shown=${String(temperature.value)}
    />
    <${Slider}
      name="top-k"
      value=${kept.value}
      values=${KEPT}
      set=${change(kept)}
      shown=${String(kept.value)}
    />
    ${
      found &&
      html`<${Bars}
          label="Probability of the likeliest next tokens, and how often each was drawn"
          head=${["next token", `chance, drawn of ${DRAWS}`]}
          rows=${shares.map((share, at) => {
            const times = found.drawn.get(found.tokens[at][0]) ?? 0;
            return {
              name: named(found.tokens[at][0]),
              shown: `${percent(share)}, ${times}`,
              parts: [["decode", share]],
            };
          })}
        />
        <${Legend} items=${[["decode", "the chance after temperature and top-k"]]} />
        <p>
          <button onClick=${() => trial.start()}>Draw ${DRAWS} again</button>
        </p>`
    }`;
});

export const sampling = {
  id: "sampling",
  title: "Sampling",
  lead: "The model gives chances. The server draws.",
  needsModel: true,
  trial,
  Figure,
  Text: view(
    () =>
      html`<p>
          A pass ends with a number for each piece of the vocabulary. Made into probabilities, they
          say how likely each is to come next. Then one is <b>drawn</b>, and the model knows nothing
          of the draw until it reads the token in the next pass.
        </p>
        <p>
          <b>Temperature</b> reshapes the chances before the draw: below 1 the likely ones gain,
          above 1 the rare ones. <b>Top-k</b> allows the k likeliest alone. The figure shows the
          chances, and ${DRAWS} real draws of this server.
        </p>`,
  ),
  predict: {
    ask: "The temperature goes from 1 to 2. What happens to the likeliest token's chance?",
    choices: ["It rises", "It stays", "It falls"],
  },
  outcome({ tokens, most }) {
    const logprobs = tokens.map((token) => token[1]);
    const [one] = reshaped(logprobs, 1, most);
    const [two] = reshaped(logprobs, 2, most);
    return {
      right: two > one + 1e-6 ? 0 : two < one - 1e-6 ? 2 : 1,
      say:
        `${named(tokens[0][0])} goes from ${percent(one)} to ${percent(two)} (of the ${most}` +
        " likeliest). Heat evens the chances out; the order stays. Move the slider, and watch the" +
        " draws follow.",
    };
  },
  question: `At temperature 0, how many different tokens do ${DRAWS} draws give?`,
  answer,
  show: () => answer.start(),
  reply: (drawn) =>
    `${drawn.length}: ${drawn.map(([token, times]) => `${named(token)} ${times} times`)}.` +
    " Temperature 0 always takes the likeliest. That makes answers repeat; it makes none of them" +
    " true.",
};
