// What the timeline draws: the budget over time, and the lanes.
//
// A scene is a part of time on a part of the canvas: `begin`, `end`, `x` (from time to pixels),
// `left`, `width`, and `parts`: rings of steps with the rows that are in view, oldest first.

import { niceSeconds } from "../../lib/canvas.js";
import { clock, count, shortId } from "../../lib/format.js";
import { description } from "../../lib/source.js";

export const AREA = 64; // pixels of the budget over time

export function drawAxis(context, palette, { begin, end, x, left, width }, top, height) {
  const step = niceSeconds(end - begin, Math.max(2, (width - left) / 130));
  const digits = step >= 1 ? 0 : Math.max(3, Math.ceil(-Math.log10(step) - 1e-9));
  const above = 0.25 / 10 ** digits; // a time that lies just below its digits is cut to them
  context.strokeStyle = palette.line;
  context.fillStyle = palette.muted;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const wall = description.value?.clock_origin; // lines are at full seconds of the clock
  const origin = wall ? -(wall % step) : (description.value?.first_time ?? 0);
  for (let at = Math.ceil((begin - origin) / step) * step + origin; at < end; at += step) {
    const place = Math.round(x(at)) + 0.5;
    if (place < left || at < origin - 1e-9) continue;
    context.beginPath();
    context.moveTo(place, 0);
    context.lineTo(place, height - 16);
    context.stroke();
    if (place < width - 40)
      context.fillText(clock(at + above, description.value, digits), place + 4, height - 8);
  }
  context.beginPath();
  context.moveTo(left, top + 0.5);
  context.lineTo(width, top + 0.5);
  context.stroke();
}

/** Tokens a step as a stacked area: prefill below, decode above; the most of each pixel. */
export function drawArea(context, palette, { parts, x, left, width }, top = 0, tall = AREA) {
  let most = 1;
  for (const { data, rows } of parts) {
    for (let row = rows[0]; row < rows[1]; row += 1) {
      most = Math.max(most, data.steps.get("tokens", row) / data.steps.get("span", row));
    }
  }
  const base = top + tall;
  const high = (tokens) => (tokens / most) * (tall - 14);
  for (const { data, rows } of parts) {
    const { steps } = data;
    let pixel = -1;
    let prompt = 0;
    let decode = 0;
    let right = 0;
    const flush = () => {
      if (pixel < 0) return;
      const wide = Math.max(1, right - pixel);
      context.fillStyle = palette.prefill;
      context.fillRect(pixel, base - high(prompt), wide, high(prompt));
      context.fillStyle = palette.decode;
      context.fillRect(pixel, base - high(prompt + decode), wide, high(decode));
    };
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const begin = steps.get("time", row);
      const place = Math.max(left, Math.floor(x(begin)));
      const end = Math.min(width, x(begin + steps.get("duration", row)));
      const size = steps.get("span", row);
      const ofPrompt = steps.get("prompt", row) / size;
      const rest = steps.get("tokens", row) / size - ofPrompt;
      if (place !== pixel) {
        flush();
        pixel = place;
        prompt = ofPrompt;
        decode = rest;
      } else if (ofPrompt + rest > prompt + decode) {
        prompt = ofPrompt;
        decode = rest;
      }
      // Wide steps are a pixel apart, wherever they end.
      right = Math.max(place + 1, end - place > 6 ? Math.floor(end) - 1 : end - 0.5);
    }
    flush();
  }
  context.fillStyle = palette.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  if (tall >= 48) {
    context.fillText("tokens", left - 8, top + 20);
    context.fillText("a step", left - 8, top + 36);
  }
  context.textAlign = "left";
  context.fillText(tall >= 48 ? count(most) : `${count(most)} tokens a step`, left + 4, top + 8);
  context.strokeStyle = palette.line;
  context.beginPath();
  context.moveTo(left, base + 0.5);
  context.lineTo(width, base + 0.5);
  context.stroke();
}

/** Thin lines: from arrival to the first step, paler until the end. `now` ends what runs. */
export function drawWaits(context, palette, { x, begin, end }, lanes, tops, now) {
  context.fillStyle = palette.waiting;
  for (const record of lanes.records) {
    const middle = tops.get(record.number) + lanes.height / 2;
    const from = Math.max(begin, record.arrival ?? record.started ?? begin);
    const until = Math.min(end, record.started ?? record.finish ?? now);
    if (until > from) context.fillRect(x(from), middle - 0.5, x(until) - x(from), 1);
    const last = Math.min(end, record.finish ?? now);
    if (record.started !== null && last > record.started) {
      context.globalAlpha = 0.35;
      context.fillRect(
        x(Math.max(begin, record.started)),
        middle - 0.5,
        x(last) - x(Math.max(begin, record.started)),
        1,
      );
      context.globalAlpha = 1;
    }
  }
}

