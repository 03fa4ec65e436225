// What the playground knows: the text, a tree of answers, the parameters, and the latest answer.

import { batch, signal } from "../lib/html.js";
import { extra } from "../lib/address.js";
import { api, post } from "../lib/source.js";

const TYPING_MS = 250; // without a key, until a text is sent
const PAUSE_MS = 16; // between an answer and the next question, while a slider moves
const LISTED = 50;
const LONGEST_LINK = 2000; // characters of a prompt that the address holds
const START = "The prompt was long, and";

/** By the name of the request's field: range of the slider, and the value that changes nothing. */
export const SLIDERS = [
  { name: "temperature", title: "Temperature", min: 0, max: 2, step: 0.05, off: 1 },
  { name: "top_k", title: "Top-k", min: 0, max: 100, step: 1, off: 0 },
  { name: "top_p", title: "Top-p", min: 0.01, max: 1, step: 0.01, off: 1 },
  { name: "min_p", title: "Min-p", min: 0, max: 0.5, step: 0.005, off: 0 },
  { name: "repetition_penalty", title: "Repetition", min: 0.5, max: 2, step: 0.05, off: 1 },
  { name: "presence_penalty", title: "Presence", min: -2, max: 2, step: 0.1, off: 0 },
  { name: "frequency_penalty", title: "Frequency", min: -2, max: 2, step: 0.1, off: 0 },
];
export const OFF = Object.fromEntries(SLIDERS.map(({ name, off }) => [name, off]));

export const text = signal(START);
export const asChat = signal(false);
export const params = signal({ ...OFF, temperature: 0.9, top_p: 0.95 });
export const seed = signal(1);
/** Token ids of the prompt, and the text that they are of; null until they are known. */
export const prompt = signal(null);
/** The latest answer and the node that it is about; null before the first. */
export const shape = signal(null);
/** The row that Enter takes, as a token id; null is the token that is drawn. */
export const marked = signal(null);
export const writing = signal(false);
export const problem = signal("");

/** The text of the token that ends answers, where the server says one. */
let endText;

async function learnEnd() {
  if (endText !== undefined) return;
  try {
    endText = (await (await api("/../../tokenizer_info")).json()).eos_token;
  } catch {
    // Then only a token that was drawn is known to end its answer.
  }
}

/** A token of an answer; the root has none. `last` is the child that was visited last. */
const makeNode = (parent, token) => ({ parent, token, children: [], last: null, ends: false });
export const root = signal(makeNode(null, null));
export const node = signal(root.value);

export function pathTo(end) {
  const path = [];
  for (let at = end; at.parent; at = at.parent) path.unshift(at);
  return path;
}

/** The tokens that were visited behind a node. */
export function pathBehind(start) {
  const path = [];
  for (let at = start.last; at; at = at.last) path.push(at);
  return path;
}

// ---- asking ------------------------------------------------------------------------------------

let open = false; // whether the page is shown
let wanted = 0; // the latest question
let answered = 0;
let asking = false;
let timer = 0;
let question = new AbortController();

/** Take back the question that is open: its answer would be about another place. */
const drop = () => question.abort();

export const isBehind = () => shape.value?.node !== node.value;

/** Ask again, after so many milliseconds; what was asked before and not answered is dropped. */
export function ask(wait = 0) {
  wanted += 1;
  clearTimeout(timer);
  timer = setTimeout(askInTurn, wait);
}

