// Memory in blocks, and blocks that are shared.

import { html, signal, view } from "../../lib/html.js";
import { count, short, time } from "../../lib/format.js";
import { Bars, experiment, Legend, Place, Slider } from "./parts.js";
import { description } from "../../lib/source.js";
import { place, placeName, promptOf, randomTokens, simulate } from "./server.js";

// ---- paging ------------------------------------------------------------------------------------

// Output tokens of 24 answers: most are short, none is longer than 960.
const ANSWERS = [30, 633, 494, 54, 183, 149, 340, 533, 26, 24, 613, 138];
const MORE = [492, 24, 146, 432, 47, 825, 735, 24, 24, 223, 812, 107];
const SIZES = [16, 64, 256, 1024];
const ROOMS = [4096, 8192, 16384];
const room = signal(8192);

const paged = (size, tokens) =>
  simulate({
    requests: [...ANSWERS, ...MORE].map((output) => ({ prompt: 64, output })),
    kv_tokens: tokens,
    block_size: size,
  });

function sumUp(run) {
  const { running, waste } = run.steps;
  return {
    most: Math.max(...running),
    waste: waste.reduce((sum, share) => sum + share, 0) / waste.length,
    seconds: run.seconds,
    preemptions: run.requests.reduce((sum, request) => sum + request.preemptions, 0),
  };
}

const pagingTrial = experiment(async () => {
  const rows = [];
  for (const size of SIZES) rows.push({ size, ...sumUp(await paged(size, room.value)) });
  return { room: room.value, rows };
});

const pagingAnswer = experiment(async () => {
  room.value = 4096;
  await pagingTrial.start();
  return sumUp(await paged(16, 4096));
});

