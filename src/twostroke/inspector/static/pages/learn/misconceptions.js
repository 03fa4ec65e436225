// The last chapter: sentences that are often heard, each tried out.

import { html, signal, view } from "../../lib/html.js";
import { count, foreign, short, time } from "../../lib/format.js";
import { MORE_CLAIMS } from "./more_claims.js";
import { Bars, experiment, Place } from "./parts.js";
import {
  complete,
  decodeSeconds,
  isLive,
  measured,
  median,
  place,
  placeName,
  simulate,
  steps,
  tokenize,
} from "./server.js";

const GPUS = ["l4", "rtx-4090", "a100-80gb-sxm", "h100-sxm", "h200", "b200"];
const EASY = "Say hello.";
const HARD = "Prove that there are infinitely many primes.";
const TOKENS = 48;
const TEXT = "The server keeps the";

const gpuTrial = experiment(async () => {
  const rows = [];
  for (const gpu of GPUS) {
    const run = await simulate({ requests: [{ prompt: 64, output: 64 }], gpu });
    rows.push({ gpu, ...run.device, speed: 1 / run.requests[0].tpot });
  }
  return rows;
});

/** The same number of tokens of both, in turns, so that other work meets them alike. */
const thinkTrial = experiment(async () => {
  const times = { easy: [], hard: [] };
  for (let turn = 0; turn < 3; turn += 1) {
    for (const [name, prompt] of Object.entries({ easy: EASY, hard: HARD })) {
      times[name].push(decodeSeconds((await measured({ prompt, max_tokens: TOKENS })).steps));
    }
  }
  return {
    easy: median(times.easy),
    hard: median(times.hard),
    prompts: [(await tokenize(EASY)).length, (await tokenize(HARD)).length],
  };
});

const usersTrial = experiment(async () => {
  const where = place();
  const ask = async (number, at) => decodeSeconds(await steps(64, 32, number, at), number);
  return {
    where,
    one: await ask(1, where),
    two: await ask(2, where),
    onGPU: (await ask(2, "h100")) / (await ask(1, "h100")),
  };
});

const contextTrial = experiment(async () => {
  const rows = [];
  for (const prompt of [128, 2048, 8192, 32768]) {
    const run = await simulate({ requests: [{ prompt, output: 64 }] });
    rows.push({ prompt, tpot: run.requests[0].tpot });
  }
  return rows;
});

const truthTrial = experiment(async () => {
  const found = await complete({ prompt: TEXT, max_tokens: 1, logprobs: 5 });
  return Object.entries(found.choices[0].logprobs.top_logprobs[0]).sort(
    (one, other) => other[1] - one[1],
  );
});

