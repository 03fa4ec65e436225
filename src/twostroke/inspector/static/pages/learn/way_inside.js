// Inside the model, for chapter "One request's way": embedding, attention, scores. All of pilot.

import { html, signal, view } from "../../lib/html.js";
import { Canvas } from "../../lib/canvas.js";
import { count, short } from "../../lib/format.js";
import { named } from "../playground_words.js";
import { Bars, Slider } from "./parts.js";

const WHOLE = 1000; // as the server counts a token's attention
const LOOKS = 5; // rows of the list
const layer = signal(1);
const head = signal(0); // 0: the mean of all
const from = signal(null); // the token that looks; null: the last

export const percent = (share) => `${short(100 * share)}\u00a0%`;

const Source = ({ inside }) =>
  html`<p class="muted">
    ${
      inside.isSame
        ? `Computed by ${inside.model} itself, with the prompt's own tokens.`
        : `Computed by ${inside.model}, the embedded model, with its own tokens of your text.`
    }
  </p>`;

const fromInside = (draw) => view(({ found: { inside } }) =>
  inside.problem
    ? html`<p class="held">${inside.problem}</p>`
    : html`${draw(inside)}<${Source} inside=${inside} />`,
);

export const Embedding = fromInside(({ tokens, embedding }) => {
  const token = tokens.at(-1);
  const most = Math.max(...embedding.map(Math.abs));
  return html`<p>
      A number says nothing of a meaning. So token ${token.id}, ${named(token.text)}, stands for row
      ${" "}${token.id} of a table: ${count(embedding.length)} numbers that training has chosen.
      Tokens of like use have like rows. This is the last token's; blue is above zero, orange below.
    </p>
    <div class="way-vector">
      <${Canvas}
        name="fill"
        label=${`${embedding.length} numbers between ${short(-most)} and ${short(most)}`}
        draw=${(context, width, height, palette) => {
          const columns = 32;
          const rows = Math.ceil(embedding.length / columns);
          embedding.forEach((value, at) => {
            context.globalAlpha = Math.abs(value) / most;
            context.fillStyle = value > 0 ? palette.prefill : palette.decode;
            const [x, y] = [at % columns, Math.floor(at / columns)];
            context.fillRect(
              (x * width) / columns,
              (y * height) / rows,
              width / columns - 1,
              height / rows - 1,
            );
          });
          context.globalAlpha = 1;
        }}
      />
    </div>`;
});

/** How much one token looks at each up to itself. */
function looksOf({ attention }, row) {
  const begin = (row * (row + 1)) / 2;
  const heads = head.value ? [attention[head.value - 1]] : attention;
  return Array.from(
    { length: row + 1 },
    (_, at) => heads.reduce((total, own) => total + own[begin + at], 0) / heads.length / WHOLE,
  );
}

const drawMatrix = (own, number, row) => (context, width, height, palette) => {
  const size = Math.min(width, height) / number;
  for (let y = 0; y < number; y += 1) {
    looksOf(own, y).forEach((share, x) => {
      context.globalAlpha = 0.08 + 0.92 * Math.sqrt(Math.min(1, share));
      context.fillStyle = palette.prefill;
      context.fillRect(x * size, y * size, Math.max(1, size - 1), Math.max(1, size - 1));
    });
  }
  context.globalAlpha = 1;
  context.strokeStyle = palette.accent;
  context.strokeRect(0.5, row * size, (row + 1) * size - 1, size - 1);
};

export const Layers = fromInside(({ tokens, layers }) => {
  const own = layers[layer.value - 1] ?? layers[0];
  const row = Math.min(from.value ?? Infinity, tokens.length - 1);
  const looks = looksOf(own, row);
  const order = looks.map((_, at) => at).sort((one, other) => looks[other] - looks[one]);
  const each = (name, setting, most, shown) =>
    html`<${Slider}
      name=${name}
      value=${setting.value}
      values=${most}
      shown=${shown}
      set=${(value) => {
        setting.value = value;
      }}
    />`;
  const heads = own.attention.length;
  const upTo = (first, last) => Array.from({ length: last - first + 1 }, (_, at) => first + at);
  const [best] = own.likeliest;
  return html`<p>
      In each layer a token looks back at those before it and takes over some of what they hold:
      attention. The shares are softmax(QK/√d), the real ones. Choose the token that looks.
    </p>
    ${each("layer", layer, upTo(1, layers.length), `${layer.value} of ${layers.length}`)}
    ${each("head", head, upTo(0, heads), head.value ? `${head.value} of ${heads}` : "mean")}
    <p class="learn-tokens way-looks" role="group" aria-label="The token that looks">
      ${tokens.map(
        (token, at) =>
          html`<button
            key=${at}
            aria-pressed=${String(at === row)}
            style=${{
              "--look": `${at > row ? 0 : Math.round(100 * Math.sqrt(looks[at]))}%`,
            }}
            onClick=${() => {
              from.value = at;
            }}
          >
            ${named(token.text, 14)}
          </button>`,
      )}
    </p>
    <div class="way-both">
      <div class="way-matrix">
        <${Canvas}
          name="fill"
          label=${`Attention of ${tokens.length} tokens; rows look at columns`}
          draw=${drawMatrix(own, tokens.length, row)}
        />
      </div>
      <${Bars}
        label=${`What token ${row + 1} looks at most`}
        head=${[`${named(tokens[row].text, 10)} looks at`, "share"]}
        rows=${order.slice(0, LOOKS).map((at) => ({
          name: `${at + 1} ${named(tokens[at].text, 10)}`,
          shown: percent(looks[at]),
          parts: [["prefill", looks[at]]],
        }))}
      />
    </div>
    <p>
      If the model ended with layer ${layer.value}, it would go on with
      <b>${` ${named(best.text)}`}</b> (${percent(best.probability)}).
    </p>`;
});

export const Logits = fromInside(({ layers }) => {
  const { likeliest } = layers.at(-1);
  return html`<p>
      After the last layer the last token's numbers are compared with each row of the vocabulary:
      a <b>logit</b> for each piece. Softmax makes chances of them. A prompt's other tokens give
      logits, too, but nobody asks for them.
    </p>
    <${Bars}
      label="The likeliest next tokens"
      head=${["next token", "logit, chance"]}
      rows=${likeliest.map(({ text, logit, probability }) => ({
        name: named(text, 14),
        shown: `${short(logit)}, ${percent(probability)}`,
        parts: [["decode", probability]],
      }))}
    />`;
});
