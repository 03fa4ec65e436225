// Reasons and figures in sentences.

import { count, many, shortId, time } from "./format.js";
import { description, seesAll } from "./source.js";
import { startOf } from "./start.js";
import { store } from "./store.js";
import { aboutGap, linksOfGap, standsOut, usualGap, worstGap } from "./stutter.js";

const REASONS = {
  token_budget: (by, about) =>
    `the step's token budget is used up${about.budget ? ` (${many(about.budget, "token")})` : ""}`,
  tpot_target: () => "the step's budget is small, so that steps keep --tpot-target",
  prefill_chunk: () => "its prompt runs in chunks, and this chunk is as large as it may be",
  no_free_block: (by, about) =>
    `too few KV blocks are free${seesAll() ? ` (${count(about.free)} are)` : ""}`,
  max_num_seqs: (by, about) =>
    `as many requests run as may at once${seesAll() ? ` (${count(about.running)})` : ""}`,
  policy: () => "the scheduling policy puts others first",
  batch_running: () => "the running batch has to end first (static batching)",
  shares_prompt: (by) => `it shares the prompt that ${by ?? "another sample"} is computing`,
  loading: () => "its blocks are being loaded from another tier",
  preempted: (by) => `its blocks were given to ${by ?? "others"}`,
};

const WORDS = {
  token_budget: "token budget",
  tpot_target: "TPOT target",
  next_step: "a step was running",
  waking: "the engine was waking up",
  prefill_chunk: "chunk",
  no_free_block: "no free block",
  max_num_seqs: "all places taken",
  policy: "policy",
  batch_running: "batch runs",
  shares_prompt: "shares a prompt",
  loading: "loading",
  preempted: "preempted",
};

export const reasonWord = (reason) => WORDS[reason] ?? reason;

const LEAST_WAIT = 0.05; // of the time in the queue: less is no reason to be named

/** What a request waited for in the queue, the longest first; empty until it is known. */
function whyQueued(record, queued) {
  const places = description.value?.configuration?.max_num_seqs;
  const word = (reason) =>
    reason === "max_num_seqs" && places
      ? `all ${count(places)} places were taken`
      : reasonWord(reason);
  const reasons = Object.entries(startOf(record).waits?.queue ?? {})
    .filter(([, seconds]) => seconds > LEAST_WAIT * queued)
    .sort((one, other) => other[1] - one[1]);
  const alone = reasons.length === 1;
  const words = reasons.map(([reason, seconds]) =>
    alone ? word(reason) : `${word(reason)} (${time(seconds)})`,
  );
  return words.length ? `: ${words.join(", ")}` : "";
}

export function whyHeld(held, row = store.lastRow) {
  const about = {
    budget: row >= 0 ? store.steps.get("budget", row) : 0,
    free: row >= 0 ? store.steps.get("free", row) : 0,
    running: row >= 0 ? store.steps.get("running", row) : 0,
  };
  const by = held.by ? shortId(held.by.id) : null;
  const why = REASONS[held.reason]?.(by, about) ?? held.reason;
  const behind = held.behind ? ` ${count(held.behind)} more wait behind it.` : "";
  return `${why}.${behind}`;
}

/** How many requests wait after the latest step; of those of this key, where it shows no others. */
export function numWaiting() {
  if (seesAll()) return store.length ? store.steps.get("waiting", store.lastRow) : 0;
  return ["waiting", "preempted", "loading", "held"].reduce(
    (sum, status) => sum + store.having(status).length,
    0,
  );
}

/** What the latest step held a request back for, if it did. */
export const heldBack = (record) => store.held.find((held) => held.record === record);

const ENDS = {
  stop: "it ended by itself",
  length: "it reached its greatest length",
  abort: "its client left or ended it",
  error: "it failed",
};

/** Why a prefix hit was not longer: of models with recurrent layers, whose state it needs, too. */
function whyNoLonger(hit) {
  const at = count(hit.state_tokens);
  const blocks =
    `Blocks were there up to token ${count(hit.block_tokens)}, but the layers' state` +
    (hit.state_tokens ? ` only up to the checkpoint at token ${at}` : " nowhere");
  const reasons = {
    whole_prompt: `The prefix hit was as long as it can be: ${at} tokens.`,
    no_checkpoint: `${blocks}: none was kept after that.`,
    checkpoint_evicted: `${blocks}: a later one had been evicted.`,
    not_loaded: `The prefix hit ended at token ${at}: a tier had more, which was not loaded.`,
    block_evicted: `The prefix hit ended at token ${at}: the next block had been evicted.`,
    first_time: `The prefix hit ended at token ${at}: what follows came for the first time.`,
    new_salt: "Nothing of the prompt was cached with its cache_salt; other salts do not count.",
  };
  return reasons[hit.end] ?? `The prefix hit ended at token ${at}: ${hit.end}.`;
}