/** `verdict` says in numbers what came out; `isTrue`, whether the sentence holds. */
const CLAIMS = [
  {
    id: "gpu",
    say: "“A GPU with twice the arithmetic answers one person twice as fast.”",
    trial: gpuTrial,
    verdict(rows) {
      const [old, ours] = [rows[2], rows[3]];
      const math = ours.flops / old.flops;
      const speed = ours.speed / old.speed;
      const bandwidth = ours.memory_bandwidth / old.memory_bandwidth;
      return {
        isTrue: speed > 0.8 * math,
        text:
          `From A100 to H100 arithmetic grows ${short(math)} times, memory bandwidth` +
          ` ${short(bandwidth)} times, and a single answer gets ${short(speed)} times as fast.` +
          " Decode waits for memory. The arithmetic helps long prompts and many users.",
      };
    },
    show: (rows) => html`<${Bars}
        label="Tokens a second of a single answer, by GPU"
        head=${["one answer", "tokens a second"]}
        rows=${rows.map((row) => ({
          name: row.title.replace(/^NVIDIA /, ""),
          shown: short(row.speed),
          parts: [["decode", row.speed]],
        }))}
      />
      <${Bars}
        label="Arithmetic by GPU, by data sheet"
        head=${["arithmetic", "TFLOP/s, dense"]}
        rows=${rows.map((row) => ({
          name: row.title.replace(/^NVIDIA /, ""),
          shown: count(row.flops / 1e12),
          parts: [["prefill", row.flops]],
        }))}
      />
      <p class="muted">Simulated: Llama 3.1 8B, alone on each device.</p>`,
  },
  {
    id: "think",
    say: "“It thinks harder about a hard question.”",
    needsModel: true,
    trial: thinkTrial,
    verdict: ({ easy, hard, prompts }) => ({
      isTrue: hard > 1.3 * easy,
      text:
        `A token of “${EASY}” (${prompts[0]} tokens) took ${time(easy)}, one of “${HARD}”` +
        ` (${prompts[1]} tokens) ${time(hard)}. ` +
        (hard > 1.3 * easy || easy > 1.3 * hard
          ? "The difference is other work on this machine: try again."
          : "Every token takes one pass through the same layers, whatever it is about. A model" +
            " can spend more on a hard question only by writing more tokens."),
    }),
    show: ({ easy, hard }) => html`<${Bars}
      label="Time of an output token"
      head=${["question", "time of a token"]}
      rows=${[
        { name: "easy", shown: time(easy), parts: [["decode", easy]] },
        { name: "hard", shown: time(hard), parts: [["decode", hard]] },
      ]}
    />`,
  },
  {
    id: "users",
    say: "“Two users at once: each gets half the speed.”",
    trial: usersTrial,
    verdict: ({ one, two, where, onGPU }) => ({
      isTrue: two > 1.8 * one,
      text:
        `Alone a token takes ${time(one)}, with a second request beside it ${time(two)}:` +
        ` ${short(two / one)} times as long (${placeName(where)}). ` +
        (where === "here" ? `On a simulated H100 it is ${short(onGPU)} times. ` : "") +
        "Both requests share one reading of the weights; only their arithmetic adds up.",
    }),
    place: true,
    show: ({ one, two }) => html`<${Bars}
      label="Time of a step with one request and with two"
      head=${["requests", "time of a token"]}
      rows=${[
        { name: "1", shown: time(one), parts: [["decode", one]] },
        { name: "2", shown: time(two), parts: [["decode", two]] },
      ]}
    />`,
  },
  {
    id: "context",
    say: "“A prompt 64 times as long makes each token of the answer 64 times as slow.”",
    trial: contextTrial,
    verdict(rows) {
      const [few, many] = [rows[0], rows[2]];
      return {
        isTrue: many.tpot > 30 * few.tpot,
        text:
          `After 8,192 tokens a token takes ${short(many.tpot / few.tpot)} times as long as after` +
          " 128. The KV cache saves computing them again; only their keys and values are read," +
          " and those are small beside the weights, until there are many requests.",
      };
    },
    show: (rows) => html`<${Bars}
        label="Time of an output token by length of the prompt"
        head=${["prompt", "time of a token"]}
        rows=${rows.map((row) => ({
          name: `${count(row.prompt)} tokens`,
          shown: time(row.tpot),
          parts: [["decode", row.tpot]],
        }))}
      />
      <p class="muted">Simulated: Llama 3.1 8B on an H100, one request.</p>`,
  },
  {
    id: "truth",
    say: "“At temperature 0 it says what it is sure of.”",
    needsModel: true,
    trial: truthTrial,
    verdict: (tokens) => ({
      isTrue: Math.exp(tokens[0][1]) > 0.95,
      text:
        `After “${TEXT}” it always writes “${foreign(tokens[0][0].trim(), 16)}”, with a` +
        ` chance of ${short(100 * Math.exp(tokens[0][1]))} % before the draw. Temperature 0 takes` +
        " the likeliest token, however unlikely that is.",
    }),
    show: (tokens) => html`<${Bars}
      label="Chances of the next token"
      head=${["next token", "chance"]}
      rows=${tokens.map(([token, value]) => ({
        name: `“${foreign(token, 16)}”`,
        shown: `${short(100 * Math.exp(value))} %`,
        parts: [["decode", Math.exp(value)]],
      }))}
    />`,
  },
  ...MORE_CLAIMS,
];

const open = signal("gpu");
const guesses = signal({});

const possible = (claim) => !claim.needsModel || isLive();

function guess(claim, value) {
  open.value = claim.id;
  guesses.value = { ...guesses.value, [claim.id]: value };
  claim.trial.start();
}

const Claim = view(({ claim }) => {
  const found = claim.trial.result.value;
  const guessed = guesses.value[claim.id];
  const verdict = found && guessed !== undefined ? claim.verdict(found) : null;
  return html`<li>
    <p>${claim.say}</p>
    ${
      possible(claim)
        ? html`<p class="choice" role="group" aria-label="True or not">
            ${[true, false].map(
              (value) =>
                html`<button
                  key=${String(value)}
                  aria-pressed=${String(guessed === value)}
                  onClick=${() => guess(claim, value)}
                >
                  ${value ? "True" : "Not true"}
                </button>`,
            )}
            ${
              verdict &&
              html`<button
                class="quiet"
                onClick=${() => {
                  open.value = claim.id;
                }}
              >
                Figure
              </button>`
            }
          </p>`
        : html`<p class="muted">To try this, a model must run: see chapter 1.</p>`
    }
    ${
      verdict &&
      html`<p>
        <b>${verdict.isTrue ? "True here." : "Not true."}</b> ${verdict.text}
      </p>`
    }
    ${claim.trial.busy.value && html`<p class="muted">Trying it.</p>`}
    ${claim.trial.error.value && html`<p class="held">${foreign(claim.trial.error.value, 300)}</p>`}
  </li>`;
});

const Figure = view(() => {
  const claim = CLAIMS.find((candidate) => candidate.id === open.value);
  const found = claim.trial.result.value;
  if (!found || guesses.value[claim.id] === undefined) {
    return html`<p class="muted">Say of a sentence whether it is true; it is then tried here.</p>`;
  }
  return html`<p>${claim.say}</p>
    ${claim.place && html`<${Place} changed=${() => claim.trial.start()} />`}${claim.show(found)}
    <p><button onClick=${() => claim.trial.start()}>Try it again</button></p>`;
});

export const misconceptions = {
  id: "misconceptions",
  title: "Often heard",
  lead: "Eight sentences. Which are true?",
  Figure,
  Text: view(
    () =>
      html`<p>You have seen enough to judge these. Say what you think; the page then tries it.</p>
        <ol class="learn-claims">
          ${CLAIMS.map((claim) => html`<${Claim} key=${claim.id} claim=${claim} />`)}
        </ol>`,
  ),
};
