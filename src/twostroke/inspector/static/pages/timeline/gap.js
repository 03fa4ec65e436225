// "Who stuttered me": the selected request's gaps as a strip, a line from the worst to its cause.

import { selected, selectRequest } from "../../lib/address.js";
import { tell } from "../../lib/copy.js";
import { worstGap } from "../../lib/explain.js";
import { many, shortId, time } from "../../lib/format.js";
import { gapsOf, isOwn, store } from "../../lib/store.js";
import { show } from "./view.js";

export const STRIP = 56; // pixels
const PAD = 8;

const MOST_SHOWN = 8; // requests that a repeated question goes through
let answered = null; // the request that was shown last

/**
 * Select the request that has the longest gap of all that are in the store, and show it; asked
 * again, the next one.
 */
export function worstOfAll() {
  const known = [...store.requests.values()].filter(
    (record) => record.worstRow >= store.steps.first && !isOwn(record),
  );
  known.sort((one, other) => other.worstGap - one.worstGap);
  if (!known.length) {
    tell("no gap between tokens is known yet");
    return;
  }
  const again = answered !== null && selected.value?.id === answered;
  const before = again ? known.findIndex((record) => record.id === answered) : -1;
  const worst = known[(before + 1) % Math.min(known.length, MOST_SHOWN)];
  answered = worst.id;
  const found = worstGap(worst);
  selectRequest(worst.id);
  const wide = Math.max(8 * found.gap, 0.2);
  const end = Math.min(found.end + 0.4 * wide, Math.max(found.end + 0.1 * wide, store.now));
  show(end - wide, end);
}

/** The strip of gaps under the lanes, and what caused the longest. Returns the longest in view. */
export function drawChosen(context, palette, chosen, lanes, tops, scene) {
  const { x, left, width, bottom } = scene;
  const lane = tops.get(chosen.number);
  if (lane !== undefined) {
    context.strokeStyle = palette.accent;
    context.strokeRect(left + 0.5, lane + 0.5, width - left - 1, lanes.height - 1);
  }
  const base = bottom + PAD + STRIP;
  const rows = store.rowsWithin(scene.begin, scene.end);
  const gaps = gapsOf(store, chosen, rows[0], rows[1]);
  const most = gaps.reduce((longest, gap) => Math.max(longest, gap[1]), 1e-6);
  context.fillStyle = palette.line;
  context.fillRect(left, base, width - left, 1);
  for (const [end, gap, row] of gaps) {
    const begin = x(end - gap);
    context.fillStyle = row === chosen.worstRow ? palette.alarm : palette.decode;
    const tall = Math.max(1, (gap / most) * (STRIP - 16));
    context.fillRect(begin, base - tall, Math.max(1, x(end) - begin - 0.5), tall);
  }
  const found = chosen.worstGap > 0 ? worstGap(chosen) : null;
  if (found && x(found.begin) <= width && x(found.end) >= left) {
    drawCause(context, palette, found, lanes, tops, { ...scene, lane, base, most });
  }
  return gaps.length ? most : 0;
}

/** What the strip shows, and its greatest value, left of it. */
export function drawStripNames(context, palette, left, bottom, most) {
  const base = bottom + PAD + STRIP;
  context.fillStyle = palette.muted;
  context.font = `12px ${palette.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText("its gaps", left - 8, base - STRIP + 20);
  context.fillText(`\u2264 ${time(most)}`, left - 8, base - STRIP + 36);
  context.textAlign = "left";
}

/** The gap on its own lane as a bracket, a line to its cause, and the cause in a frame. */
function drawCause(context, palette, found, lanes, tops, scene) {
  const { x, left, width, bottom, lane, base, most } = scene;
  const from = x(found.begin);
  const to = Math.max(from + 3, x(found.end));
  const at = Math.round((from + to) / 2) + 0.5;
  context.strokeStyle = palette.alarm;
  context.fillStyle = palette.alarm;
  if (lane !== undefined) {
    context.globalAlpha = 0.16;
    context.fillRect(from, lane, to - from, lanes.height);
    context.globalAlpha = 1;
    context.strokeRect(from + 0.5, lane + 0.5, to - from - 1, lanes.height - 1);
  }
  const other = found.cause === "prompts" ? found.causes[0]?.[0] : null;
  const cause = other && tops.get(other.number);
  const strip = base - (found.gap / most) * (STRIP - 16);
  context.beginPath();
  context.moveTo(at, strip);
  context.lineTo(at, lane === undefined ? bottom : lane + lanes.height);
  context.stroke();
  if (cause !== undefined && cause !== null) {
    const down = lane === undefined || cause > lane;
    const near = lane === undefined ? bottom : down ? lane + lanes.height : lane;
    const far = down ? cause : cause + lanes.height;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(at, near);
    context.lineTo(at, far);
    context.moveTo(at - 4, far + (down ? -6 : 6));
    context.lineTo(at, far);
    context.lineTo(at + 4, far + (down ? -6 : 6));
    context.stroke();
    context.strokeRect(from + 0.5, cause + 0.5, to - from - 1, lanes.height - 1);
    context.lineWidth = 1;
  }
  context.font = `12px ${palette.font}`;
  const why = other
    ? `: ${shortId(other.id)} computed ${many(found.causes[0][1], "prompt token")}`
    : `: ${WORDS[found.cause]}`;
  const words = `${time(found.gap)}${why}`;
  const wide = context.measureText(words).width;
  context.fillText(words, Math.max(left + 4, Math.min(at + 6, width - wide - 4)), bottom + PAD + 6);
}

const WORDS = {
  preempted: "it was preempted",
  held: "it was held back",
  pause: "no step ran",
  step: "the machine was slow in this pass",
};