/** A request's life so far, in sentences. */
export function aboutRequest(record) {
  const lines = [];
  if (record.status === "waiting" && record.started === null) {
    const held = heldBack(record);
    lines.push(`Waits for its first step since ${time(store.now - record.arrival)}.`);
    if (held) lines.push(`The reason: ${whyHeld(held)}`);
    else if (store.held.length) {
      const first = store.held[0];
      lines.push(
        `It is behind ${first.record ? shortId(first.record.id) : "others"}, which waits:` +
          ` ${whyHeld(first)}`,
      );
    }
    return lines;
  }
  if (record.arrival !== null && record.started !== null) {
    const queued = record.started - record.arrival;
    lines.push(
      queued < 0.001
        ? "It ran at once when it came."
        : `It waited ${time(queued)} in the queue before its first step` +
            `${whyQueued(record, queued)}.`,
    );
  }
  if (record.cached) {
    const share = Math.round((100 * record.cached) / Math.max(1, record.prompt));
    lines.push(
      `${count(record.cached)} of its ${count(record.prompt)} prompt tokens (${share} %)` +
        " were in the prefix cache and did not have to be computed.",
    );
  }
  if (record.hit) lines.push(whyNoLonger(record.hit));
  if (record.firstToken !== null && record.arrival !== null) {
    const ttft = time(record.firstToken - record.arrival);
    lines.push(`Its first token came ${ttft} after the engine had the request.`);
  } else if (record.status === "running" && record.computed < record.prompt) {
    lines.push(`${count(record.computed)} of ${count(record.prompt)} prompt tokens are computed.`);
  }
  if (record.preemptions) {
    lines.push(
      `It was preempted ${record.preemptions === 1 ? "once" : `${record.preemptions} times`}:` +
        ` ${record.preemptedBy ? shortId(record.preemptedBy.id) : "another request"} needed its` +
        " blocks, and it computed its tokens again.",
    );
  }
  const held = record.status === "running" && heldBack(record);
  if (held) lines.push(`The latest step gave it less than it lacks: ${whyHeld(held)}`);
  if (record.status === "preempted") lines.push("It waits for blocks, to go on.");
  if (record.status === "finished") {
    lines.push(
      `It is over: ${ENDS[record.reason] ?? record.reason}, after` +
        ` ${many(record.output, "output token")}.`,
    );
  }
  return lines;
}

export { aboutGap, linksOfGap, standsOut, usualGap, worstGap };

/** Shares of a step that are of answers alone. */
function decodesIn(first, end) {
  let number = 0;
  for (let share = first; share < end; share += 1) {
    number += store.shares.get("prompt", share) === 0;
  }
  return number;
}

export function aboutStep(row) {
  const { steps } = store;
  const tokens = steps.get("tokens", row);
  const prompt = steps.get("prompt", row);
  const [first, end] = store.sharesOf(row);
  const lines = [
    `${many(tokens, "token")} of ${many(end - first, "request")} went` +
      ` through the model in ${time(steps.get("duration", row))}:` +
      ` ${count(prompt)} of prompts (prefill), ${count(tokens - prompt)} of answers (decode).`,
  ];
  const budget = steps.get("budget", row);
  if (budget)
    lines.push(
      `The budget is ${many(budget, "token")} a step; ${count(budget - tokens)} were free.`,
    );
  const decodes = decodesIn(first, end);
  if (prompt && decodes) {
    lines.push(
      `${decodes === 1 ? "One answer" : `${count(decodes)} answers`} got a token each, and waited` +
        " for the prompts too: a step ends for all at once.",
    );
  }
  const note = store.notes.get(row);
  for (const [record, by] of note?.preempted ?? []) {
    lines.push(`${shortId(record.id)} was preempted${by ? ` for ${shortId(by.id)}` : ""}.`);
  }
  for (const held of note?.held ?? []) {
    lines.push(
      `${held.record ? shortId(held.record.id) : "The queue"} was held back:` +
        ` ${whyHeld(held, row)}`,
    );
  }
  if (note?.error) lines.push(`It failed: ${note.error}`);
  return lines;
}
