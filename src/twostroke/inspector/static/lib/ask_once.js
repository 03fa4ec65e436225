// What a page asks the server for once, as long as the same source is open.

import { signal } from "./html.js";
import { description, json } from "./source.js";

/**
 * `answer` is null until it has come; `failure` says why it has not. A page calls `ask` as often as
 * it is drawn, and so asks again after a failure. `opened` makes of the JSON what is kept.
 */
export function askOnce(path, opened = (answer) => answer) {
  const answer = signal(null);
  const failure = signal("");
  let askedFor = null;
  const ask = async () => {
    const source = description.value?.engine_id;
    if (!source || askedFor === source) return;
    askedFor = source;
    try {
      answer.value = opened(await json(path));
      failure.value = "";
    } catch (error) {
      askedFor = null;
      failure.value = error.message;
    }
  };
  return { answer, failure, ask };
}
