// Several tokens a pass, and a machine for each stroke.

import { html, signal, view } from "../../lib/html.js";
import { bytes, count, short, time } from "../../lib/format.js";
import { Bars, experiment, Lanes, Legend, Slider } from "./parts.js";
import { simulate } from "./server.js";

const SIMULATED = "Simulated with this server's scheduler: Llama 3.1 8B on an H100.";

// ---- speculation -------------------------------------------------------------------------------

const DRAFTS = [0, 1, 2, 4, 6, 8];
const RIGHT = [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
const TOGETHER = [1, 4, 16, 64];
const OUTPUT = 100;
const PRICES = [0, 0.02, 0.05, 0.1, 0.2, 0.5]; // of a pass
const right = signal(0.7);
/** What one draft costs, as a share of a pass without drafts; 0: it is guessed from the text. */
const draftCost = signal(0);
const together = signal(1);

async function speculated(acceptance, number) {
  const rows = [];
  for (const drafts of DRAFTS) {
    const run = await simulate({
      requests: Array(number).fill({ prompt: 64, output: OUTPUT }),
      speculative_tokens: drafts,
      acceptance,
    });
    const { steps, shares } = run;
    const decodes = shares.step.filter((_, at) => !shares.prompt[at]);
    const pass =
      decodes.reduce((sum, at) => sum + steps.end[at] - steps.begin[at], 0) / decodes.length;
    // The passes are simulated; what they give is the mean, since one answer is a matter of luck.
    let perPass = 1;
    for (let place = 1; place <= drafts; place += 1) perPass += acceptance ** place;
    rows.push({ drafts, perPass, tpot: pass / perPass });
  }
  return rows;
}

const speculationTrial = experiment(async () => ({
  right: right.value,
  together: together.value,
  rows: await speculated(right.value, together.value),
}));

const speculationAnswer = experiment(async () => {
  together.value = 64;
  await speculationTrial.start();
  return { alone: await speculated(right.value, 1), crowd: await speculated(right.value, 64) };
});

/** Seconds of a token where each draft costs its share of a plain pass, before the pass. */
const withCost = (rows, row) =>
  row.tpot + (rows[0].tpot * draftCost.value * row.drafts) / row.perPass;

/** In words, which number of drafts is best, and the share from which on none pays. */
function catchOf(rows) {
  const best = rows.reduce((one, row) => (withCost(rows, row) < withCost(rows, one) ? row : one));
  const limit = 1 / (1 - Math.min(0.999, right.value));
  const bound =
    right.value < 1
      ? `With ${Math.round(100 * right.value)} % right, a pass gives at most ${short(limit)}` +
        " tokens, however many guesses."
      : "";
  const verdict = best.drafts
    ? `Best: ${best.drafts} ${best.drafts === 1 ? "guess" : "guesses"},` +
      ` ${time(withCost(rows, best))} a token instead of ${time(rows[0].tpot)}.`
    : "Best: no guess at all. They cost more than they bring.";
  return `${bound} ${verdict}`;
}

const gain = (rows, drafts) =>
  rows[0].tpot / rows.find((candidate) => candidate.drafts === drafts).tpot;

const SpeculationFigure = view(() => {
  const found = speculationTrial.result.value;
  const change = (setting) => (value) => {
    setting.value = value;
    speculationTrial.later();
  };
  return html`<${Slider}
      name="a draft is right"
      value=${right.value}
      values=${RIGHT}
      set=${change(right)}
      shown=${`${Math.round(100 * right.value)} %`}
    />
    <${Slider}
      name="requests"
      value=${together.value}
      values=${TOGETHER}
      set=${change(together)}
    />
    <${Slider}
      name="a draft costs"
      value=${draftCost.value}
      values=${PRICES}
      shown=${`${Math.round(100 * draftCost.value)} % of a pass`}
      set=${(value) => {
        draftCost.value = value;
      }}
    />
    ${
      found &&
      html`<${Bars}
          label="Tokens that a request gets of a pass, by drafts"
          head=${["drafts a pass", "tokens a pass"]}
          rows=${found.rows.map((row) => ({
            name: String(row.drafts),
            shown: short(row.perPass),
            parts: [
              ["decode", 1],
              ["cached", Math.max(0, row.perPass - 1)],
            ],
          }))}
        />
        <${Legend}
          items=${[
            ["decode", "the model's own token"],
            ["cached", "drafts that were right"],
          ]}
        />
        <${Bars}
          label="Time of an output token, by drafts"
          head=${["drafts a pass", "time of a token"]}
          rows=${found.rows.map((row) => ({
            name: String(row.drafts),
            shown: time(withCost(found.rows, row)),
            parts: [
              ["decode", row.tpot],
              ["alarm", withCost(found.rows, row) - row.tpot],
            ],
          }))}
        />
        <p aria-live="polite">${catchOf(found.rows)}</p>
        <p class="muted">
          ${SIMULATED} Tokens a pass are the mean of many. Guesses from the text cost nothing; a
          draft model of a tenth of the size costs a tenth of a pass for each.
        </p>`
    }`;
});

export const speculation = {
  id: "speculation",
  title: "Speculation",
  lead: "Guess ahead, check all guesses in one pass.",
  trial: speculationTrial,
  Figure: SpeculationFigure,
  Text: view(
    () =>
      html`<p>
          A decode pass has arithmetic to spare. So something cheap guesses the next few tokens: a
          small model, or the text itself, where it repeats. The large model takes all guesses
          through <b>one pass</b> and says at each place what it would have drawn.
        </p>
        <p>
          Guesses are accepted up to the first wrong one. There the model's own token stands, which
          the pass gave too. So a pass gives at least one token, and the answer is the same as
          without guessing.
        </p>`,
  ),
  predict: {
    ask: "Four guesses in each pass, each right with 70 % if those before it were. How much" +
      " faster do tokens come?",
    choices: ["5 times", "2 to 3 times", "Not at all"],
  },
  outcome({ rows }) {
    const faster = gain(rows, 4);
    return {
      right: faster > 4 ? 0 : faster >= 1.5 ? 1 : 2,
      say:
        `${short(faster)} times: a pass gives ${short(rows[3].perPass)} tokens on average, since` +
        ` one wrong guess voids those behind it. Eight guesses make it ${short(gain(rows, 8))}` +
        " times.",
    };
  },
  question: "Does it help as much when 64 requests run?",
  answer: speculationAnswer,
  show: () => speculationAnswer.start(),
  reply: ({ alone, crowd }) =>
    `Four guesses make one request ${short(gain(alone, 4))} times as fast, 64 together` +
    ` ${short(gain(crowd, 4))} times; eight guesses ${short(gain(crowd, 8))} times. The spare` +
    " arithmetic is used up: guesses are then paid for. This server chooses how many by measured" +
    " steps.",
};

// ---- disaggregation ----------------------------------------------------------------------------

const CHATS = 8;
const LATE = 4;
const PROMPTS = [2000, 4000, 6000, 10000];
const LINKS = [1, 5, 10, 25, 50, 100, 400];
const WARM = 20; // seconds: by then the decode engine has all prompts
const long = signal(6000);
const link = signal(50);

function traffic(prompt) {
  const chats = Array.from({ length: CHATS }, (_, at) => ({
    arrival: 0.02 * at,
    prompt: 64,
    output: 160,
  }));
  const late = Array.from({ length: LATE }, (_, at) => ({
    arrival: 0.3 + 0.3 * at,
    prompt,
    output: 32,
  }));
  return [...chats, ...late];
}

/**
 * Two engines that do both, against one for prompts and one for answers. The simulator has no such
 * pair, so it is put together: the first engine answers with one token; the second has computed all
 * prompts before, finds them in its cache, and gets each request when its prompt is done and moved.
 */
async function compare(prompt, gigabytes) {
  const requests = traffic(prompt);
  const mixed = await simulate({ requests, replicas: 2 });
  const reading = await simulate({ requests: requests.map((one) => ({ ...one, output: 1 })) });
  const perToken = reading.device.kv_bytes_per_token;
  const moves = requests.map((one) => (one.prompt * perToken) / (1e9 * gigabytes));
  const known = requests.map((one, group) => ({ ...one, prefix: one.prompt, group }));
  const arrives = (at) => reading.requests[at].finish + moves[at];
  const writing = await simulate({
    requests: [
      ...known.map((one) => ({ ...one, arrival: 0, output: 1 })),
      ...known.map((one, at) => ({ ...one, arrival: WARM + arrives(at) })),
    ],
  });
  const apart = joined(reading, writing, requests.length);
  return { prompt, perToken, mixed, apart, moves };
}

/** Both engines' runs as one, on the clock of the first. */
function joined(reading, writing, number) {
  const gaps = [];
  const requests = reading.requests.map((read, at) => {
    const wrote = writing.requests[number + at];
    const first = wrote.first_token - WARM;
    gaps.push(wrote.worst_gap);
    return { ...read, finish: wrote.finish - WARM, first_token: first, ttft: first - read.arrival };
  });
  const steps = {
    begin: [...reading.steps.begin],
    end: [...reading.steps.end],
    prompt: [...reading.steps.prompt],
  };
  const shares = { step: [], request: [], prompt: [], new: [] };
  const take = (run, offset, from, what) =>
    run.shares.step.forEach((row, at) => {
      if (run.shares.request[at] < from) return;
      shares.step.push(offset + row);
      shares.request.push(run.shares.request[at] - from);
      shares.prompt.push(what === "prompt" ? run.shares.prompt[at] : 0);
      shares.new.push(what === "prompt" ? 0 : run.shares.new[at]);
    });
  take(reading, 0, 0, "prompt");
  take(writing, steps.begin.length, number, "new");
  steps.begin.push(...writing.steps.begin.map((seconds) => seconds - WARM));
  steps.end.push(...writing.steps.end.map((seconds) => seconds - WARM));
  steps.prompt.push(...writing.steps.prompt);
  return { requests, steps, shares, seconds: writing.seconds - WARM, gaps };
}

const apartTrial = experiment(() => compare(long.value, link.value));
const apartAnswer = experiment(async () => {
  link.value = 1;
  await apartTrial.start();
  return { fast: await compare(long.value, 50), slow: await compare(long.value, 1) };
});

const chatGap = (run) =>
  Math.max(...(run.gaps ?? run.requests.map((one) => one.worst_gap)).slice(0, CHATS));
const lateFirst = (run) => Math.max(...run.requests.slice(CHATS).map((one) => one.ttft));

const ApartFigure = view(() => {
  const found = apartTrial.result.value;
  const change = (setting) => (value) => {
    setting.value = value;
    apartTrial.later();
  };
  const names = [
    ...Array.from({ length: CHATS }, (_, at) => `chat ${at + 1}`),
    ...Array.from({ length: LATE }, (_, at) => `long ${at + 1}`),
  ];
  const until = found && Math.max(found.mixed.seconds, found.apart.seconds);
  return html`<${Slider}
      name="long prompts"
      value=${long.value}
      values=${PROMPTS}
      set=${change(long)}
      shown=${`${count(long.value)} tokens`}
    />
    <${Slider}
      name="link"
      value=${link.value}
      values=${LINKS}
      set=${change(link)}
      shown=${`${link.value} GB/s`}
    />
    ${
      found &&
      html`<${Lanes}
          title=${`Two engines that do both: longest gap of a chat ${time(chatGap(found.mixed))}`}
          run=${found.mixed}
          until=${until}
          names=${names}
          label="Eight chats and four long prompts on two mixed engines"
        />
        <${Lanes}
          title=${`One for prompts, one for answers: ${time(chatGap(found.apart))}`}
          run=${found.apart}
          until=${until}
          names=${names}
          label="The same with an engine for each stroke"
        />
        <${Legend}
          items=${[
            ["prefill", "prefill"],
            ["decode", "a token"],
            ["alarm", "a gap"],
          ]}
        />
        <p class="muted">
          Simulated: Llama 3.1 8B on two H100. The second picture is put together of two
          simulations: an engine that computes prompts; the time to
          move ${bytes(found.prompt * found.perToken)} of keys and values over the link; an engine
          that finds them in its cache, computes at most one block again, and gives the first token.
        </p>`
    }`;
});

export const disaggregation = {
  id: "disaggregation",
  title: "Disaggregation",
  lead: "A machine for each stroke.",
  trial: apartTrial,
  Figure: ApartFigure,
  Text: view(
    () =>
      html`<p>
          The strokes want different things: prefill arithmetic, decode memory. And they disturb
          each other, as chunking showed. With two machines or more there is another way: some
          compute <b>prompts alone</b>, others <b>answers alone</b>. Keys and values are sent from
          one to the other.
        </p>
        <p>
          Answers then flow evenly, whatever prompts arrive. The price: a link that is fast enough,
          and two pools that must be sized for the traffic.
        </p>`,
  ),
  predict: {
    ask: "Chats are being answered while prompts of 6,000 tokens arrive. The strokes are put" +
      " apart. What becomes of the chats' longest gap?",
    choices: ["It stays", "About half", "Less than a fifth"],
  },
  outcome({ mixed, apart }) {
    const ratio = chatGap(apart) / chatGap(mixed);
    return {
      right: ratio > 0.8 ? 0 : ratio > 0.2 ? 1 : 2,
      say:
        `${time(chatGap(apart))} instead of ${time(chatGap(mixed))}: no prompt stands between two` +
        ` tokens. The long ones get their first token after ${time(lateFirst(apart))}, and in the` +
        ` mixed engines after ${time(lateFirst(mixed))}.`,
    };
  },
  question: "How fast must the link be?",
  answer: apartAnswer,
  show: () => apartAnswer.start(),
  reply: ({ fast, slow }) =>
    `A prompt of ${count(fast.prompt)} tokens has ${bytes(fast.prompt * fast.perToken)} of keys` +
    ` and values. At 50 GB/s they take ${time(fast.moves.at(-1))}, at 1 GB/s` +
    ` ${time(slow.moves.at(-1))}: the first token comes after ${time(lateFirst(slow.apart))}` +
    ` instead of ${time(lateFirst(fast.apart))}. The link must be fast beside the prefill that it` +
    " saves from waiting.",
};
