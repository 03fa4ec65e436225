// Where the figures of the chapters come from: this server's own API, and its simulator.

import { signal } from "../../lib/html.js";
import { description } from "../../lib/source.js";

const ROOT = new URL("../", document.baseURI).href;
const simulated = new Map(); // question -> answer: equal questions have equal answers
const MAX_KEPT = 64;
const RESERVED = 300; // ids below this may be bytes and special tokens

/** Whether a model runs here; a recording and a simulation have none. */
export const isLive = () => description.value?.kind === "live";
const chosenPlace = signal(null);
/** `here`: this server's model; `h100`: a simulated H100. */
export const place = () => (isLive() ? (chosenPlace.value ?? "here") : "h100");
export function choosePlace(value) {
  chosenPlace.value = value;
}
export const placeName = (where = place()) =>
  where === "here" ? `${description.value.name} here` : "Llama 3.1 8B on an H100, simulated";

export async function call(path, body) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem("twostroke-key");
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(ROOT + path, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(answer.error?.message ?? `the server answered ${response.status}`);
  }
  return answer;
}

export async function simulate(question) {
  const key = JSON.stringify(question);
  if (!simulated.has(key)) {
    const answer = await call("v1/inspect/simulate", question);
    if (simulated.size >= MAX_KEPT) simulated.delete(simulated.keys().next().value);
    simulated.set(key, answer);
  }
  return simulated.get(key);
}

/** `[{id, text}]`: the tokens of a text, each with what it says. */
export async function tokenize(text) {
  const model = description.value.name;
  const body = { model, prompt: text, add_special_tokens: false, return_token_strs: true };
  const found = await call("tokenize", body);
  return found.tokens.map((id, at) => ({ id, text: spelled(found.token_strs[at]) }));
}

// Byte-level vocabularies write each byte as a letter: those that can be printed as themselves,
// the others as the letters from 256 on, in order.
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte += 1) {
  const printed = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  BYTES.set(String.fromCodePoint(printed ? byte : next++), byte);
}

/** What a vocabulary's entry says; a part of a letter becomes a replacement sign. */
export function spelled(entry) {
  const letters = [...entry];
  if (!letters.every((letter) => BYTES.has(letter))) return entry.replaceAll("\u2581", " ");
  return new TextDecoder().decode(Uint8Array.from(letters, (letter) => BYTES.get(letter)));
}

/** So many random tokens: no cache has seen them. */
export function randomTokens(number) {
  const most = Math.max(RESERVED + 1, description.value?.configuration?.vocab_size ?? 1000);
  const pick = () => RESERVED + Math.floor(Math.random() * (most - RESERVED));
  return Array.from({ length: number }, pick);
}

/** One token a pass, also on a server that guesses ahead: the chapters are of that. */
export const complete = (body) =>
  call("v1/completions", {
    model: description.value.name,
    temperature: 0,
    ignore_eos: true,
    ...(description.value.configuration?.speculation && { speculation: false }),
    ...body,
  });

/** A completion, and the steps that it ran in: `{answer, steps}`. */
export async function measured(body) {
  const before = (await call("v1/inspect")).last_step;
  const answer = await complete(body);
  const query = new URLSearchParams({ from: before + 1, to: before + 65536 });
  const samples = Array.from({ length: body.n ?? 1 }, (_, at) => `${answer.id}#${at}`);
  for (const id of body.n > 1 ? samples : [answer.id]) query.append("request_id", id);
  const frame = await call(`v1/inspect/steps?${query}`);
  const rows = new Map();
  frame.shares.row.forEach((row, at) => {
    const sum = rows.get(row) ?? { prompt: 0, new: 0, requests: 0 };
    sum.prompt += frame.shares.prompt[at];
    sum.new += frame.shares.new[at];
    sum.requests += 1;
    rows.set(row, sum);
  });
  const first = frame.steps.time[0] ?? 0;
  const steps = [...rows].map(([row, own]) => ({
    ...own,
    begin: frame.steps.time[row] - first,
    seconds: frame.steps.duration[row],
  }));
  return { answer, steps };
}

/** The steps of `samples` equal requests: `{prompt, new, requests, begin, seconds}` each. */
export async function steps(prompt, output, samples = 1, where = place()) {
  if (where === "here") {
    const body = { prompt: randomTokens(prompt), max_tokens: output, n: samples };
    return (await measured({ temperature: samples > 1 ? 1 : 0, ...body })).steps;
  }
  const run = await simulate({ requests: Array(samples).fill({ prompt, output }) });
  return stepsOf(run);
}

export const stepsOf = (run) =>
  run.steps.begin.map((begin, row) => ({
    begin,
    seconds: run.steps.end[row] - begin,
    prompt: run.steps.prompt[row],
    new: run.steps.new[row],
    requests: run.steps.running[row],
  }));

/** One call with a prompt of given tokens: computed and cached prompt tokens, and their seconds. */
export async function promptOf(tokens) {
  const found = await measured({ prompt: tokens, max_tokens: 1 });
  const cached = found.answer.usage.prompt_tokens_details?.cached_tokens ?? 0;
  return { cached, computed: tokens.length - cached, seconds: sum(found.steps, "seconds") };
}

export const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);

export function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  const middle = ordered.length >> 1;
  if (!ordered.length) return NaN;
  return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

/** Seconds of a prompt's prefill: the least of some tries here, for other work only adds to it. */
export async function prefillSeconds(prompt, where = place()) {
  const tries = [];
  for (let turn = 0; turn < (where === "here" ? 3 : 1); turn += 1) {
    const found = await steps(prompt, 1, 1, where);
    tries.push(
      sum(
        found.filter((step) => step.prompt),
        "seconds",
      ),
    );
  }
  return Math.min(...tries);
}

/** The lower quartile: other work on the machine makes steps longer, and never shorter. */
function quick(values) {
  const ordered = [...values].sort((one, other) => one - other);
  return ordered[Math.floor((ordered.length - 1) / 4)] ?? NaN;
}

/** Usual seconds of the steps that only decode, with at least so many requests. */
export const decodeSeconds = (found, requests = 1) =>
  quick(
    found
      .filter((step) => !step.prompt && step.new >= requests)
      .map((step) => step.seconds),
  );
