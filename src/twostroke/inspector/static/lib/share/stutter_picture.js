// A stutter and its culprit as one picture with a caption, to be sent on.

import { colours } from "../canvas.js";
import { tell } from "../copy.js";
import { aboutGap } from "../explain.js";
import { clock, foreign, shortId, time } from "../format.js";
import { description } from "../source.js";
import { store } from "../store.js";

const WIDTH = 960;
const LANE = 30;
const MARGIN = 110;
const EDGE = 24;
const LINE = 20;
const MOST_CULPRITS = 4;
const AROUND = 0.8; // of the gap, before it and after it
const TOKENS = 3; // usual gaps at least, so that tokens before it and after it are seen

/** The words of the caption as lines that fit. */
function wrapped(pen, text, width) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (pen.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

function drawLane(pen, palette, record, y, x, [from, to]) {
  pen.fillStyle = palette.ink;
  pen.fillText(shortId(record.id), EDGE, y + LANE / 2 + 5);
  for (const [row, share] of store.sharesFor(record)) {
    const [begin, end] = [store.steps.get("time", row), store.endOf(row)];
    if (end < from || begin > to) continue;
    if (store.shares.get("prompt", share)) {
      pen.fillStyle = palette.prefill;
      const left = x(Math.max(begin, from));
      pen.fillRect(left, y + 5, Math.max(2, x(Math.min(end, to)) - left - 1), LANE - 10);
    }
    if (!store.shares.get("new", share) || end > to) continue;
    pen.fillStyle = palette.decode;
    pen.fillRect(x(end) - 1, y + 8, 2, LANE - 16);
  }
}

/** Draw the gap, those whose prompts ran in it, and why, into a canvas. */
export function drawStutter(record, gap) {
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d");
  const palette = colours();
  const font = (size, weight = "") => `${weight} ${size}px ${palette.font}`;
  pen.font = font(15);
  const lines = wrapped(pen, aboutGap(record, gap).join(" "), WIDTH - 2 * EDGE);
  const lanes = [record, ...gap.causes.slice(0, MOST_CULPRITS).map(([other]) => other)];
  const top = 2 * EDGE + LINE + lines.length * LINE;
  const height = top + lanes.length * LANE + 2 * LINE + EDGE;
  const scale = 2;
  canvas.width = scale * WIDTH;
  canvas.height = scale * height;
  pen.scale(scale, scale);
  pen.fillStyle = palette.panel;
  pen.fillRect(0, 0, WIDTH, height);
  pen.fillStyle = palette.ink;
  pen.font = font(20, "600");
  pen.fillText(`${shortId(record.id)} stood still for ${time(gap.gap)}`, EDGE, EDGE + 14);
  pen.font = font(15);
  lines.forEach((line, at) => pen.fillText(line, EDGE, 2 * EDGE + 14 + (at + 1) * LINE));
  const around = Math.max(AROUND * gap.gap, TOKENS * (gap.usual ?? 0));
  const span = [gap.begin - around, gap.end + around];
  const x = (at) =>
    MARGIN + EDGE + ((at - span[0]) / (span[1] - span[0])) * (WIDTH - MARGIN - 2 * EDGE);
  pen.font = font(13);
  lanes.forEach((lane, at) => drawLane(pen, palette, lane, top + at * LANE, x, span));
  pen.strokeStyle = palette.alarm;
  pen.lineWidth = 2;
  pen.strokeRect(x(gap.begin), top + 2, x(gap.end) - x(gap.begin), LANE - 4);
  pen.fillStyle = palette.muted;
  const name = description.value ? foreign(description.value.name, 40) : "";
  pen.fillText(
    `${name}, step ${gap.step}, ${clock(gap.begin, description.value)}. Solid: prompt tokens;` +
      " ticks: output tokens; framed: the gap.",
    EDGE,
    height - EDGE + 4,
  );
  return canvas;
}

/** Save it as a PNG. */
export function saveStutter(record, gap) {
  drawStutter(record, gap).toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `twostroke-stutter-${shortId(record.id).replace(/[^\w-]/g, "_")}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    tell("picture saved");
  }, "image/png");
}
