// One real request for chapter "One request's way": sent, and what is known of it put together.

import { api, description } from "../../lib/source.js";
import { readStream } from "../chat/sending.js";
import { call, spelled, sum } from "./server.js";

const ANSWER = 24; // tokens
const HEAT = 0.7;
const TRIES = 10; // until the server has noted the end of its answer
const PAUSE_MS = 60;

const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS));

/** Send a chat: its body, prompt, and pieces with the seconds after which the browser had them. */
async function send(text) {
  const body = {
    model: description.value.name,
    messages: [{ role: "user", content: text }],
    max_tokens: ANSWER,
    temperature: HEAT,
    seed: Math.floor(1e9 * Math.random()),
    stream: true,
    return_token_ids: true,
  };
  const sent = { body, id: "", prompt: [], pieces: [], seconds: 0 };
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  const response = await api("/../../v1/chat/completions", { body, accept: "text/event-stream" });
  await readStream(response.body, (chunk) => {
    sent.id = chunk.id;
    sent.prompt = chunk.prompt_token_ids ?? sent.prompt;
    const choice = chunk.choices?.[0];
    const ids = choice?.token_ids ?? [];
    if (ids.length) sent.pieces.push({ ids, text: choice.delta.content ?? "", at: since() });
  });
  return { ...sent, seconds: since() };
}

/** What the server noted of the call, once its last byte is among it. */
async function stationsOf(id) {
  const path = `v1/inspect/request?${new URLSearchParams({ id })}`;
  for (let turn = 0; ; turn += 1) {
    const found = (await call(path)).call;
    if (found?.ended != null || turn === TRIES) return found;
    await pause();
  }
}

async function stepsOf(id, before) {
  const query = new URLSearchParams({ from: before + 1, to: before + 65536, request_id: id });
  const { steps, shares, notes, timings } = await call(`v1/inspect/steps?${query}`);
  const rows = shares.row.map((row, at) => ({
    begin: steps.time[row],
    seconds: steps.duration[row],
    prompt: shares.prompt[at],
    new: shares.new[at],
    blocks: shares.blocks[at],
    drafts: shares.drafts[at],
    accepted: shares.accepted[at],
    timings: Object.entries(timings ?? {}).map(([name, column]) => [name, column[row]]),
  }));
  const started = (notes ?? []).flatMap((note) => note.started ?? []);
  return { rows, started: started.find((one) => one.request_id === id) };
}

/** The same tokens inside pilot; of another tokenizer's model, the reader's text alone. */
async function insideOf(sent, text, strings) {
  const look = (asked) => call("v1/inspect/inside", asked);
  try {
    const same = await look({ tokens: sent.prompt }).catch(() => null);
    const isSame = same?.tokens.every((token, at) => token.text === strings[at]);
    return isSame ? { ...same, isSame } : { ...(await look({ text })), isSame: false };
  } catch (error) {
    return { problem: error.message };
  }
}

/** Send a text as a chat, and follow it. */
export async function follow(text) {
  const before = (await call("v1/inspect")).last_step;
  const sent = await send(text);
  const { model, messages, max_tokens: _, stream: __, return_token_ids: ___, ...draw } = sent.body;
  const [http, waits, { rows, started }, strings, next] = await Promise.all([
    stationsOf(sent.id),
    call(`v1/inspect/waits?${new URLSearchParams({ id: sent.id })}`),
    stepsOf(sent.id, before),
    call("tokenize", { model, messages, return_token_strs: true }),
    call("v1/inspect/distribution", { model, prompt: sent.prompt, ...draw, top: 12 }),
  ]);
  const tokens = strings.tokens.map((id, at) => ({ id, text: spelled(strings.token_strs[at]) }));
  const inside = await insideOf(
    sent,
    text,
    tokens.map((token) => token.text),
  );
  const prefill = rows.filter((row) => row.prompt);
  const decode = rows.filter((row) => !row.prompt);
  return {
    ...{ text, sent, http, waits, started, tokens, next, inside, prefill, decode },
    seconds: secondsOf(http, prefill, decode),
  };
}

/** Seconds of each station; those before the first token follow each other. */
function secondsOf(http, prefill, decode) {
  const found = {};
  let last = http?.received ?? prefill[0].begin;
  for (const { name, end } of http?.stations ?? []) {
    found[name] = (found[name] ?? 0) + end - last;
    last = end;
  }
  const of = (...names) => names.reduce((total, name) => total + (found[name] ?? 0), 0);
  const timed = (row, name) => row.timings.find(([own]) => own === name)?.[1] ?? 0;
  const draw = timed(prefill.at(-1), "sample");
  return {
    key: of("authenticated", "limited"),
    context: of("read", "context"),
    tokens: of("tokenise", "prepare"),
    queue: Math.max(0, prefill[0].begin - last),
    prefill: sum(prefill, "seconds") - draw,
    draw,
    decode: sum(decode, "seconds"),
    stream: http?.last_byte == null ? 0 : http.last_byte - http.first_byte,
  };
}
