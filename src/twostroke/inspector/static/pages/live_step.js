// The step being run, as a bar of its tokens: who got what.

import { html, view } from "../lib/html.js";
import { select, selected } from "../lib/address.js";
import { Canvas, hatch } from "../lib/canvas.js";
import { count, shortId, time } from "../lib/format.js";
import { store } from "../lib/store.js";

/** The step's tokens by request, the largest first; and above it how full its budget is. */
function drawStep(context, width, height, palette) {
  store.beat.value; // as the heading: bar and words are of one step
  selected.value;
  const row = store.shownRow;
  if (row < 0) return;
  const tokens = store.steps.get("tokens", row);
  const budget = store.steps.get("budget", row) || tokens;
  const prompt = store.steps.get("prompt", row);
  const full = Math.max(1, (tokens / budget) * width);
  hatch(context, 0, 0, width, 12, palette.line);
  context.fillStyle = palette.panel;
  context.fillRect(0, 0, full, 12);
  context.fillStyle = palette.prefill;
  context.fillRect(0, 0, (prompt / budget) * width, 12);
  context.fillStyle = palette.decode;
  context.fillRect(
    (prompt / budget) * width,
    0,
    Math.max(tokens > prompt ? 1 : 0, ((tokens - prompt) / budget) * width),
    12,
  );
  // The same tokens over the whole width, lines lead from one to the other.
  context.strokeStyle = palette.line;
  context.beginPath();
  context.moveTo(0.5, 12);
  context.lineTo(0.5, 22);
  context.moveTo(full, 12);
  context.lineTo(width - 0.5, 22);
  context.stroke();
  const shares = store.sizesOf(row);
  shares.sort((one, other) => other[2] - one[2] || one[0].number - other[0].number);
  context.font = `12px ${palette.mono}`;
  context.textBaseline = "middle";
  let x = 0;
  for (const [record, size, ofPrompt] of shares) {
    const span = (size / Math.max(1, tokens)) * width;
    context.fillStyle = ofPrompt ? palette.prefill : palette.decode;
    if (ofPrompt) context.fillRect(x, 22, Math.max(1, span - 1), 38);
    else context.fillRect(x, 31, Math.max(1, span - 1), 20);
    if (selected.value?.id === record.id) {
      context.strokeStyle = palette.accent;
      context.lineWidth = 2;
      context.strokeRect(x + 1, 23, Math.max(1, span - 3), 36);
      context.lineWidth = 1;
    }
    const text =
      span > 96 ? `${shortId(record.id)} ${count(size)}` : span > 54 ? shortId(record.id) : "";
    if (text) {
      context.fillStyle = palette.panel;
      context.fillText(text, x + 6, 41.5, span - 10);
    }
    x += span;
  }
}

export const Step = view(() => {
  store.beat.value;
  const row = store.shownRow;
  if (row < 0) return null;
  const tokens = store.steps.get("tokens", row);
  const budget = store.steps.get("budget", row);
  const span = store.steps.get("span", row);
  return html`<section class="panel step">
    <h2>
      <button
        class="link"
        onClick=${() => select({ kind: "step", step: store.steps.get("step", row) })}
      >
        Step ${count(store.lastStepOf(row))}
      </button>
      <span class="muted num"
        >${count(tokens)}${budget ? ` of ${count(budget)}` : ""} tokens${
          span > 1 ? ` in ${span} steps` : ""
        },${" "}
        ${time(store.steps.get("duration", row))}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Above: the token budget of the step, and how much of it was used. Below: the same tokens
          over the whole width, each request's share in its colour. Prompts are solid, decodes are
          thin. Steps for page Next token alone are left out.
        </p>
      </details>
    </h2>
    <${Canvas}
      label=${`The latest step: ${count(tokens)}${budget ? ` of ${count(budget)}` : ""} tokens`}
      draw=${drawStep}
    />
    <p class="legend">
      <span><i class="prefill"></i>prefill: prompt tokens</span>
      <span><i class="decode"></i>decode: output tokens</span
      ><span><i class="unused"></i>unused budget</span>
    </p>
  </section>`;
});
