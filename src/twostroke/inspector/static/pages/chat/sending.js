// From a conversation to a call of the API, and from its stream back into the conversation.

import { batch, signal } from "../../lib/html.js";
import { NeedsKey, api, connection, trouble } from "../../lib/source.js";
import { append, nodeOf, pathOf, save, touch } from "./conversations.js";

const FRAME_MS = 50; // beyond, drawing would hold up what is typed
export const PATH = "v1/chat/completions";

/** Answers that are being written: node's id -> what ends it. */
export const writing = signal(new Map());
export const isWriting = (node) => writing.value.has(node.id);

/** The tools that a text of JSON offers. Throws what is wrong with it, in words. */
export function toolsOf(text) {
  if (!text.trim()) return null;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("Tools are a list: [{...}]");
  return tools;
}

function message(node) {
  if (node.role === "tool") {
    return { role: "tool", tool_call_id: node.call, content: node.content };
  }
  if (node.role !== "assistant" || !node.calls?.length) {
    return { role: node.role, content: node.content };
  }
  const calls = node.calls.map(({ id, name, arguments: text, custom }) =>
    custom
      ? { id, type: "custom", custom: { name, input: text } }
      : { id, type: "function", function: { name, arguments: text } },
  );
  return { role: "assistant", content: node.content || null, tool_calls: calls };
}

const says = (node) => node.role !== "assistant" || node.content || node.calls?.length;

/** The request for an answer to the message at the end of a path. */
export function bodyFor(chat, path) {
  const { system, tools, thoughts, fit, values } = chat.settings;
  const messages = path.filter(says).map(message);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  const documents = path.flatMap((node) => node.documents ?? []);
  if (documents.length) body.documents = documents;
  if (fit) body.context = {}; // what is too long is shortened, and the answer says by what
  const offered = toolsOf(tools);
  if (offered) body.tools = offered;
  if (thoughts) body.chat_template_kwargs = { enable_thinking: thoughts === "on" };
  return { ...body, ...values };
}

/** Ask for an answer to a message. */
export async function answer(chat, to) {
  stopAll(chat); // what is not shown any more could not be stopped
  const node = append(chat, to.id, { role: "assistant", content: "", sent: Date.now() });
  const abort = new AbortController();
  change((map) => map.set(node.id, abort));
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  try {
    const body = bodyFor(chat, pathOf(chat, to.id));
    const response = await api(`/../../${PATH}`, {
      body,
      signal: abort.signal,
      accept: "text/event-stream",
    });
    await readStream(response.body, (chunk) => {
      take(node, chunk, since);
      draw(chat);
    });
    node.finish ??= "cut";
  } catch (error) {
    fail(node, error, abort.signal.aborted);
    abort.abort(); // what is not read is not to be written
  }
  node.took = since();
  change((map) => map.delete(node.id));
  touch();
  save(chat);
}

function fail(node, error, stopped) {
  node.finish = stopped ? "stopped" : "error";
  if (stopped) return;
  node.error = error.message;
  if (error instanceof NeedsKey) {
    batch(() => {
      connection.value = "key";
      trouble.value = error.message;
    });
  }
}

function change(edit) {
  const map = new Map(writing.value);
  edit(map);
  writing.value = map;
}

let frame = 0; // the next drawing of what has come
let restsUntil = 0; // a text that is slow to draw is drawn less often

function draw(chat) {
  save(chat, false);
  if (performance.now() < restsUntil) return;
  frame ||= requestAnimationFrame((began) => {
    frame = 0;
    touch();
    setTimeout(() => {
      const now = performance.now();
      restsUntil = now + Math.max(0, 2 * (now - began) - FRAME_MS);
    });
  });
}

/** What the server sent, one event after another. */
export async function readStream(body, handle) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) {
      const line = event.split("\n").find((one) => one.startsWith("data: "));
      if (!line || line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(chunk.error.message ?? "the server failed");
      handle(chunk);
    }
  }
}

/** Add a chunk to an answer. */
function take(node, chunk, since) {
  node.request ??= chunk.id;
  if (chunk.usage) node.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning, reasoning_content: thought, tool_calls: calls } = choice.delta;
  if (content || reasoning || thought || calls) node.ttft ??= since();
  if (content) node.content += content;
  if (reasoning || thought) node.thoughts = (node.thoughts ?? "") + (reasoning ?? thought);
  for (const { index, id, function: named, custom } of calls ?? []) {
    node.calls ??= [];
    node.calls[index] ??= { id, name: "", arguments: "", custom: Boolean(custom) };
    const call = node.calls[index];
    call.name += (named ?? custom)?.name ?? "";
    call.arguments += named?.arguments ?? custom?.input ?? "";
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

// ---- what a person does ------------------------------------------------------------------------

/** Say something at the end of the branch shown. */
export function say(chat, content, documents) {
  const fields = { role: "user", content, ...(documents.length ? { documents } : {}) };
  return answer(chat, append(chat, chat.leaf, fields));
}

/** Say something else instead of a message. */
export function edit(chat, node, content) {
  const { documents } = node;
  const fields = { role: "user", content, ...(documents ? { documents } : {}) };
  return answer(chat, append(chat, node.parent, fields));
}

export const again = (chat, node) => answer(chat, nodeOf(chat, node.parent));

/** Give the results of an answer's calls, and ask for what the model makes of them. */
export function giveResults(chat, node, results) {
  let last = node;
  node.calls.forEach((call, index) => {
    last = append(chat, last.id, { role: "tool", call: call.id, content: results[index] });
  });
  return answer(chat, last);
}

export const stop = (node) => writing.value.get(node.id)?.abort();
export const stopAll = (chat) => chat.nodes.forEach(stop);

/** Names by which requests reach a model. */
export const models = signal([]);

export async function learnModels() {
  try {
    const response = await api("/../../v1/models");
    models.value = (await response.json()).data.map((model) => model.id);
  } catch {
    models.value = []; // the first message will say what is wrong
  }
}
