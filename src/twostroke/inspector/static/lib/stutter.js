// Who stuttered a request: its worst gap, the steps in it, and what made them long.

import { count, many, percentile, short, shortId, time } from "./format.js";
import { gapsOf, store } from "./store.js";

const SAMPLE = 2048; // steps from which the usual price of a prompt token is learned
const LEAST_PROMPT = 8; // tokens in a step that tell it
const MANY_TIMES = 10; // the usual gap: one that stands out
const NOTICED = 0.1; // seconds
const TWICE = 2; // what its prompts usually take: more is the machine's
const ENOUGH = 0.3; // of a gap's excess, so that it is the cause

/**
 * The worst gap of a request, or null where its steps have left the store. `cause` is `preempted`,
 * `prompts` (of others, in `causes`), `held` (its reason in `held`), `pause` (no step ran) or
 * `step` (the pass took longer than what it computed does).
 */
export function worstGap(record) {
  if (record.worstRow < store.steps.first) return null;
  const { worstBegin: begin, worstGap: gap, worstRow: last } = record;
  const usual = usualGap(record);
  const prompts = new Map();
  const found = { begin, end: store.endOf(last), gap, usual, row: last, numSteps: 0, held: null };
  let preempted = false;
  let busy = 0;
  for (let row = last; row >= store.steps.first; row -= 1) {
    if (store.endOf(row) <= begin + 1e-9) break;
    found.numSteps += 1;
    busy += store.endOf(row) - Math.max(begin, store.steps.get("time", row));
    const [first, end] = store.sharesOf(row);
    for (let share = first; share < end; share += 1) {
      const tokens = store.shares.get("prompt", share);
      const other = store.byNumber.get(store.shares.get("request", share));
      if (tokens && other && other !== record)
        prompts.set(other, (prompts.get(other) ?? 0) + tokens);
    }
    const note = store.notes.get(row);
    preempted ||= (note?.preempted ?? []).some(([victim]) => victim === record);
    found.held ??= (note?.held ?? []).find((held) => held.record === record) ?? null;
  }
  found.causes = [...prompts].sort((one, other) => other[1] - one[1]);
  found.step = store.steps.get("step", last);
  found.price = found.causes.reduce((sum, cause) => sum + cause[1], 0) * promptPrice();
  found.cause = causeOf(found, preempted, gap - busy);
  return found;
}

function causeOf(found, preempted, pause) {
  const excess = Math.max(1e-9, found.gap - (found.usual ?? 0));
  if (preempted) return "preempted";
  if (found.causes.length && found.price >= ENOUGH * excess) return "prompts";
  if (pause > 0.5 * excess) return "pause";
  // On a slow machine, too: these alone had made a gap that stands out.
  if (found.usual && found.price >= MANY_TIMES * found.usual) return "prompts";
  if (found.held && found.numSteps > 1) return "held";
  return "step";
}

let learned = { row: -Infinity, price: 0 };

/** Seconds that a prompt token adds to a step, usually: the median of the latest steps. */
function promptPrice() {
  const { steps } = store;
  if (learned.row <= store.lastRow && learned.row > store.lastRow - 64) return learned.price;
  const from = Math.max(steps.first, steps.end - SAMPLE);
  const decodes = [];
  const mixed = [];
  for (let row = from; row < steps.end; row += 1) {
    if (steps.get("span", row) !== 1) continue;
    const prompt = steps.get("prompt", row);
    if (!prompt) decodes.push(steps.get("duration", row));
    else if (prompt >= LEAST_PROMPT) mixed.push([steps.get("duration", row), prompt]);
  }
  const ascending = (one, other) => one - other;
  const plain = percentile(decodes.sort(ascending), 0.5) ?? 0;
  const prices = mixed.map(([seconds, prompt]) => Math.max(0, seconds - plain) / prompt);
  learned = { row: store.lastRow, price: percentile(prices.sort(ascending), 0.5) ?? 0 };
  return learned.price;
}

const known = new WeakMap(); // record -> [row up to which, median]

