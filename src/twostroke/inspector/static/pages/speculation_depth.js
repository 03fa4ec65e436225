// How far ahead a request is guessed, pass by pass, and the reason for each change.

import { html, view } from "../lib/html.js";
import { select, selected, selectRequest } from "../lib/address.js";
import { Canvas, hatch } from "../lib/canvas.js";
import { clock, count, many, shortId } from "../lib/format.js";
import { description } from "../lib/source.js";
import { store } from "../lib/store.js";
import {
  changesOf,
  depthWord,
  figures,
  passesOf,
  shownRequest,
  whyDepth,
} from "./speculation_figures.js";

const BAND = 18; // reasons, below the bars
const LEFT = 24;
const TOP = 8;
const MOST_CHANGES = 12;
const COLOURS = {
  fixed: "cached",
  asked: "waiting",
  pays: "cached",
  trial: "prefill",
  awaited: "prefill",
  does_not_pay: "waiting",
  cannot_pay: "waiting",
  no_budget: "alarm",
  remeasure: "waiting",
};

let layout = null; // of the last drawing, for the pointer

/** One column a pass: right guesses from below, wrong ones above them; the depth as a line. */
function draw(record) {
  return (context, width, height, palette) => {
    store.tick.value;
    const passes = passesOf(record);
    if (!passes.length) return;
    const changes = changesOf(record);
    const wide = Math.max(3, Math.min(16, Math.floor((width - LEFT) / passes.length)));
    const shown = passes.slice(-Math.floor((width - LEFT) / wide));
    const most = Math.max(2, ...shown.map((pass) => pass[2]), ...changes.map((one) => one.depth));
    const base = height - BAND - 6;
    const unit = (base - TOP) / most;
    layout = { wide, shown };
    drawScale(context, palette, width, base, unit, most);
    shown.forEach(([, , drafts, right], index) => {
      const x = LEFT + index * wide;
      const inset = wide > 4 ? 1 : 0;
      context.fillStyle = palette.cached;
      context.fillRect(x, base - right * unit, wide - inset, right * unit);
      if (drafts > right) {
        // Only the first wrong one was compared; what came behind it is hatched.
        context.fillStyle = palette.alarm;
        context.fillRect(x, base - (right + 1) * unit, wide - inset, unit);
        const rest = drafts - right - 1;
        if (rest) {
          const y = base - drafts * unit;
          hatch(context, x, y, wide - inset, rest * unit, palette.alarm, 4);
        }
      }
    });
    drawReasons(context, palette, shown, changes, wide, base, unit);
  };
}

function drawScale(context, palette, width, base, unit, most) {
  context.font = `12px ${palette.font}`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.lineWidth = 1;
  for (let at = 0; at <= most; at += most > 8 ? 4 : most > 4 ? 2 : 1) {
    const y = Math.round(base - at * unit) + 0.5;
    context.strokeStyle = palette.line;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width, y);
    context.stroke();
    context.fillStyle = palette.muted;
    context.fillText(at, LEFT - 6, y);
  }
  context.textAlign = "left";
}

/** The depth that was chosen, as a line; below, a band of its reasons. */
function drawReasons(context, palette, shown, changes, wide, base, unit) {
  if (!changes.length) return;
  let at = 0;
  let reason = null;
  let from = LEFT;
  const close = (x) => {
    if (!reason) return;
    context.fillStyle = palette[COLOURS[reason.reason] ?? "waiting"];
    context.fillRect(from, base + 6, Math.max(1, x - from - 1), 3);
    const words = depthWord(reason.reason);
    context.font = `12px ${palette.font}`;
    if (context.measureText(words).width + 4 < x - from) {
      context.textBaseline = "top";
      context.fillText(words, from, base + 11);
    }
  };
  context.strokeStyle = palette.ink;
  context.lineWidth = 1.5;
  context.beginPath();
  shown.forEach((pass, index) => {
    const x = LEFT + index * wide;
    // A choice shows in the next pass, which verifies what it asked for.
    while (at < changes.length && changes[at].step < pass[5]) {
      if (reason?.reason !== changes[at].reason) {
        close(x);
        from = x;
      }
      reason = changes[at];
      at += 1;
    }
    if (!reason) return;
    const y = base - reason.depth * unit;
    context.lineTo(x, y);
    context.lineTo(x + wide, y);
  });
  context.stroke();
  context.lineWidth = 1;
  close(LEFT + shown.length * wide);
}

