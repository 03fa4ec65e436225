// The two strokes, prefill and decode.

import { html, signal, view } from "../../lib/html.js";
import { count, short, time } from "../../lib/format.js";
import { description } from "../../lib/source.js";
import { Bars, experiment, Legend, Place, Slider } from "./parts.js";
import { decodeSeconds, place, placeName, prefillSeconds, steps, sum } from "./server.js";

// ---- prefill -----------------------------------------------------------------------------------

const LENGTHS = [16, 64, 256, 1024];
const OWN = [32, 128, 384, 512, 768, 1536, 2048, 3072, 4096];
const own = signal(512);
const eachToken = signal(false);

const prefillTrial = experiment(async () => {
  const where = place();
  const longest = description.value?.configuration?.max_model_len ?? 1e9;
  const lengths = [...LENGTHS, own.value].filter((tokens) => where !== "here" || tokens < longest);
  const rows = [];
  for (const tokens of lengths) rows.push({ tokens, seconds: await prefillSeconds(tokens, where) });
  const gpu = [await prefillSeconds(16, "h100"), await prefillSeconds(1024, "h100")];
  return { where, rows, onGPU: gpu[1] / gpu[0] };
});

const prefillAnswer = experiment(async () => {
  eachToken.value = true;
  const where = place();
  const cost = async (tokens, at) => (await prefillSeconds(tokens, at)) / tokens;
  return {
    few: await cost(16, where),
    many: await cost(1024, where),
    gpu: [await cost(16, "h100"), await cost(1024, "h100")],
    where,
  };
});

const PrefillFigure = view(() => {
  const found = prefillTrial.result.value;
  const value = (row) => (eachToken.value ? row.seconds / row.tokens : row.seconds);
  return html`<${Place} changed=${() => prefillTrial.start()} />
    <${Slider}
      name="your prompt"
      value=${own.value}
      values=${OWN}
      set=${(tokens) => {
        own.value = tokens;
        prefillTrial.later();
      }}
      shown=${`${count(own.value)} tokens`}
    />
    <p class="choice">
      <button
        aria-pressed=${String(eachToken.value)}
        onClick=${() => {
          eachToken.value = !eachToken.value;
        }}
      >
        Time of one token
      </button>
    </p>
    ${
      found &&
      html`<${Bars}
          label="Seconds of the prefill of prompts of several lengths"
          head=${["prompt", eachToken.value ? "time of a token" : "time of the prefill"]}
          rows=${found.rows.map((row, at) => ({
            name: `${count(row.tokens)} tokens`,
            shown: time(value(row)),
            parts: [["prefill", value(row)]],
            mark: at === LENGTHS.length,
          }))}
        />
        <p class="muted">
          ${placeName(found.where)}${found.where === "here" ? "; the best of three tries" : ""}
        </p>`
    }`;
});

export const prefill = {
  id: "prefill",
  title: "Prefill",
  lead: "The first stroke: the whole prompt at once.",
  trial: prefillTrial,
  Figure: PrefillFigure,
  Text: view(
    () =>
      html`<p>
          Before a model can write, it must read. It takes all tokens of the prompt through its
          layers together: this is <b>prefill</b>, drawn blue on all pages.
        </p>
        <p>
          A pass has a fixed part, such as reading all weights from memory, and a part that grows
          with the tokens: arithmetic. A short prompt pays mostly for the first. A long one makes
          good use of it.
        </p>`,
  ),
  predict: {
    ask: "A prompt of 1,024 tokens has 64 times as many as one of 16. How much longer does its" +
      " prefill take?",
    choices: ["About as long", "Up to 40 times", "64 times or more"],
  },
  outcome({ rows, where, onGPU }) {
    const ratio = rows[3].seconds / rows[0].seconds;
    return {
      right: ratio < 1.5 ? 0 : ratio < 40 ? 1 : 2,
      say:
        `${short(ratio)} times: ${time(rows[3].seconds)} against ${time(rows[0].seconds)}` +
        ` (${placeName(where)}). ` +
        (where === "here"
          ? `On a simulated H100 it is ${short(onGPU)} times. A processor is busy with arithmetic` +
            " from the first tokens on; a GPU has so much of it that a short prompt leaves most" +
            " idle."
          : "The GPU has so much arithmetic that a short prompt leaves most of it idle."),
    };
  },
  question: "Does each token of a prompt cost the same?",
  answer: prefillAnswer,
  show: () => prefillAnswer.start(),
  reply: ({ few, many, gpu, where }) =>
    `A token takes ${time(few)} in a prompt of 16 and ${time(many)} in one of 1,024` +
    ` (${placeName(where)}).` +
    (where === "here"
      ? ` On a simulated H100: ${time(gpu[0])} and ${time(gpu[1])}, since many tokens share one` +
        " reading of the weights."
      : " Many tokens share one reading of the weights.") +
    " In very long prompts the price rises again, since each token looks at all before it: try" +
    " 4,096.",
};

// ---- decode ------------------------------------------------------------------------------------

const PROMPT = 256;
const OUTPUTS = [16, 32, 64, 96, 128];
const output = signal(32);

