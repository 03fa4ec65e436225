// What passed before a request's first step, as the server knows it: asked once a request.

import { signal } from "./html.js";
import { json } from "./source.js";

const MOST = 64; // requests that are remembered
const answers = new Map(); // by id; null while it is asked
const came = signal(0);

async function ask(id) {
  if (answers.size >= MOST) answers.clear();
  answers.set(id, null);
  const about = (name) => json(`/${name}?id=${encodeURIComponent(id)}`);
  try {
    const [{ call }, waits] = await Promise.all([about("request"), about("waits")]);
    answers.set(id, { call, waits });
    came.value += 1;
  } catch {
    // Then only the steps tell of it.
  }
}

/** `{call, waits}` of a request that has started; what is not known (yet) is left out. */
export function startOf(record) {
  came.value;
  if (record.started === null) return {};
  if (!answers.has(record.id)) ask(record.id);
  return answers.get(record.id) ?? {};
}
