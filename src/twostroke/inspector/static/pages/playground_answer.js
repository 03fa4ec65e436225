// The answer so far as a heat map of log-probabilities, and the branches that were tried.

import { html, view } from "../lib/html.js";
import { count, foreign, short } from "../lib/format.js";
import {
  back,
  forward,
  goTo,
  node,
  pathBehind,
  pathTo,
  prompt,
  root,
  shape,
  startOver,
  takeMarked,
  write,
  writing,
} from "./playground_state.js";
import { named, surprise } from "./playground_words.js";

const MANY = 24;
const MOST_BITS = 8; // shown at full strength
const STRENGTH = 44; // percent of the colour, so that the text stays readable
const LONGEST = 80; // characters of a token

const tint = (logprob) => {
  const share = Math.min(1, surprise(logprob) / MOST_BITS);
  return `color-mix(in srgb, var(--decode) ${Math.round(STRENGTH * share)}%, var(--faint))`;
};

/** A token as text; line ends are shown and kept. */
const shown = (text) => {
  const lines = text.split("\n").map((line) => foreign(line, LONGEST));
  return lines.map((line, place) => (place ? ["↵", html`<br />`, line] : line));
};

const Token = ({ at, later }) => {
  const { token } = at;
  const chance = `${short(Math.exp(token.logprob) * 100)} %`;
  const words = `${named(token.text)}, ${chance}, ${short(surprise(token.logprob))} bits`;
  const marks = { later, hand: token.byHand, fork: at.parent.children.length > 1 };
  const classes = Object.keys(marks).filter((name) => marks[name]);
  return html`<button
    class=${["link heat", ...classes].join(" ")}
    style=${later ? {} : { background: tint(token.logprob) }}
    aria-label=${`${later ? "Forward" : "Back"} to ${words}`}
    onClick=${() => goTo(at)}
  >
    ${shown(token.text)}
  </button>`;
};

/** Other tokens that were taken where the selected one was. */
const Branches = view(() => {
  const here = node.value;
  const found = here.children.filter((child) => child !== here.last);
  const beside = here.parent ? here.parent.children.filter((child) => child !== here) : [];
  if (!found.length && !beside.length) return null;
  const list = (title, nodes) =>
    nodes.length > 0 &&
    html`<p class="branches">
      <span class="muted">${title}</span>
      ${nodes.map(
        (child) =>
          html`<button key=${child.token.id} class="mono" onClick=${() => goTo(child)}>
            ${named(child.token.text)}${pathBehind(child).length > 0 &&
            html` <span class="muted">+${count(pathBehind(child).length)}</span>`}
          </button>`,
      )}
    </p>`;
  return html`${list("Instead of the last token", beside)}${list("From here also", found)}`;
});

function aboutPath(path) {
  const known = path.filter((at) => Number.isFinite(at.token.logprob));
  if (!known.length) return "";
  const sum = known.reduce((total, at) => total + at.token.logprob, 0);
  const each = surprise(sum / known.length);
  const total = sum > -0.005 ? "0.00" : `−${(-sum).toFixed(2)}`;
  return (
    `log-probability ${total} over ${count(known.length)}` +
    ` token${known.length === 1 ? "" : "s"}, ${short(each)} bits each`
  );
}

export const Answer = view(() => {
  const path = pathTo(node.value);
  const behind = pathBehind(node.value);
  return html`<section class="panel answer">
    <h2>
      Answer
      <span class="muted num">${aboutPath(path)}</span>
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          The darker a token, the less the model expected it: its log-probability before all
          filters. Select one to go back to it, then another bar to branch. Dotted: taken by you,
          not drawn. Keys: Enter takes the marked token, arrows left and right go back and forward,
          up and down mark another.
        </p>
      </details>
    </h2>
    <div class="tokens">
      ${path.map((at) => html`<${Token} key=${at} at=${at} />`)}<i class="caret"></i
      >${behind.map((at) => html`<${Token} key=${at} at=${at} later=${true} />`)}
    </div>
    ${node.value.ends && html`<p class="muted">This token ends the answer.</p>`}
    <p class="tools">
      <button disabled=${!shape.value} onClick=${takeMarked}>Take</button>
      <button disabled=${node.value === root.value} onClick=${back}>Back</button>
      <button disabled=${!node.value.last} onClick=${forward}>Forward</button>
      <button
        disabled=${!prompt.value || writing.value || node.value.ends}
        onClick=${() => write(MANY)}
      >
        Write ${MANY}
      </button>
      <button class="quiet" disabled=${node.value === root.value} onClick=${startOver}>
        Start over
      </button>
    </p>
    <p class="legend scale">
      <span class="muted">expected</span
      ><span class="ramp" aria-hidden="true"
        >${[0, 2, 4, 6, 8].map(
          (bits) => html`<i key=${bits} style=${{ background: tint(-bits * Math.LN2) }}></i>`,
        )}</span
      ><span class="muted">${MOST_BITS} bits of surprise or more</span>
    </p>
    <${Branches} />
  </section>`;
});
