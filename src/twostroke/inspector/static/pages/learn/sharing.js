// Many requests in one pass, and long prompts in pieces.

import { html, signal, view } from "../../lib/html.js";
import { count, short, time } from "../../lib/format.js";
import { Bars, experiment, Lanes, Legend, Place, Slider, usualGap } from "./parts.js";
import { decodeSeconds, place, placeName, simulate, steps } from "./server.js";

// ---- batching ----------------------------------------------------------------------------------

const BATCHES = [1, 2, 4, 8, 16];
const TOKENS = 32;
const LENGTHS = [120, 30, 60, 20, 90, 40, 30, 110];
const PLACES = [1, 2, 4, 8];
const places = signal(4);

const batchingTrial = experiment(async () => {
  const where = place();
  const rows = [];
  for (const batch of BATCHES) {
    const found = await steps(64, TOKENS, batch, where);
    rows.push({ batch, seconds: decodeSeconds(found, batch) });
  }
  const gpu = async (batch) => decodeSeconds(await steps(64, TOKENS, batch, "h100"), batch);
  return { where, rows, onGPU: (await gpu(16)) / (await gpu(1)) };
});

const batchingAnswer = experiment(async () => {
  const question = {
    requests: LENGTHS.map((output) => ({ prompt: 64, output })),
    max_num_seqs: places.value,
  };
  return {
    places: places.value,
    fixed: await simulate({ ...question, batching: "static" }),
    continuous: await simulate(question),
  };
});