/** The median gap of one request, as far as the store has its gaps. */
export function usualGap(record) {
  const before = known.get(record);
  // A little late is enough while it runs; afterwards it agrees with the list of its gaps.
  const late = record.status === "finished" ? 1 : 16;
  if (before && record.lastRow >= before[0] && record.lastRow - before[0] < late) return before[1];
  const own = gapsOf(store, record).map((gap) => gap[1]);
  const usual = percentile(
    own.sort((one, other) => one - other),
    0.5,
  );
  known.set(record, [record.lastRow, usual]);
  return usual;
}

/** Whether a request's longest gap is one that readers notice, and far above its mean. */
export function standsOut(record) {
  const mean = (record.lastToken - record.firstToken) / Math.max(1, record.output - 1);
  return record.worstGap > Math.max(NOTICED, MANY_TIMES * mean);
}

export function aboutGap(record, found) {
  const times = found.usual
    ? ` (${short(found.gap / found.usual)} times the usual` + ` ${time(found.usual)})`
    : "";
  const known = record.someGapsUnknown ? ", of those that this page has," : "";
  const lines = [
    `Its longest gap between two tokens${known} was ${time(found.gap)}${times}, up to step` +
      ` ${count(found.step)}.`,
    ...aboutOthers(record, found),
  ];
  const [other, tokens] = found.causes[0] ?? [];
  if (found.cause === "preempted") {
    lines.push("It was preempted there: its blocks went to another request.");
  } else if (found.cause === "prompts") {
    lines.push(
      `In that time the engine also computed ${many(tokens, "prompt token")} of` +
        ` ${shortId(other.id)}: a long prompt makes the step long for all that share it.`,
    );
    if (found.gap > TWICE * found.price) {
      lines.push(`Such prompts usually take ${time(found.price)}: the machine was slow, too.`);
    }
    if (found.causes.length > 1) {
      const rest = found.causes.slice(1).reduce((sum, cause) => sum + cause[1], 0);
      const number = found.causes.length - 1;
      lines.push(`${number} more had ${many(rest, "prompt token")} in it.`);
    }
  } else if (found.cause === "pause") {
    lines.push("For most of it no step ran at all: the engine waited, or its processor was taken.");
  } else if (found.cause === "held") {
    lines.push(`${found.numSteps} steps passed without it: it was held back.`);
  } else {
    const beside = found.causes.reduce((sum, cause) => sum + cause[1], 0);
    lines.push(
      beside
        ? `${many(beside, "prompt token")} ran beside it, most of them of ${shortId(other.id)},` +
            ` which usually take ${time(found.price)} of it: the machine was slow in this pass.`
        : "No prompt ran in that step: the machine was slow in this pass.",
    );
  }
  const help = HELP[found.cause];
  return help ? [...lines, help] : lines;
}

/** How many gaps of a request stand out beside its longest, and how long they held it up. */
function aboutOthers(record, found) {
  if (!found.usual) return [];
  const long = gapsOf(store, record).filter((gap) => gap[1] >= MANY_TIMES * found.usual);
  if (long.length < 2) return [];
  const sum = long.reduce((total, gap) => total + gap[1], 0);
  return [`${count(long.length)} of its gaps were over ten times the usual: ${time(sum)} in all.`];
}

const HELP = {
  prompts:
    "What helps: a smaller --max-num-batched-tokens cuts such a prompt into shorter pieces. Gaps" +
    " get shorter, and that prompt's own first token comes later.",
  preempted:
    "What helps: more KV cache (--kv-cache-memory), or fewer requests at once" +
    " (--max-num-seqs).",
};

/** Addresses at which one can go on from a gap: `[address, title]`, most useful first. */
export function linksOfGap(record, found) {
  if (found.cause !== "prompts") return [];
  const tokens = 2 ** Math.max(4, Math.floor(Math.log2(found.causes[0][1] / 2)));
  const values = new URLSearchParams({
    compare: `budget:${tokens}`,
    from: Math.max(0, Math.min(record.arrival ?? found.begin, found.begin)).toFixed(4),
    to: Math.min(record.finish ?? store.now, found.end + 1).toFixed(4),
  });
  return [
    [`#/timeline?${values}`, `Try steps of ${many(tokens, "token")}`],
    ["#/learn?chapter=chunking", "Learn: chunking"],
  ];
}
