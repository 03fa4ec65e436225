// Sends demo traffic to the server that is open: bounded in requests and time, and stoppable.

import { signal } from "../lib/html.js";
import { api, description, post } from "../lib/source.js";
import { SCENARIOS, TEXT, promptMaker } from "./scenarios.js";

export const MOST_SECONDS = 60;
const LAST = 1_000_000; // where priorities count, others go before

/** `{scenario, total, sent, answered, ended, problem}` of the latest run; null before the first. */
export const run = signal(null);
let abort = null;

export const isRunning = () => run.value !== null && !run.value.ended;

/** What scenarios depend on, of the server that is open. */
export function server() {
  const { configuration, num_blocks: blocks, block_size: size } = description.value;
  return {
    maxLength: configuration.max_model_len,
    maxRequests: configuration.max_num_seqs,
    capacity: Math.max(1, blocks * size),
    bytesPerToken: configuration.kv_bytes_per_token,
  };
}

/** Why a scenario would show nothing on this server; null where it would show something. */
export const whyNot = (scenario) => scenario.plan(server(), () => []).why ?? null;

export const canSend = () =>
  description.value?.kind === "live" && Boolean(description.value.configuration.max_model_len);

const change = (fields) => {
  run.value = { ...run.value, ...fields };
};

export function stop() {
  abort?.abort("stopped");
}

export function forget() {
  run.value = null;
}

export async function start(name) {
  if (isRunning()) return;
  const scenario = SCENARIOS.find((one) => one.name === name);
  abort = new AbortController();
  const { signal: stopped } = abort;
  run.value = { scenario, total: 0, sent: 0, answered: 0, ended: null, problem: "" };
  const timer = setTimeout(() => abort.abort("time"), 1000 * MOST_SECONDS);
  try {
    const { tokens } = await post("tokenize", { prompt: TEXT }, { signal: stopped });
    const { waves } = scenario.plan(server(), promptMaker(tokens));
    change({ total: waves.flat().reduce((sum, call) => sum + call.prompts.length, 0) });
    for (const wave of waves) await Promise.all(wave.map((call) => send(call, stopped)));
    change({ ended: "answered" });
  } catch (error) {
    abort.abort("failed");
    if (stopped.reason === "failed") change({ ended: "failed", problem: error.message });
    else change({ ended: stopped.reason });
  } finally {
    clearTimeout(timer);
  }
}

async function send({ after, output, prompts }, stopped) {
  await pause(1000 * after, stopped);
  change({ sent: run.value.sent + prompts.length });
  const rank = description.value.configuration.policy === "priority" ? { priority: LAST } : {};
  const body = { prompt: prompts, max_tokens: output, ignore_eos: true, user: "demo", ...rank };
  const response = await api("/../../v1/completions", { body, signal: stopped });
  await response.arrayBuffer();
  change({ answered: run.value.answered + prompts.length });
}

function pause(milliseconds, stopped) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    stopped.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("stopped"));
    });
  });
}