const decodeTrial = experiment(async () => {
  const where = place();
  const found = await steps(PROMPT, output.value, 1, where);
  const prompt = found.filter((step) => step.prompt);
  const rest = found.filter((step) => !step.prompt);
  const gpu = await steps(PROMPT, output.value, 1, "h100");
  return {
    where,
    onGPU: decodeSeconds(gpu) / (gpu[0].seconds / PROMPT),
    output: output.value,
    prompt: sum(prompt, "seconds"),
    answer: sum(rest, "seconds"),
    token: decodeSeconds(found),
    run: asRun(found),
  };
});

/** One request's steps in the form of a simulated run, so that one drawing serves both. */
function asRun(found) {
  const end = found.map((step) => step.begin + step.seconds);
  return { begin: found.map((step) => step.begin), end, steps: found, seconds: Math.max(...end) };
}

const decodeAnswer = experiment(async () => {
  const where = place();
  const early = await steps(32, 24, 1, where);
  const late = await steps(2048, 24, 1, where);
  return { early: decodeSeconds(early), late: decodeSeconds(late), where };
});

const DecodeFigure = view(() => {
  const found = decodeTrial.result.value;
  return html`<${Place} changed=${() => decodeTrial.start()} />
    <${Slider}
      name="answer"
      value=${output.value}
      values=${OUTPUTS}
      set=${(tokens) => {
        output.value = tokens;
        decodeTrial.later();
      }}
      shown=${`${output.value} tokens`}
    />
    ${
      found &&
      html`<${Strokes} run=${found.run} />
        <${Legend}
          items=${[
            ["prefill", "prefill: one pass for the whole prompt"],
            ["decode", "decode: one pass for each token"],
          ]}
        />
        <${Bars}
          label="Time of prompt and answer, and of one token of each"
          head=${["together", "time"]}
          rows=${[
            {
              name: `${PROMPT} prompt tokens`,
              shown: time(found.prompt),
              parts: [["prefill", found.prompt]],
            },
            {
              name: `${found.output} output tokens`,
              shown: time(found.prompt + found.answer),
              parts: [
                ["prefill", found.prompt],
                ["decode", found.answer],
              ],
            },
          ]}
        />
        <${Bars}
          label="Time of one token"
          head=${["one token", "time"]}
          rows=${[
            {
              name: "of the prompt",
              shown: time(found.prompt / PROMPT),
              parts: [["prefill", found.prompt / PROMPT]],
            },
            { name: "of the answer", shown: time(found.token), parts: [["decode", found.token]] },
          ]}
        />
        <p class="muted">${placeName(found.where)}</p>`
    }`;
});

const Strokes = ({ run }) =>
  html`<div
    class="learn-strokes"
    role="img"
    aria-label=${`${run.steps.length} passes, the first one over the prompt`}
  >
    ${run.steps.map(
      (step, at) =>
        html`<i
          key=${at}
          class=${step.prompt ? "prefill" : "decode"}
          style=${{
            left: `${(100 * step.begin) / run.seconds}%`,
            width: `max(1px, calc(${(100 * step.seconds) / run.seconds}% - 1px))`,
          }}
        ></i>`,
    )}
  </div>`;

export const decode = {
  id: "decode",
  title: "Decode",
  lead: "The second stroke: one token a pass.",
  trial: decodeTrial,
  Figure: DecodeFigure,
  Text: view(
    () =>
      html`<p>
          The last token of the prompt gives the first token of the answer. That one must go through
          the model before there can be a second, and so on. This is <b>decode</b>, drawn orange on
          all pages: a pass for each token.
        </p>
        <p>
          Each pass reads all weights of the model from memory, for a single token. On a GPU the
          arithmetic is done long before the weights are there. Prefill is bound by arithmetic,
          decode by memory: nearly everything in this server answers that one difference.
        </p>`,
  ),
  predict: {
    ask: "How much longer does an output token take than a prompt token?",
    choices: ["About as long", "2 to 30 times", "More than 30 times"],
  },
  outcome({ prompt, token, where, onGPU }) {
    const ratio = token / (prompt / PROMPT);
    return {
      right: ratio < 2 ? 0 : ratio <= 30 ? 1 : 2,
      say:
        `${short(ratio)} times: ${time(token)} against ${time(prompt / PROMPT)}` +
        ` (${placeName(where)}).` +
        (where === "here"
          ? ` A small model on a processor shows it mildly. On a simulated H100 it is` +
            ` ${short(onGPU)} times: choose it in the figure.`
          : " A pass for one token reads 16 GB of weights, as the pass for 256 did."),
    };
  },
  question: "Does a token late in a long context cost more than an early one?",
  answer: decodeAnswer,
  show: () => decodeAnswer.start(),
  reply: ({ early, late, where }) =>
    `After 32 tokens a pass takes ${time(early)}, after 2,048 ${time(late)}:` +
    ` ${late > early ? `${short(100 * (late / early - 1))} % more` : "no more"}` +
    ` (${placeName(where)}). Each pass also reads the keys and values of all tokens so far. The` +
    " next chapter is about these.",
};