const BatchingFigure = view(() => {
  const found = batchingTrial.result.value;
  const both = batchingAnswer.result.value;
  return html`<${Place} changed=${() => batchingTrial.start()} />
    ${
      found &&
      html`<${Bars}
          label="Time of a step, by the number of requests in it"
          head=${["requests in a step", "time of the step"]}
          rows=${found.rows.map((row) => ({
            name: String(row.batch),
            shown: time(row.seconds),
            parts: [["decode", row.seconds]],
          }))}
        />
        <${Bars}
          label="Tokens a second of all requests together"
          head=${["requests in a step", "tokens a second"]}
          rows=${found.rows.map((row) => ({
            name: String(row.batch),
            shown: short(row.batch / row.seconds),
            parts: [["decode", row.batch / row.seconds]],
          }))}
        />
        <p class="muted">${placeName(found.where)}</p>`
    }
    ${
      both &&
      html`<${Slider}
          name="places"
          value=${places.value}
          values=${PLACES}
          set=${(value) => {
            places.value = value;
            batchingAnswer.later();
          }}
        />
        <${Lanes}
          title=${`Static, the next batch waits for the last: ${time(both.fixed.seconds)}`}
          run=${both.fixed}
          until=${both.fixed.seconds}
          label=${`Eight requests in ${both.places} places under static batching`}
        />
        <${Lanes}
          title=${`Continuous, a free place is taken: ${time(both.continuous.seconds)}`}
          run=${both.continuous}
          until=${both.fixed.seconds}
          label=${`The same under continuous batching`}
        />
        <${Legend}
          items=${[
            ["prefill", "prefill"],
            ["decode", "a token"],
            ["waiting", "waits"],
          ]}
        />
        <p class="muted">Simulated with this server's scheduler: Llama 3.1 8B on an H100.</p>`
    }`;
});

export const batching = {
  id: "batching",
  title: "Batching",
  lead: "One pass can serve many.",
  trial: batchingTrial,
  Figure: BatchingFigure,
  Text: view(
    () =>
      html`<p>
          A decode pass reads all weights to make one token. Once they are there, they can serve
          other requests as well: a pass takes the newest token of each running request. This
          is <b>batching</b>, and it is why one machine can answer many people.
        </p>
        <p>
          The gain lasts while memory is what the pass waits for. With enough requests, arithmetic
          becomes the limit, and a step grows with each.
        </p>`,
  ),
  predict: {
    ask: "One request decodes alone. Now 16 decode together. How much longer is each step?",
    choices: ["Less than 1.5 times", "1.5 to 8 times", "8 times or more"],
  },
  outcome({ rows, where, onGPU }) {
    const [one, many] = [rows[0].seconds, rows.at(-1).seconds];
    const ratio = many / one;
    return {
      right: ratio < 1.5 ? 0 : ratio < 8 ? 1 : 2,
      say:
        `${short(ratio)} times, and it gives 16 times as many tokens: ${short(16 / ratio)} times` +
        ` the tokens a second (${placeName(where)}).` +
        (where === "here"
          ? ` On a simulated H100 a step takes ${short(onGPU)} times as long: it has more` +
            " arithmetic to spare."
          : " Each of the 16 hardly notices the others."),
    };
  },
  question: "Some answers are short. What happens to their places in the batch?",
  answer: batchingAnswer,
  show: () => batchingAnswer.start(),
  reply: ({ places: number, fixed, continuous }) =>
    `With ${number} ${number === 1 ? "place" : "places"}, static batching takes` +
    ` ${time(fixed.seconds)}, continuous batching ${time(continuous.seconds)}: ` +
    (fixed.seconds > continuous.seconds * 1.001
      ? "a place that is free for one step is taken in the next. This server decides anew before" +
        " each step."
      : "here no place is ever left empty, so both are equal.") +
    " Change the places below the bars.",
};

// ---- chunking ----------------------------------------------------------------------------------

const READERS = 4;
const LONG = [2000, 4000, 8000, 16000];
const CHUNKS = [128, 256, 512, 1024, 2048, 4096, 16384];
const long = signal(8000);
const chunk = signal(16384);
const WHOLE = 16384;

const chunked = (prompt, budget) =>
  simulate({
    requests: [
      ...Array(READERS).fill({ prompt: 64, output: 100 }),
      { arrival: 0.2, prompt, output: 16 },
    ],
    max_num_batched_tokens: budget,
  });

const chunkingTrial = experiment(async () => {
  const run = await chunked(long.value, chunk.value);
  return { run, prompt: long.value, chunk: chunk.value };
});

const chunkingAnswer = experiment(async () => {
  chunk.value = 512;
  await chunkingTrial.start();
  return {
    prompt: long.value,
    whole: await chunked(long.value, WHOLE),
    pieces: await chunked(long.value, 512),
  };
});

const worst = (run) => run.requests[0].worst_gap;
const ChunkingFigure = view(() => {
  const found = chunkingTrial.result.value;
  const change = (setting) => (value) => {
    setting.value = value;
    chunkingTrial.later();
  };
  return html`<${Slider}
      name="long prompt"
      value=${long.value}
      values=${LONG}
      set=${change(long)}
      shown=${`${count(long.value)} tokens`}
    />
    <${Slider}
      name="token budget"
      value=${chunk.value}
      values=${CHUNKS}
      set=${change(chunk)}
    />
    ${
      found &&
      html`<${Lanes}
          run=${found.run}
          names=${[...Array.from({ length: READERS }, (_, at) => `reader ${at + 1}`), "long one"]}
          label=${`Four answers and a long prompt; the longest gap is ${time(worst(found.run))}`}
        />
        <${Legend}
          items=${[
            ["prefill", "prefill"],
            ["decode", "a token"],
            ["alarm", "a gap that readers see"],
          ]}
        />
        <dl class="facts">
          <dt>longest gap of the four</dt>
          <dd>${time(worst(found.run))}</dd>
          <dt>usual gap</dt>
          <dd>${time(usualGap(found.run))}</dd>
          <dt>first token of the long one</dt>
          <dd>${time(found.run.requests[READERS].ttft)}</dd>
        </dl>
        <p class="muted">Simulated with this server's scheduler: Llama 3.1 8B on an H100.</p>`
    }`;
});

export const chunking = {
  id: "chunking",
  title: "Chunking",
  lead: "A long prompt can make everybody wait.",
  trial: chunkingTrial,
  Figure: ChunkingFigure,
  Text: view(
    () =>
      html`<p>
          Prompts and answers share the same passes. A pass ends for all of its requests together.
          So when a long prompt goes through in one piece, everybody who is being answered waits for
          it: the text stutters.
        </p>
        <p>
          The server may cut the prompt. A <b>token budget</b> limits each step; decodes go first,
          and the prompt gets what is left, chunk by chunk.
        </p>`,
  ),
  predict: {
    ask: "Four answers are being written. A prompt of 8,000 tokens arrives and runs in one" +
      " piece. For how long do the four stand still?",
    choices: ["They do not notice", "2 to 5 usual gaps", "More than 20 usual gaps"],
  },
  outcome({ run }) {
    const ratio = worst(run) / usualGap(run);
    return {
      right: ratio < 2 ? 0 : ratio < 20 ? 1 : 2,
      say:
        `${time(worst(run))}: ${short(ratio)} usual gaps of ${time(usualGap(run))}. One long pass` +
        " stands between two of their tokens. Now lower the budget.",
    };
  },
  question: "What do small chunks cost?",
  answer: chunkingAnswer,
  show: () => chunkingAnswer.start(),
  reply: ({ prompt, whole, pieces }) =>
    `With a budget of 512 the longest gap falls from ${time(worst(whole))} to` +
    ` ${time(worst(pieces))}. The prompt of ${count(prompt)} tokens waits longer for its own` +
    ` first token: ${time(pieces.requests[READERS].ttft)} instead of` +
    ` ${time(whole.requests[READERS].ttft)}, since each chunk is a pass with its fixed part.` +
    " Somebody always waits; the budget chooses who.",
};
