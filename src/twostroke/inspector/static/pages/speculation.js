// Speculation: what was guessed ahead, how much of it was right, how deep it goes and why.

import { Component, html, view } from "../lib/html.js";
import { Canvas } from "../lib/canvas.js";
import { select, selected } from "../lib/address.js";
import { Figure } from "../lib/figure.js";
import { count, many, short, shortId } from "../lib/format.js";
import { description } from "../lib/source.js";
import { store } from "../lib/store.js";
import { Depth, Reasons } from "./speculation_depth.js";
import { figures, passesOf, quotients, shownRequest } from "./speculation_figures.js";
import { TryIt } from "./speculation_text.js";
import { DraftsLine, watchBound } from "./why/live_why.js";

const METHODS = {
  ngram: "Repetitions in prompt and answer are guessed",
  suffix: "Earlier answers are quoted as guesses",
  draft: "A smaller model guesses",
  "early-exit": "The model's own first layers guess",
  medusa: "Heads on the last hidden state guess",
  mtp: "The checkpoint's multi-token-prediction head guesses",
  synthetic: "Guesses are made up, to measure",
};

const percent = (share) => `${short(100 * share)}\u00a0%`;

function lead() {
  const found = figures();
  const settings = description.value?.configuration?.speculation;
  const live = description.value?.kind === "live";
  if (live && !settings) {
    return "This server guesses nothing ahead: each pass gives a request one token.";
  }
  const who = settings
    ? `${METHODS[settings.method] ?? settings.method} up to ${settings.num_speculative_tokens}` +
      ` tokens ahead${settings.adaptive ? ", where that pays" : ""}.`
    : "";
  if (!found.drafted) {
    return `${who} No guess was verified in the steps that are shown.`.trim();
  }
  const about = found.record ? `Of ${shortId(found.record.id)}, ` : "";
  const share = percent(found.accepted / found.drafted);
  const perPass = short(found.tokens / found.passes);
  const right = about ? `${share} of the guesses were right` : `${share} of the guesses are right`;
  return `${who} ${about}${right}: ${perPass} tokens a pass instead of one.`.trim();
}

const Share = (props) => {
  const label = `${props.title} over the time that is shown: ${props.value}`;
  return html`<${Figure} ...${props} label=${label} />`;
};

const Figures = view(() => {
  const found = figures();
  const { bins } = found;
  const rejected = bins.drafted.map((drafted, bin) => drafted - bins.accepted[bin]);
  const { passes, drafted, accepted, tokens } = found;
  return html`<div class="figures spec-figures">
    <${Share}
      title="Guesses right"
      value=${drafted ? percent(accepted / drafted) : "–"}
      note=${`${count(accepted)} of ${many(drafted, "guessed token")}`}
      points=${quotients(bins.accepted, bins.drafted)}
      top=${1}
      colour="cached"
      how="The acceptance rate: of all guessed tokens that a pass verified, those that the model
        would have written itself. All guesses behind a wrong one count as wrong."
    />
    <${Share}
      title="Tokens a pass"
      value=${passes ? short(tokens / passes) : "–"}
      note=${`${many(tokens, "token")} in ${many(passes, "pass", "passes")}`}
      points=${quotients(bins.tokens, bins.passes)}
      top=${2}
      colour="decode"
      how="Output tokens that a request gets from one pass of the model: the guesses that are right
        and one more. Without speculation it is 1."
    />
    <${Share}
      title="Guessed a pass"
      value=${passes ? short(drafted / passes) : "–"}
      note=${`${many(found.drafting, "pass", "passes")} verified guesses`}
      points=${quotients(bins.drafted, bins.passes)}
      top=${2}
      colour="ink"
      how="Guessed tokens that a pass verified, on average: the depth of speculation. Where guessing
        does not pay it is 0, but for a trial now and then."
    />
    <${Share}
      title="Wrong guesses"
      value=${count(drafted - accepted)}
      note=${passes ? `${short((drafted - accepted) / passes)} a pass` : "none verified"}
      points=${quotients(rejected, bins.passes)}
      top=${1}
      colour="alarm"
      how="Guessed tokens that were thrown away. They took room in the pass, which is free as long
        as it is bound by memory bandwidth, and the time of guessing."
    />
  </div>`;
});

function drawPositions(context, width, height, palette) {
  const { tried, right } = figures();
  if (!tried.length) return;
  const base = height - 34;
  const wide = Math.min(72, (width - 8) / tried.length);
  context.textAlign = "center";
  tried.forEach((number, at) => {
    const x = at * wide + 4;
    const share = number ? right[at] / number : 0;
    const tall = share * (base - 20);
    context.fillStyle = palette.faint;
    context.fillRect(x, 20, wide - 8, base - 20);
    context.fillStyle = palette.cached;
    context.fillRect(x, base - tall, wide - 8, tall);
    context.font = `12px ${palette.font}`;
    context.fillStyle = palette.ink;
    context.textBaseline = "bottom";
    const shown = wide >= 40 ? percent(share) : `${Math.round(100 * share)}`;
    context.fillText(number ? shown : "–", x + wide / 2 - 4, base - tall - 2);
    context.textBaseline = "top";
    context.fillText(at + 1, x + wide / 2 - 4, base + 4);
    if (wide >= 40) {
      context.fillStyle = palette.muted;
      context.fillText(`of ${count(number)}`, x + wide / 2 - 4, base + 18);
    }
  });
  context.textAlign = "left";
}

