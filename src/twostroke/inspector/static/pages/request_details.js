// What no step says of a request: its stations over HTTP, its blocks, its tokens.

import { askAgain } from "../lib/ask_again.js";
import { signal } from "../lib/html.js";
import { moment } from "../lib/blocks.js";
import { api, description } from "../lib/source.js";
import { store } from "../lib/store.js";

/** `{id, call, blocks, waits}` of `/v1/inspect/request`; of another request: old. */
export const details = signal(null);
const EVERY_MS = 400;

/**
 * Ask about the request that `current` names, as long as it changes; until the function that this
 * returns is called.
 */
export function watchDetails(current) {
  const about = () => {
    const found = description.value;
    const id = current();
    if (!found || !id) return null;
    const record = store.requests.get(id);
    const call = details.value?.id === id ? details.value.call : null;
    const isOver = record?.status === "finished" && (call === null || call.ended !== null);
    const key = `${found.engine_id} ${id} ${moment()} ${found.ready} ${isOver}`;
    return { key, id, changes: found.kind === "live" && !isOver };
  };
  return askAgain(EVERY_MS, about, async ({ id }) => {
    const path = `/request?id=${encodeURIComponent(id)}&blocks=true${moment()}`;
    const [found, waits] = await Promise.all([
      api(path).then((answer) => answer.json()),
      api(`/waits?id=${encodeURIComponent(id)}`).then((answer) => answer.json()),
    ]);
    details.value = { id, ...found, waits };
  }).stop;
}

/** The call of a request; null if there is none, undefined until it is known. */
export const callOf = (record) =>
  details.value?.id === record.id ? details.value.call : undefined;

/** Seconds that it waited, by reason; null where nothing is known of it. */
export const waitsOf = (record) => (details.value?.id === record.id ? details.value.waits : null);

export const blocksOf = (record) =>
  details.value?.id === record.id ? details.value.blocks : undefined;
