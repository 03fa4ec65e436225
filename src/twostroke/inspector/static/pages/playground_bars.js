// The likeliest tokens as rows: the model's probability, what the filters left of it, and who cut.

import { html, signal, view } from "../lib/html.js";
import { count } from "../lib/format.js";
import { isBehind, marked, shape, take } from "./playground_state.js";
import { FILTERS, hundredths, named, percent } from "./playground_words.js";

const FEW = 10;
const all = signal(false);

const raw = (token) => token.probabilities[0];
const final = (token) => token.probabilities[token.probabilities.length - 1];

/** In the order of the model's probability; the drawn token and lifted ones are among them. */
export function rowsShown(found) {
  if (all.value) return found.tokens;
  const few = found.tokens.slice(0, FEW);
  const lifted = found.tokens
    .slice(FEW)
    .sort((one, other) => final(other) - final(one))
    .filter((token, place) => token.id === found.token || (place < 2 && final(token) > 0.05));
  return [...few, ...lifted];
}

const Row = ({ token, most, found, isMarked }) => {
  const isDrawn = token.id === found.token;
  const [before, behind] = [raw(token), final(token)];
  const wide = (share) => `${(100 * share) / most}%`;
  const name = named(token.text);
  const removed = token.removed_by;
  const filter = FILTERS[removed] ?? removed;
  const words = removed
    ? `${name}, removed by ${filter}`
    : `${name}, ${percent(behind)}${isDrawn ? ", drawn" : ""}`;
  return html`<li class=${`${isDrawn ? "drawn" : ""} ${isMarked ? "marked" : ""}`}>
    <button class="token" aria-label=${`Take ${words}`} onClick=${() => take(token.id)}>
      ${name}
    </button>
    <span class="bars" aria-hidden="true">
      <i class="before" style=${{ width: wide(before) }}></i>
      <i
        class=${removed ? "behind cut" : "behind decode"}
        style=${{ width: wide(removed ? before : behind) }}
      ></i>
      ${removed && html`<em>${filter}</em>`}
    </span>
    <span class="num muted">${hundredths(before)}</span>
    <span class="num">${removed ? "–" : hundredths(behind)}</span>
  </li>`;
};

export const Bars = view(() => {
  const found = shape.value;
  if (!found) return html`<section class="panel bars-panel"><h2>Next token</h2></section>`;
  const rows = rowsShown(found);
  const most = Math.max(1e-9, ...found.tokens.map((token) => Math.max(raw(token), final(token))));
  const chosen = marked.value ?? found.token;
  const listed = rows.reduce((sum, token) => sum + raw(token), 0);
  const left = rows.reduce((sum, token) => sum + final(token), 0);
  const stages = found.stages;
  return html`<section class="panel bars-panel" aria-busy=${isBehind() ? "true" : null}>
    <h2>
      Next token
      <span class="muted num"
        >${count(stages[stages.length - 1].num_tokens)} of ${count(stages[0].num_tokens)} can be
        drawn</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          The thin line is the model's own probability, the bar what the filters made of it. A
          hatched token was removed by the filter that is named. Select a token to go on with it, or
          press Enter for the marked one, which is the drawn one at first.
        </p>
      </details>
    </h2>
    <p class="heads muted">
      <span>token</span><span></span><span class="num">model %</span>
      <span class="num">filtered %</span>
    </p>
    <ol class="rows">
      ${rows.map(
        (token) =>
          html`<${Row}
            key=${token.id}
            token=${token}
            most=${most}
            found=${found}
            isMarked=${token.id === chosen}
          />`,
      )}
      <li class="rest muted">
        <span>all others</span><span></span>
        <span class="num">${hundredths(Math.max(0, 1 - listed))}</span>
        <span class="num">${hundredths(left > 1 - 1e-9 ? 0 : 1 - left)}</span>
      </li>
    </ol>
    <p class="legend">
      <span><i class="before"></i>the model's own</span>
      <span><i class="decode"></i>after the filters</span>
      <span><i class="cut"></i>removed</span>
      <button
        class="quiet"
        aria-pressed=${all.value ? "true" : "false"}
        onClick=${() => {
          all.value = !all.value;
        }}
      >
        ${all.value ? `The first ${FEW}` : `All ${found.tokens.length} listed`}
      </button>
    </p>
  </section>`;
});