/** One question at a time: while a slider moves, each answer is followed by the latest question. */
async function askInTurn() {
  if (asking || !open) return;
  asking = true;
  while (open && answered !== wanted) {
    answered = wanted;
    const about = node.value;
    question = new AbortController();
    const { signal: abort } = question;
    try {
      if (!prompt.value) await encode();
      const found =
        prompt.value &&
        !about.ends && // nothing follows
        (await post("v1/inspect/distribution", body(about), { signal: abort }));
      if (about === node.value && open) {
        batch(() => {
          shape.value = found ? { ...found, node: about } : null;
          problem.value = "";
        });
      }
    } catch (error) {
      if (!abort.aborted) {
        fail(error);
        break;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  asking = false;
}

function fail(error) {
  problem.value = error.message;
  if (error.retryAfter) ask(1000 * Math.min(30, error.retryAfter));
}

/** The request for the token behind a node. */
export function body(end, maxTokens = 1) {
  return {
    prompt: prompt.value.ids,
    answer_token_ids: pathTo(end).map((one) => one.token.id),
    max_tokens: maxTokens,
    top: LISTED,
    seed: seed.value,
    ...params.value,
  };
}

async function encode() {
  const [written, chat] = [text.value, asChat.value];
  const messages = [{ role: "user", content: written }];
  const found = await post("tokenize", chat ? { messages } : { prompt: written });
  if (written === text.value && chat === asChat.value) {
    prompt.value = found.tokens.length ? { ids: found.tokens } : null;
  }
}

// ---- what the reader does ----------------------------------------------------------------------

export function changeText(written, chat = asChat.value) {
  drop();
  batch(() => {
    text.value = written;
    asChat.value = chat;
    prompt.value = null;
    root.value = makeNode(null, null);
    node.value = root.value;
    marked.value = null;
    shape.value = null;
  });
  keep();
  ask(TYPING_MS);
}

export function change(name, value) {
  batch(() => {
    params.value = { ...params.value, [name]: value };
    marked.value = null;
  });
  keep();
  ask();
}

export function changeAll(values) {
  params.value = { ...values };
  keep();
  ask();
}

export function changeSeed(value) {
  if (!Number.isSafeInteger(value)) return;
  seed.value = value;
  marked.value = null;
  keep();
  ask();
}

export function goTo(target) {
  drop();
  batch(() => {
    node.value = target;
    marked.value = null;
    for (let at = target; at.parent; at = at.parent) at.parent.last = at;
  });
  keep();
  ask();
}

export const back = () => node.value.parent && goTo(node.value.parent);
export const forward = () => node.value.last && goTo(node.value.last);
export const startOver = () => goTo(root.value);

/** Append a token to the answer: a branch, where another one was taken before. */
function append(parent, token, byHand) {
  let child = parent.children.find((one) => one.token.id === token.id);
  if (!child) {
    child = makeNode(parent, { ...token, byHand });
    child.ends = token.text === endText;
    parent.children.push(child);
  }
  parent.last = child;
  return child;
}

export function take(id) {
  if (!shape.value || isBehind()) return;
  const token = shape.value.tokens.find((one) => one.id === id);
  if (!token) return;
  const child = append(node.value, token, id !== shape.value.token);
  if (id === shape.value.token) child.ends ||= shape.value.finish_reason === "stop";
  goTo(child);
}

export const takeMarked = () => shape.value && take(marked.value ?? shape.value.token);

/** Let the model write on with the same parameters, draw by draw. */
export async function write(count) {
  if (writing.value || !prompt.value || node.value.ends) return;
  const start = node.value;
  writing.value = true;
  try {
    const found = await post("v1/inspect/distribution", body(start, count));
    if (start !== node.value) return;
    let end = start;
    for (const token of found.drawn) end = append(end, token, false);
    end.ends ||= found.finish_reason === "stop";
    goTo(end);
  } catch (error) {
    fail(error);
  } finally {
    writing.value = false;
  }
}

// ---- the address -------------------------------------------------------------------------------

const OWN = ["text", "chat", "seed", "answer", ...SLIDERS.map(({ name }) => name)];

const others = () =>
  Object.fromEntries(Object.entries(extra.value).filter(([name]) => !OWN.includes(name)));

function keep() {
  if (!open) return; // an answer came after the page was left: the address is another page's
  if (text.value.length > LONGEST_LINK) {
    extra.value = others();
    return;
  }
  const kept = { ...others(), text: text.value, seed: seed.value };
  if (asChat.value) kept.chat = 1;
  for (const { name, off } of SLIDERS) {
    if (params.value[name] !== off) kept[name] = params.value[name];
  }
  const answer = pathTo(node.value).map((one) => one.token.id);
  if (answer.length) kept.answer = answer.join(".");
  extra.value = kept;
}

/** Show what the address says, if it says anything, and ask from now on. */
export async function enter() {
  open = true;
  await learnEnd();
  if (!open) return; // the page was left meanwhile
  const { text: written, chat, seed: number, answer, ...values } = extra.value;
  if (written === undefined) {
    keep();
    ask();
    return;
  }
  batch(() => {
    changeText(String(written), Boolean(chat));
    if (Number.isSafeInteger(Number(number))) seed.value = Number(number);
    params.value = Object.fromEntries(
      SLIDERS.map(({ name, off }) => [name, Number.isFinite(+values[name]) ? +values[name] : off]),
    );
  });
  await restore((answer ?? "").split(".").filter(Boolean).map(Number));
}

/** The tokens of an answer that somebody else has written, with their log-probabilities. */
async function restore(ids) {
  clearTimeout(timer);
  const begun = root.value;
  try {
    await encode();
    if (ids.length && prompt.value) {
      const all = [...prompt.value.ids, ...ids];
      const fields = { prompt: all, max_tokens: 0, echo: true, logprobs: 0 };
      const { tokens, token_logprobs } = (await post("v1/completions", fields)).choices[0].logprobs;
      if (begun !== root.value) return; // another text was typed meanwhile, and has been asked
      let end = root.value;
      ids.forEach((id, place) => {
        const at = prompt.value.ids.length + place;
        end = append(end, { id, text: tokens[at], logprob: token_logprobs[at] }, false);
      });
      node.value = end;
    }
  } catch (error) {
    problem.value = error.message;
  }
  keep();
  ask();
}

export function leave() {
  open = false;
  clearTimeout(timer);
  extra.value = others();
}