const Positions = view(() => {
  const { tried, right, merged } = figures();
  if (!tried.length) return null;
  const words = tried.map((number, at) => `${at + 1}: ${percent(right[at] / (number || 1))}`);
  return html`<section class="panel spec-positions">
    <h2>
      Right, by position
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          How often the first, second, third ... guessed token was right, given that all before it
          were. Where the bars fall off, deeper guesses are rarely worth their time.
        </p>
      </details>
    </h2>
    <${Canvas}
      label=${`Share that was right by position, ${words.join(", ")}`}
      draw=${drawPositions}
    />
    ${merged
      ? html`<p class="muted">Steps that came merged are left out here.</p>`
      : null}
  </section>`;
});

const CELL = 12;

/** Output tokens as cells in reading order: right guesses green, wrong ones as ticks above. */
function drawCells(record) {
  return (context, width, height, palette) => {
    store.tick.value;
    const columns = Math.max(1, Math.floor(width / CELL));
    const cells = [];
    for (const [, , drafts, right, fresh] of passesOf(record)) {
      for (let at = 0; at < fresh; at += 1) {
        const isRight = drafts > 0 && at < right;
        cells.push([isRight, !isRight && drafts > right ? drafts - right : 0]);
      }
    }
    const rows = Math.max(1, Math.floor(height / (CELL + 8)));
    const shown = cells.slice(-rows * columns);
    shown.forEach(([isRight, wrong], index) => {
      const x = (index % columns) * CELL;
      const y = Math.floor(index / columns) * (CELL + 8) + 6;
      context.fillStyle = isRight ? palette.cached : palette.decode;
      context.globalAlpha = isRight ? 0.35 : 0.3;
      context.fillRect(x, y, CELL - 2, CELL - 2);
      context.globalAlpha = 1;
      if (isRight) context.fillRect(x, y + CELL - 2, CELL - 2, 2);
      if (wrong) {
        context.fillStyle = palette.alarm;
        context.fillRect(x, y - 3, CELL - 2, 2);
        if (wrong > 1) context.fillRect(x, y - 6, CELL - 2, 1.5);
      }
    });
  };
}

const Cells = view(() => {
  store.tick.value;
  const record = shownRequest();
  if (!record) return null;
  const tokens = passesOf(record).reduce((sum, pass) => sum + pass[4], 0);
  return html`<section class="panel spec-cells">
    <h2>
      Its tokens
      <span class="muted">${shortId(record.id)}, ${many(tokens, "output token")} in order</span>
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          A cell is an output token. Green with a line below: it had been guessed. Orange: the model
          drew it. A red line above: a wrong guess stood there; two lines: several.
        </p>
      </details>
    </h2>
    <${Canvas}
      key=${record.number}
      label=${`${tokens} output tokens: which had been guessed`}
      draw=${drawCells(record)}
    />
    <p class="muted">
      Texts are their owners'; here are places and counts.${" "}${selected.value?.id
        ? html`<button class="link spec-all" onClick=${() => select(null)}>
            Figures of all requests
          </button>`
        : null}
    </p>
  </section>`;
});

const HOW_TO = {
  live: [
    "Start it with guesses, and this page shows how they fare:",
    "twostroke serve pilot --speculation draft",
  ],
  recording: [
    "A recording holds what its server did. Record one that guesses:",
    "twostroke serve pilot --speculation draft --record steps.jsonl",
  ],
  simulation: [
    "Simulate with guesses, of which so many come true:",
    "twostroke simulate --speculation ngram --acceptance 0.7 --inspect",
  ],
};

const Nothing = view(() => {
  const found = description.value;
  if (!found || figures().drafted || found.configuration?.speculation) return null;
  const [words, command] = HOW_TO[found.kind];
  return html`<section class="panel empty">
    <p>${words}</p>
    <pre>${command}</pre>
    <p>
      What a guess is, and when it pays:${" "}
      <a href="#/learn?chapter=speculation">Learn: speculation</a>.
    </p>
  </section>`;
});

const Lead = view(() => html`<p class="lead">${description.value ? lead() : "Opening."}</p>`);

const Content = view(() => {
  const drafted = figures().drafted > 0;
  const guesses = description.value?.configuration?.speculation;
  return html`<${Lead} /><${DraftsLine} /><${Nothing} />
    ${drafted || guesses ? html`<${Figures} />` : null}
    <${TryIt} />
    ${drafted ? html`<div class="columns"><${Positions} /><${Cells} /></div>` : null}
    ${drafted ? html`<${Depth} />` : null}
    <${Reasons} />`;
});

export class SpeculationPage extends Component {
  componentDidMount() {
    this.stop = watchBound(() => null);
  }

  componentWillUnmount() {
    this.stop();
  }

  render() {
    return html`<${Content} />`;
  }
}
