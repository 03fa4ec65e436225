// A comparison in words and figures.

import { count, many, time } from "../../lib/format.js";

const UNSTEADY = 0.35; // median error of the step times

export function nameOf({ batching, max_num_batched_tokens: budget, max_prefill_chunk: chunk }) {
  const kind = batching === "static" ? "static batching" : "continuous batching";
  const chunks = chunk ? `, chunks of ${count(chunk)}` : "";
  return `${kind}, ${many(budget, "token")} a step${chunks}`;
}

export const mean = (values) =>
  values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

/** Seconds by request on both sides and as recorded, of those that ended wherever they can have. */
export function timesOf(answer) {
  const { requests } = answer;
  const sums = { requests: [], recorded: [], simulated: [], other: [], firsts: [[], []] };
  requests.forEach((request, index) => {
    const one = answer.recorded.finish[index];
    const other = answer.other.finish[index];
    if (one === null || other === null) return;
    sums.requests.push(request);
    if (request.finish !== null) {
      sums.recorded.push([request.finish - request.arrival, one - request.arrival]);
    }
    sums.simulated.push(one - request.arrival);
    sums.other.push(other - request.arrival);
    sums.firsts[0].push(answer.recorded.first_token[index] - request.arrival);
    sums.firsts[1].push(answer.other.first_token[index] - request.arrival);
  });
  return sums;
}

export const last = (finishes) => Math.max(...finishes.filter((finish) => finish !== null));

export function verdict(answer) {
  const { simulated, other } = timesOf(answer);
  const [ours, theirs] = [mean(simulated), mean(other)];
  const saved = theirs - ours;
  const ends = last(answer.other.finish) - last(answer.recorded.finish);
  const share = Math.round((100 * Math.abs(saved)) / Math.max(theirs, 1e-9));
  const number = simulated.length;
  const take = number === 1 ? "this request takes" : `these ${count(number)} requests take`;
  if (answer.question.against === "static") {
    const does = saved > 0 ? "saves" : "costs";
    const verb = share
      ? `${does} ${time(Math.abs(saved))} a request (${share}\u00a0%)`
      : "makes no difference here";
    return (
      `Continuous batching ${verb}: ${take} ${time(ours)} on average, in static` +
      ` batches ${time(theirs)}. ${aboutEnds(ends)}${aboutTrust(answer, saved)}`
    );
  }
  const gaps = [answer.recorded.longest_gap, answer.other.longest_gap];
  const longest = Math.max(...answer.requests.map((request) => request.prompt));
  if (answer.question.against === "chunk" && longest <= answer.question.tokens) {
    return (
      `Nothing to cut: the longest of these prompts has ${many(longest, "token")}. Choose a part` +
      " of the timeline with a long one; \u201cWho stuttered?\u201d leads to it."
    );
  }
  return (
    `${SUBJECT[answer.question.against](answer.question.tokens)}, ${take}` +
    ` ${time(theirs)} on average instead of ${time(ours)}; the longest gap between two tokens` +
    ` is ${time(gaps[1])} instead of ${time(gaps[0])}.${aboutMore(answer)} ${aboutEnds(ends)}` +
    aboutTrust(answer, saved)
  );
}

/** Seconds by which simulated requests differ from the real ones that ended; null without any. */
function error(answer) {
  const { recorded } = timesOf(answer);
  if (!recorded.length) return null;
  const [real, ours] = [0, 1].map((at) => mean(recorded.map((pair) => pair[at])));
  return { real, ours };
}

/** A difference that is smaller than the simulation's own error is none. */
function aboutTrust(answer, saved) {
  const found = error(answer);
  if (!found || Math.abs(saved) >= Math.abs(found.ours - found.real)) return "";
  const off = time(Math.abs(found.ours - found.real));
  return (
    ` The averages differ by less than the ${off} by which simulated requests are off here:` +
    " take these two as equal."
  );
}

/** Shorter pieces are more pieces: the longest gap falls while the 99th percentile rises. */
function aboutMore({ recorded, other }) {
  const shorter = other.longest_gap < recorded.longest_gap;
  if (!(shorter && other.p99_gap > 1.1 * recorded.p99_gap)) return "";
  return " There are more long gaps, each shorter: the same prompt comes in more pieces.";
}

const SUBJECT = {
  whole: () => "With whole prompts",
  chunk: (tokens) => `With chunks of ${many(tokens, "token")}`,
  budget: (tokens) => `With steps of at most ${many(tokens, "token")}`,
};

function aboutEnds(ends) {
  if (Math.abs(ends) < 0.0005) return "The last answer ends at the same time.";
  return `The last answer then ends ${time(Math.abs(ends))} ${ends > 0 ? "later" : "earlier"}.`;
}

function offBy(percent) {
  const size = Math.abs(percent).toFixed(1);
  return size === "0.0"
    ? "as much time as"
    : `${size}\u00a0% ${percent < 0 ? "less" : "more"} time than`;
}

/** How far the simulation can be trusted: against what was recorded. */
export function honesty(answer) {
  const { recorded } = timesOf(answer);
  const found = error(answer);
  const lines = [
    "Both sides are simulated. How long a step takes is learned from" +
      ` ${count(answer.fit.num_steps)} recorded ones (half of them are met within` +
      ` ${(100 * answer.fit.median_error).toFixed(1)}\u00a0%); where the machine was slow, it is` +
      " slow on both sides.",
  ];
  if (answer.fit.median_error > UNSTEADY) {
    lines.unshift(
      "The machine was unsteady in this time, and other settings would have met its slow moments" +
        " with other requests: do not rely on the seconds.",
    );
  }
  if (found) {
    const off = 100 * (found.ours / Math.max(found.real, 1e-9) - 1);
    const known = answer.requests.map((request, index) => [
      request.finish,
      answer.recorded.finish[index],
    ]);
    const ended = known.filter(([finish, simulated]) => finish !== null && simulated !== null);
    const ends = last(ended.map((pair) => pair[1])) - last(ended.map((pair) => pair[0]));
    lines.push(
      `With the settings that ran, the simulated requests take ${offBy(off)} the real ones` +
        ` (${count(recorded.length)} that ended), and the last ends` +
        ` ${time(Math.abs(ends))} ${ends < 0 ? "earlier" : "later"}.`,
    );
  }
  if (answer.question.against === "static") {
    lines.push("In a static batch a request counts as ended with its own last token.");
  }
  if (answer.beside) {
    lines.push(`${count(answer.beside)} more ran beside them; they are replayed, but not shown.`);
  }
  if (answer.unfinished) {
    lines.push(`${count(answer.unfinished)} still ran: they count as far as they had got.`);
  }
  if (answer.left_out) {
    lines.push(`${count(answer.left_out)} began before what is known, and are left out.`);
  }
  return [...lines, ...answer.notes].join(" ");
}

export const signed = (seconds) =>
  Math.abs(seconds) < 0.0005 ? "0" : `${seconds > 0 ? "+" : "\u2212"}${time(Math.abs(seconds))}`;
