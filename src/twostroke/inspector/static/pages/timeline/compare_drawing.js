// Two runs of the same requests, one above the other on one scale of time.

import { selected } from "../../lib/address.js";
import { nameOf, signed } from "./compare_words.js";
import { drawArea, drawAxis, drawNames, drawShares, drawWaits } from "./drawing.js";

const TITLE = 22;
const AREA = 36;
const AXIS = 22;
const PAD = 8;
const LEAST_LANE = 3;
const MOST_LANE = 14;
const MOST_LANES = 400; // more are not drawn
const AROUND = 320; // pixels of the window for what stands beside the drawing
const LABELS = 72; // for the seconds at the end of lanes

/** So high that both sides are in the window, where that can be. */
function laneFor(number) {
  const room = Math.max(480, innerHeight - AROUND) - AXIS;
  const lane = Math.floor((room / 2 - TITLE - AREA - 2 * PAD) / number);
  return Math.max(LEAST_LANE, Math.min(MOST_LANE, lane));
}

export function heightFor(number) {
  const shown = Math.min(number, MOST_LANES);
  return 2 * (TITLE + AREA + 2 * PAD + shown * laneFor(shown)) + AXIS;
}

/** Draw both sides; returns what `recordIn` needs. */
export function drawSides(context, palette, { answer, sides, width, height, view }) {
  const [begin, end] = view;
  const narrow = width < 520;
  const left = narrow ? 52 : 76;
  const right = width - (narrow ? 64 : LABELS);
  const x = (moment) => left + ((moment - begin) / Math.max(1e-9, end - begin)) * (right - left);
  const half = (height - AXIS) / 2;
  const number = Math.min(answer.requests.length, MOST_LANES);
  const lane = laneFor(number);
  const scene = { begin, end, x, left, width: right };
  context.font = `12px ${palette.font}`;
  drawAxis(context, palette, scene, height - AXIS, height);
  const tops = sides.map((side, place) => {
    const top = place * half;
    context.font = `600 13px ${palette.font}`;
    context.textBaseline = "middle";
    const title = `${place ? "Instead" : "As it was set"}: ${nameOf(side.settings)}`;
    context.fillStyle = palette.panel; // the lines of the axis end below it
    context.fillRect(0, top, width, TITLE);
    context.fillStyle = palette.ink;
    const margin = narrow ? 0 : left;
    context.fillText(title, margin, top + TITLE / 2, width - margin);
    context.font = `12px ${palette.font}`;
    const rows = side.data.rowsWithin(begin, end);
    const shown = { ...scene, parts: [{ data: side.data, rows }] };
    drawArea(context, palette, shown, top + TITLE, AREA);
    const first = top + TITLE + AREA + PAD;
    if (place) shadeDifferences(context, palette, answer, { x, left, right, top: first, lane });
    drawLanes(context, palette, shown, side, first, lane);
    return first;
  });
  drawEnds(context, palette, answer, { x, left, right, tops, lane, width });
  return { tops, lane, records: sides[0].records, left, number };
}

function drawLanes(context, palette, scene, side, first, height) {
  const records = [];
  const tops = new Map();
  side.records.slice(0, MOST_LANES).forEach((record, index) => {
    if (!record) return;
    records.push(record);
    tops.set(record.number, first + index * height);
  });
  const lanes = { records, height, packed: false };
  context.save();
  context.beginPath();
  context.rect(scene.left, 0, scene.width - scene.left, first + side.records.length * height);
  context.clip();
  drawWaits(context, palette, scene, lanes, tops, scene.end);
  drawShares(context, palette, scene, lanes, tops);
  context.restore();
  const chosen = records.find((record) => record.id === selected.value?.id);
  if (chosen) {
    context.strokeStyle = palette.accent;
    context.strokeRect(
      scene.left + 0.5,
      tops.get(chosen.number) + 0.5,
      scene.width - scene.left - 1,
      Math.max(2, height - 1),
    );
  }
  drawNames(context, palette, lanes, tops, scene.left, chosen);
}

/** Behind the lanes below: the time from where a request ended above to where it ends here. */
function shadeDifferences(context, palette, answer, { x, left, right, top, lane }) {
  answer.requests.slice(0, MOST_LANES).forEach((_, index) => {
    const [one, other] = ends(answer, index);
    if (one === null || other === null) return;
    const from = Math.max(left, Math.min(x(one), x(other)));
    const to = Math.min(right, Math.max(x(one), x(other)));
    if (to <= from) return;
    context.fillStyle = other > one ? palette.alarm : palette.cached;
    context.globalAlpha = 0.18;
    context.fillRect(from, top + index * lane, to - from, lane);
    context.globalAlpha = 1;
  });
}

/** Above, where each ended when it was served; below, at the end of its lane, the seconds. */
function drawEnds(context, palette, answer, { x, left, right, tops, lane, width }) {
  const every = Math.max(1, Math.ceil(13 / lane));
  context.font = `11px ${palette.font}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  answer.requests.slice(0, MOST_LANES).forEach((request, index) => {
    if (request.finish !== null && x(request.finish) >= left && x(request.finish) <= right) {
      context.fillStyle = palette.ink;
      context.fillRect(x(request.finish), tops[0] + index * lane, 1, lane);
    }
    const [one, other] = ends(answer, index);
    if (one === null || other === null || index % every) return;
    const colour = other > one ? palette.alarm : palette.cached;
    context.fillStyle = Math.abs(other - one) < 0.0005 ? palette.muted : colour;
    context.fillText(signed(other - one), width - 4, tops[1] + index * lane + lane / 2);
  });
  context.textAlign = "left";
}

const ends = (answer, index) => [answer.recorded.finish[index], answer.other.finish[index]];

/** The record whose lane, above or below, a click hits. */
export function recordIn({ tops, lane, records, number }, event, canvas) {
  const y = event.clientY - canvas.getBoundingClientRect().top;
  for (const top of tops) {
    const index = Math.floor((y - top) / lane);
    if (index >= 0 && index < number && y >= top) return records[index] ?? null;
  }
  return null;
}