/** Prefill is solid and fills its lane, decode is a thin bar, or a tick for each token. */
export function drawShares(context, palette, { parts, x }, lanes, tops) {
  const tall = Math.max(2, lanes.height - Math.min(6, Math.ceil(lanes.height / 4)));
  const thin = Math.max(1, Math.round(tall * 0.45));
  const open = new Map(); // number -> [begin, end] of decode ticks that touch each other
  context.fillStyle = palette.decode;
  const flush = (number, [begin, end]) => {
    const lane = tops.get(number);
    context.fillRect(begin, lane + (lanes.height - thin) / 2, Math.max(1, end - begin), thin);
  };
  const prompts = [];
  for (const { data, rows } of parts) {
    const { steps, shares } = data;
    for (let row = rows[0]; row < rows[1]; row += 1) {
      const begin = x(steps.get("time", row));
      const end = x(steps.get("time", row) + steps.get("duration", row));
      const size = end - begin;
      const [first, last] = data.sharesOf(row);
      for (let share = first; share < last; share += 1) {
        const number = shares.get("request", share);
        if (!tops.has(number)) continue;
        const prompt = shares.get("prompt", share);
        if (prompt) {
          prompts.push([number, begin, Math.max(1.5, size - (size > 4 ? 1 : 0)), prompt]);
          continue;
        }
        // Wide steps show each token as a tick at the end of its step; narrow ones melt into a bar.
        const tick = size > 7 ? [end - Math.min(size * 0.6, 6) - 1, end - 1] : [begin, end];
        const before = open.get(number);
        if (before && size <= 7 && tick[0] - before[1] < 1.5) before[1] = tick[1];
        else {
          if (before) flush(number, before);
          open.set(number, tick);
        }
      }
    }
  }
  for (const [number, bar] of open) flush(number, bar);
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.font = `11px ${palette.font}`;
  for (const [number, begin, size, tokens] of prompts) {
    const lane = tops.get(number) + (lanes.height - tall) / 2;
    context.fillStyle = palette.prefill;
    context.fillRect(begin, lane, size, tall);
    if (size > 34 && tall >= 12) {
      context.fillStyle = palette.panel;
      context.fillText(count(tokens), begin + size / 2, lane + tall / 2 + 0.5);
    }
  }
  context.textAlign = "left";
}

/** Requests that only the overview knows: queue, prefill, decode, outside of the store's steps. */
export function drawLives(context, palette, { x, begin, end }, lanes, tops, lives, [from, to]) {
  const tall = Math.max(2, lanes.height - Math.min(6, Math.ceil(lanes.height / 4)));
  const thin = Math.max(1, Math.round(tall * 0.45));
  const bar = (since, until, lane, high) => {
    const middle = lane + (lanes.height - high) / 2;
    for (const [low, top] of [
      [begin, Math.min(end, from)],
      [Math.max(begin, to), end],
    ]) {
      const one = Math.max(since, low);
      const other = Math.min(until, top);
      if (other > one) context.fillRect(x(one), middle, Math.max(1, x(other) - x(one)), high);
    }
  };
  for (const record of lanes.records) {
    const life = lives.get(record.id);
    const lane = tops.get(record.number);
    if (!life) continue;
    const last = life.finish ?? Infinity;
    context.fillStyle = palette.waiting;
    bar(life.arrival, life.started ?? last, lane, 1);
    if (life.started === null) continue;
    context.fillStyle = palette.prefill;
    bar(life.started, life.firstToken ?? last, lane, tall);
    context.fillStyle = palette.decode;
    if (life.firstToken !== null) bar(life.firstToken, last, lane, thin);
  }
}

/** Preemptions with a line to who caused them, and how requests end. */
export function drawMarks(context, palette, { parts, x }, lanes, tops) {
  for (const { data, rows } of parts) {
    for (const [row, note] of data.notes) {
      if (row < rows[0] || row >= rows[1]) continue;
      for (const pair of note.preempted) {
        drawPreemption(context, palette, x(data.steps.get("time", row)), pair, lanes, tops);
      }
    }
  }
  for (const record of lanes.records) {
    if (record.finish === null) continue;
    const lane = tops.get(record.number);
    const bad = record.reason === "error" || record.reason === "abort";
    context.fillStyle = bad ? palette.alarm : palette.muted;
    context.fillRect(
      x(record.finish),
      lane + lanes.height / 2 - Math.min(4, lanes.height / 2),
      1,
      Math.min(8, lanes.height),
    );
  }
}

function drawPreemption(context, palette, at, [victim, by], lanes, tops) {
  const lane = tops.get(victim.number);
  if (lane === undefined) return;
  context.fillStyle = palette.alarm;
  context.fillRect(at - 1, lane, 2, lanes.height);
  const other = by && tops.get(by.number);
  if (other === undefined || other === null) return;
  context.strokeStyle = palette.alarm;
  context.beginPath();
  context.moveTo(at, lane + lanes.height / 2);
  context.lineTo(at, other + lanes.height / 2);
  context.stroke();
  context.beginPath();
  context.arc(at, other + lanes.height / 2, 2.5, 0, 7);
  context.fill();
}

export function drawNames(context, palette, lanes, tops, left, chosen) {
  context.font = `${lanes.height >= 14 ? 12 : 10}px ${palette.mono}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  if (lanes.packed) return; // a lane has many names
  const every = Math.ceil(12 / lanes.height);
  const at = lanes.records.indexOf(chosen);
  lanes.records.forEach((record, index) => {
    // The chosen one has its name, and room for it.
    const isClose = at >= 0 && Math.abs(index - at) < every;
    if (index !== at && (index % every || isClose)) return;
    context.fillStyle = record === chosen ? palette.accent : palette.muted;
    const middle = tops.get(record.number) + lanes.height / 2;
    context.fillText(shortId(record.id), left - 8, middle, left - 8);
  });
  context.textAlign = "left";
}