const PagingFigure = view(() => {
  const found = pagingTrial.result.value;
  const bars = (head, label, value, shown, kind) =>
    html`<${Bars}
      label=${label}
      head=${["block of", head]}
      rows=${found.rows.map((row) => ({
        name: `${count(row.size)} tokens`,
        shown: shown(row),
        parts: [[kind, value(row)]],
      }))}
    />`;
  return html`<${Slider}
      name="memory"
      value=${room.value}
      values=${ROOMS}
      set=${(value) => {
        room.value = value;
        pagingTrial.later();
      }}
      shown=${`${count(room.value)} tokens`}
    />
    ${
      found &&
      html`${bars(
        "most at once",
        "Most requests that ran at once, by block size",
        (row) => row.most,
        (row) => count(row.most),
        "decode",
      )}
      ${bars(
        "reserved and empty",
        "Share of the reserved memory that held nothing, by block size",
        (row) => row.waste,
        (row) => `${short(100 * row.waste)} %`,
        "waiting",
      )}
      ${bars(
        "time for all 24",
        "Time until all 24 answers were written, by block size",
        (row) => row.seconds,
        (row) => time(row.seconds),
        "decode",
      )}
      <dl class="facts">
        <dt>preemptions with blocks of 16</dt>
        <dd>${count(found.rows[0].preemptions)}</dd>
      </dl>
      <p class="muted">Simulated with this server's scheduler: Llama 3.1 8B on an H100.</p>`
    }`;
});

export const paging = {
  id: "paging",
  title: "Paging",
  lead: "Memory for what is there, not for what may come.",
  trial: pagingTrial,
  Figure: PagingFigure,
  Text: view(
    () =>
      html`<p>
          Nobody knows how long an answer will be. Memory for the longest would stay mostly empty.
          So the KV cache is cut
          into <b>blocks</b> of ${count(description.value?.block_size || 16)} tokens, and a request
          gets one more when its last is full. Its blocks may lie anywhere: a table says where.
        </p>
        <p>
          A block of 1,024 tokens is as long as the longest request here, so it is the old way:
          reserve the most for each. The figure runs the same 24 requests with four sizes of block.
        </p>`,
  ),
  predict: {
    ask: "Memory for 8,192 tokens holds 8 requests of 1,024. Most answers are shorter. In blocks" +
      " of 16, how many of the 24 run at once?",
    choices: ["8, as before", "About 12", "All 24"],
  },
  outcome({ rows }) {
    const [small, large] = [rows[0], rows.at(-1)];
    return {
      right: small.most <= large.most ? 0 : small.most < 20 ? 1 : 2,
      say:
        `${small.most} against ${large.most}. Of the reserved memory ${short(100 * small.waste)}` +
        ` % was empty instead of ${short(100 * large.waste)} %, and all answers were there after` +
        ` ${time(small.seconds)} instead of ${time(large.seconds)}.`,
    };
  },
  question: "And when the blocks run out in the middle of an answer?",
  answer: pagingAnswer,
  show: () => pagingAnswer.start(),
  reply: ({ preemptions, seconds }) =>
    `With memory for 4,096 tokens, requests lost their blocks ${count(preemptions)}` +
    ` ${preemptions === 1 ? "time" : "times"}: the server preempts the latest, gives its blocks` +
    " to others, and computes its tokens again later. The answer stays the same, only later: all" +
    ` 24 took ${time(seconds)}.`,
};

// ---- prefix caching ----------------------------------------------------------------------------

const SHARED = 512;
const OWN = 28;
const PLACES = [0, 8, 64, 128, 256, 384, 511, SHARED];
const changed = signal(SHARED);

/** Two prompts after each other, the second different from token `at` on where it says so. */
async function twice(where, at) {
  if (where === "here") {
    const prefix = randomTokens(SHARED);
    const first = await promptOf([...prefix, ...randomTokens(OWN)]);
    const again = [...prefix, ...randomTokens(OWN)];
    if (at < SHARED) again[at] = prefix[at] === 301 ? 302 : 301;
    return { first, second: await promptOf(again) };
  }
  const requests = [0, 1].map((arrival) => ({
    arrival,
    prompt: SHARED + OWN,
    output: 1,
    prefix: at,
  }));
  const run = await simulate({ requests });
  const parts = run.requests.map((request) => ({
    cached: request.cached,
    computed: SHARED + OWN - request.cached,
    seconds: request.ttft,
  }));
  return { first: parts[0], second: parts[1] };
}

const prefixTrial = experiment(async () => {
  const where = place();
  return { where, at: changed.value, ...(await twice(where, changed.value)) };
});

const prefixAnswer = experiment(async () => {
  const where = place();
  changed.value = 8;
  await prefixTrial.start();
  return { where, ...(await twice(where, 8)) };
});

const PrefixFigure = view(() => {
  const found = prefixTrial.result.value;
  const row = (name, part) => ({
    name,
    shown: `${count(part.computed)}, ${time(part.seconds)}`,
    parts: [
      ["cached", part.cached],
      ["prefill", part.computed],
    ],
  });
  return html`<${Place} changed=${() => prefixTrial.start()} />
    <${Slider}
      name="first difference"
      value=${changed.value}
      values=${PLACES}
      set=${(value) => {
        changed.value = value;
        prefixTrial.later();
      }}
      shown=${`token ${count(changed.value)}`}
    />
    ${
      found &&
      html`<${Bars}
          label="Prompt tokens from the cache and computed"
          head=${["request", "computed, in"]}
          rows=${[row("first", found.first), row("second", found.second)]}
        />
        <${Legend}
          items=${[
            ["cached", "found in the cache"],
            ["prefill", "computed"],
          ]}
        />
        <p class="muted">
          ${placeName(found.where)}. Both have ${SHARED + OWN} tokens, and are equal up
          to token ${count(found.at)}.
        </p>`
    }`;
});

export const prefixes = {
  id: "prefix-caching",
  title: "Prefix caching",
  lead: "Who begins alike is computed once.",
  trial: prefixTrial,
  Figure: PrefixFigure,
  Text: view(
    () =>
      html`<p>
          Many requests begin alike: the same instructions, the same document, the same conversation
          so far. Keys and values of a token depend on the tokens before it and on nothing else. So
          full blocks of equal beginnings can be used again.
        </p>
        <p>
          The server names each block by its tokens <b>and all before them</b>. A new prompt looks
          up its blocks from the front, up to the first one that is missing. One token is always
          computed: it gives the first token of the answer.
        </p>`,
  ),
  predict: {
    ask: `Two prompts of ${SHARED + OWN} tokens are equal in the first ${SHARED}. How many does` +
      " the server compute for the second?",
    choices: [`All ${SHARED + OWN}`, `About ${OWN}`, "None"],
  },
  outcome: ({ first, second, where }) => ({
    right: second.computed > 200 ? 0 : second.computed > 0 ? 1 : 2,
    say:
      `${count(second.computed)}: ${count(second.cached)} were cached. Its prefill took` +
      ` ${time(second.seconds)} instead of ${time(first.seconds)} (${placeName(where)}).`,
  }),
  question: "The clock time stands in the first line of the instructions. What is found then?",
  answer: prefixAnswer,
  show: () => prefixAnswer.start(),
  reply: ({ second }) =>
    `A difference at token 8 leaves ${count(second.cached)} cached tokens: all blocks after it` +
    " have another beginning. Put what changes at the end. Move the slider: only whole blocks" +
    " before the difference are found.",
};
