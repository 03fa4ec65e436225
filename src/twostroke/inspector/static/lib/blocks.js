// The state of the KV blocks: asked for while somebody looks, since no single step says it.

import { askAgain } from "./ask_again.js";
import { signal } from "./html.js";
import { count, many, shortId } from "./format.js";
import { api, description, playing } from "./source.js";
import { store } from "./store.js";

/** `BlockMap` of `/v1/inspect/state?blocks=true`; null while nobody knows. */
export const blocks = signal(null);
const EVERY_MS = 500;

/** Of a recording the moment that is shown; a live engine says how it is now. */
export const moment = () =>
  description.value?.kind === "live" ? "" : `&step=${Math.max(0, store.lastStep)}`;

/** Ask again and again until the function that this returns is called. */
export function watchBlocks() {
  const about = () => {
    const found = description.value;
    if (!found) return null;
    const live = found.kind === "live";
    // What stands still needs to be asked for once.
    const key = live ? String(playing.value) : `${found.engine_id} ${moment()} ${found.ready}`;
    return { key, live, changes: live && playing.value };
  };
  return askAgain(EVERY_MS, about, async ({ live }) => {
    const state = await (await api(`/state?blocks=true${moment()}`)).json();
    if (live) store.learn(state);
    blocks.value = state.blocks;
  }).stop;
}

/** Why there is no map. */
export function whyNoBlocks() {
  const found = description.value;
  if (found?.kind === "live") return "asking";
  if ((found?.ready ?? 0) < 1) return "by number, until the recording has been read";
  return "by number: this recording was made by a version that did not tell the blocks";
}

/** A block's place in the columns; -1 if it is empty. */
export const indexOf = (map, block) => map.cells.block.indexOf(block);

export function aboutBlock(block) {
  const map = blocks.value;
  if (!map) return ["What each block holds is not known here."];
  const index = indexOf(map, block);
  const size = `It has room for ${map.block_size} tokens.`;
  if (index < 0) return ["It is empty: no request holds it and it caches nothing.", size];
  const { owner, position, holders, cached, age } = map.cells;
  const lines = [];
  if (owner[index] >= 0) {
    const id = map.owners[owner[index]];
    const first = position[index] * map.block_size;
    const record = store.requests.get(id);
    const what = record && first < record.prompt ? "of its prompt" : "of its output";
    lines.push(
      `Held by ${shortId(id)}: positions ${count(first)} to` +
        ` ${count(first + map.block_size - 1)}, ${what}.`,
    );
    if (holders[index] > 1) {
      lines.push(
        `${holders[index]} requests share it: they begin with the same tokens, which are` +
          " computed and kept once.",
      );
    }
    lines.push(
      cached[index]
        ? "It is full and indexed: a new request that begins alike finds it."
        : "It is not full yet, so no other request can find it.",
    );
  } else {
    lines.push(
      "Free, but it keeps its content: a request that begins alike finds it and need not" +
        " compute it.",
    );
    lines.push(
      age[index] === 0
        ? "It is the next one to be given to somebody else."
        : `${many(age[index], "block is", "blocks are")} given away before it.`,
    );
  }
  lines.push(size);
  return lines;
}

export const saved = (map) => `${count(map.tokens_saved)} tokens`;