function pick(canvas) {
  const at = (index) => {
    const pass = layout?.shown[Math.max(0, Math.min(layout.shown.length - 1, index))];
    if (pass) select({ kind: "step", step: pass[5] });
  };
  canvas.addEventListener("click", (event) => {
    const x = event.clientX - canvas.getBoundingClientRect().left - LEFT;
    if (layout && x >= 0) at(Math.floor(x / layout.wide));
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !layout) return;
    event.preventDefault();
    const chosen = selected.value?.kind === "step" ? selected.value.step : -1;
    const from = layout.shown.findIndex((pass) => pass[5] === chosen);
    at(from < 0 ? layout.shown.length - 1 : from + by);
  });
}

const HOW =
  "One column a pass of this request. Green: guesses that came true. Red: the first wrong one," +
  " which the model's own token replaced; hatched: guesses behind it, never compared. The line is" +
  " the depth that was chosen, the band below says why. Select a column to read about its step.";

export const Depth = view(() => {
  store.tick.value;
  const record = shownRequest();
  if (!record) return null;
  const passes = passesOf(record);
  const drafted = passes.reduce((sum, pass) => sum + pass[2], 0);
  const right = passes.reduce((sum, pass) => sum + pass[3], 0);
  const words =
    `${many(drafted, "guess", "guesses")} in ${many(passes.length, "pass", "passes")},` +
    ` ${count(right)} right`;
  return html`<section class="panel spec-depth">
    <h2>
      Depth, pass by pass
      <span class="muted"
        ><button class="link mono" onClick=${() => selectRequest(record.id)}>
          ${shortId(record.id)}</button
        >: ${words}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>${HOW}</p>
      </details>
    </h2>
    <${Canvas}
      key=${record.number}
      label=${`${words}; arrow keys go through the passes`}
      focusable=${true}
      draw=${draw(record)}
      bind=${pick}
    />
    <p class="legend">
      <span><i class="cached"></i>right</span><span><i class="alarm"></i>wrong</span
      ><span><i class="spec-void"></i>behind a wrong one</span
      ><span><i class="spec-line"></i>depth chosen</span>
    </p>
  </section>`;
});

/** The latest changes of depth, of the selected request or of all. */
export const Reasons = view(() => {
  const { changes, record } = figures();
  if (!changes.length) return null;
  const about = record ? `of ${shortId(record.id)}` : "of all requests";
  return html`<section class="panel">
    <h2>Why this deep <span class="muted">the latest changes ${about}</span></h2>
    <table class="list spec-why">
      <thead>
        <tr>
          <th class="n">step</th>
          <th class="wide">time</th>
          <th>request</th>
          <th class="n">depth</th>
          <th>why</th>
        </tr>
      </thead>
      <tbody>
        ${changes.slice(0, MOST_CHANGES).map(
          (change) =>
            html`<tr key=${`${change.step} ${change.record.number}`}>
              <td class="n">
                <button
                  class="link"
                  onClick=${() => select({ kind: "step", step: change.step })}
                >
                  ${count(change.step)}
                </button>
              </td>
              <td class="muted wide">${clock(change.time, description.value)}</td>
              <td class="mono">
                <button class="link" onClick=${() => selectRequest(change.record.id)}>
                  ${shortId(change.record.id)}
                </button>
              </td>
              <td class="n">${change.depth}</td>
              <td>${whyDepth(change)}</td>
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
});

