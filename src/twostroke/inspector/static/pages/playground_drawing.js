// The cumulative distribution as one bar, and the uniform number as a needle on it.

import { hatch } from "../lib/canvas.js";
import { named, percent } from "./playground_words.js";

const TOP = 22; // for the number above the needle
const BAR = 26;

/** Shares of the bar in the order of the vocabulary: listed tokens, and others between them. */
export function sharesOf(shape) {
  const kept = shape.tokens.filter((token) => token.end > token.begin);
  kept.sort((one, other) => one.begin - other.begin);
  const shares = [];
  let at = 0;
  for (const token of kept) {
    if (token.begin - at > 1e-9) shares.push({ begin: at, end: token.begin, token: null });
    shares.push({ begin: token.begin, end: token.end, token });
    at = token.end;
  }
  if (1 - at > 1e-9) shares.push({ begin: at, end: 1, token: null });
  return shares;
}

export function drawCumulative(shape) {
  return (context, width, height, palette) => {
    const x = (share) => share * width;
    context.textBaseline = "middle";
    context.font = `12px ${palette.mono}`;
    sharesOf(shape).forEach(({ begin, end, token }, index) => {
      const [left, wide] = [x(begin), x(end) - x(begin)];
      if (!token) {
        context.fillStyle = palette.faint;
        context.fillRect(left, TOP, wide, BAR);
        hatch(context, left, TOP, wide, BAR, palette.line);
        return;
      }
      const isDrawn = token.id === shape.token;
      context.globalAlpha = isDrawn ? 1 : index % 2 ? 0.22 : 0.36;
      context.fillStyle = palette.decode;
      context.fillRect(left, TOP, Math.max(isDrawn ? 2 : 0.5, wide), BAR);
      context.globalAlpha = 1;
      const words = named(token.text, 16);
      // The drawn one has its name under the needle.
      if (!isDrawn && context.measureText(words).width < wide - 8) {
        context.fillStyle = palette.ink;
        context.textAlign = "center";
        context.fillText(words, left + wide / 2, TOP + BAR / 2 + 1);
      }
    });
    context.fillStyle = palette.muted;
    context.font = `12px ${palette.font}`;
    const base = TOP + BAR + 12;
    context.textAlign = "left";
    context.fillText("0", 0, base);
    context.textAlign = "right";
    context.fillText("1", width, base);
    if (shape.uniform !== null) {
      drawNeedle(context, shape, x(shape.uniform), width, palette);
    } else {
      const token = shape.tokens.find((one) => one.id === shape.token);
      context.textAlign = "center";
      context.fillStyle = palette.ink;
      context.fillText(named(token.text, 16), width / 2, base);
    }
    context.textAlign = "left";
  };
}

function drawNeedle(context, shape, at, width, palette) {
  const token = shape.tokens.find((one) => one.id === shape.token);
  context.fillStyle = palette.ink;
  context.fillRect(Math.round(at) - 1, TOP - 4, 2, BAR + 8);
  context.beginPath();
  context.moveTo(at - 5, TOP - 9);
  context.lineTo(at + 5, TOP - 9);
  context.lineTo(at, TOP - 2);
  context.fill();
  const number = shape.uniform.toFixed(4);
  context.textAlign = at > width - 64 ? "right" : "left";
  const side = at > width - 64 ? -10 : 10;
  context.fillText(number, at + side, TOP - 11);
  const share = token.probabilities[token.probabilities.length - 1];
  const words = `${named(token.text, 16)}  ${percent(share)}`;
  const half = context.measureText(words).width / 2;
  context.textAlign = "center";
  context.fillText(words, Math.min(width - half - 14, Math.max(half + 14, at)), TOP + BAR + 12);
}
