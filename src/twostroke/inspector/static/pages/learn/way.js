// Chapter "One request's way": from the keyboard to tokens, over the stations of a real request.

import { html, signal, view } from "../../lib/html.js";
import { Canvas } from "../../lib/canvas.js";
import { go, selectRequest } from "../../lib/address.js";
import { reasonWord } from "../../lib/explain.js";
import { count, foreign, short, time } from "../../lib/format.js";
import { drawCumulative } from "../playground_drawing.js";
import { named } from "../playground_words.js";
import { Bars, experiment } from "./parts.js";
import { sum } from "./server.js";
import { follow } from "./way_data.js";
import { Embedding, Layers, Logits, percent } from "./way_inside.js";

const MAX_LETTERS = 120;
const text = signal("What is a KV cache?");
const trial = experiment(() => follow(text.value));
const answer = experiment(async () => {
  const first = trial.result.value;
  await trial.start();
  return { first, second: trial.result.value };
});

const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

const Keyboard = ({ found: { sent } }) =>
  html`<p>
      ${plural([...sent.body.messages[0].content].length, "letter")}, and the browser made
      ${` ${count(JSON.stringify(sent.body).length)} `}bytes of JSON of them. The server knows
      nothing of an earlier chat: a conversation is sent whole, each time.
    </p>
    <pre>${foreign(JSON.stringify(sent.body), 900).replaceAll(',"', ', "')}</pre>`;

const Key = ({ found: { http, seconds } }) =>
  html`<p>
    ${time(seconds.key)} for ${http?.path}: the key says who asks
    (${http?.tenant ? `here ${foreign(http.tenant, 24)}` : "this server has no keys"}), and its
    limits are counted before a byte of the body is read. What is refused here costs the model
    nothing.
  </p>`;

const PARTS = ["system", "documents", "history", "message", "template"];

const Context = ({ found: { http, tokens, seconds } }) => {
  const use = http?.context;
  const parts = PARTS.filter((name) => use?.[name]).map((name) => `${name} ${count(use[name])}`);
  return html`<p>
      ${time(seconds.context)}: the body is read and checked, and the model's chat template writes
      one text of the messages. The marks say who speaks; the last line asks the model to go on.
    </p>
    <pre>${tokens.map((token) => token.text).join("")}</pre>
    ${parts.length ? html`<p class="muted">In ${use.unit}: ${parts.join(", ")}.</p>` : null}`;
};

const Tokens = ({ found: { tokens, seconds } }) =>
  html`<p>
      ${time(seconds.tokens)}: the text becomes ${plural(tokens.length, "token")}. From here on the
      server has numbers alone.
    </p>
    <p class="learn-tokens">
      ${tokens.map(
        (token, at) =>
          html`<span key=${at}><b>${named(token.text, 16)}</b><i>${token.id}</i></span>`,
      )}
    </p>`;

const Queue = ({ found: { seconds, waits, prefill } }) => {
  const reasons = Object.entries(waits?.queue ?? {}).filter(([, value]) => value >= 5e-5);
  return html`<p>
      ${time(seconds.queue)}. The request crosses to the engine's thread and waits for the next
      step. A step takes it in when a place is free, and KV blocks for its whole prompt:
      it got ${plural(prefill[0].blocks, "block")}.
    </p>
    <p>
      ${
        reasons.length
          ? `It waited: ${reasons
              .map(([reason, value]) => `${reasonWord(reason)} ${time(value)}`)
              .join(", ")}.`
          : "Nothing held it back: the next step had it."
      }
    </p>`;
};

const Prefill = ({ found: { prefill, started } }) => {
  const computed = sum(prefill, "prompt");
  const cached = started?.num_cached_tokens ?? 0;
  const parts = prefill.at(-1).timings.filter(([, seconds]) => seconds > 0);
  return html`<p>
      The first stroke. ${plural(computed, "token")} went through all layers
      in ${plural(prefill.length, "step")}${
        cached ? `; ${count(cached)} were in the prefix cache, and cost nothing` : ""
      }. Each left a key and a value in every layer: the KV cache. The next three stations are
      inside this one.
    </p>
    <${Bars}
      label="Where the time of the step went"
      head=${["in the step", "time"]}
      rows=${parts.map(([name, seconds]) => ({
        name,
        shown: time(seconds),
        parts: [["prefill", seconds]],
      }))}
    />`;
};

const Draw = ({ found: { next, sent } }) => {
  const [id] = sent.pieces[0]?.ids ?? [];
  const token = next.tokens.find((one) => one.id === next.token);
  return html`<p>
      Temperature ${sent.body.temperature} and the server's filters shape the chances. Laid end to
      end they are a bar from 0 to 1. Seed ${sent.body.seed} and position ${count(next.position)}
      ${" "}give a number between them, the needle: it picks ${named(token.text)}.
    </p>
    <div class="way-draw">
      <${Canvas}
        name="fill"
        label=${`The draw: ${percent(token.probabilities.at(-1))} for ${named(token.text)}`}
        draw=${drawCumulative(next)}
      />
    </div>
    <p>
      ${
        id === next.token
          ? "This was asked again with the same seed, and the request had drawn the same token: a" +
            " draw depends on seed and position, and on no other request."
          : "The request drew another token: rounding or a filter differed."
      }
    </p>`;
};

const Decode = ({ found: { decode, sent } }) => {
  const all = Math.max(...decode.map((step) => step.seconds), 1e-9);
  const drafts = sum(decode, "drafts");
  if (!decode.length) return html`<p>The first token was the last: nothing was decoded.</p>`;
  return html`<p>
      The second stroke: ${plural(decode.length, "step")}, each with the newest token alone, for
      ${` ${plural(sum(decode, "new"), "token")}`}. Each step reads all weights and the keys and
      values of all tokens so far; attention, logits and the draw are as above.
      ${drafts ? ` Guessed: ${count(drafts)}, right: ${count(sum(decode, "accepted"))}.` : ""}
    </p>
    <div class="way-steps" role="img" aria-label=${`${decode.length} steps, by their time`}>
      ${decode.map(
        (step, at) =>
          html`<i
            key=${at}
            class="decode"
            style=${{ height: `${Math.max(4, (100 * step.seconds) / all)}%` }}
          ></i>`,
      )}
    </div>
    <p class="muted">The longest took ${time(all)}, all ${time(sum(decode, "seconds"))}.</p>
    <p>“${foreign(sent.pieces.map((piece) => piece.text).join(""), 240)}”</p>`;
};

const Stream = ({ found: { sent, http, seconds } }) =>
  html`<p>
      Each token is written to the socket as soon as its bytes are whole letters. The server wrote
      for ${time(seconds.stream)}${
        http?.first_byte == null
          ? ""
          : `, the first byte ${time(http.first_byte - http.received)} after the request's head`
      }. This browser had the first piece after ${time(sent.pieces[0]?.at)}, and the
      last after ${time(sent.pieces.at(-1)?.at)}: a tick for each piece.
    </p>
    <div class="learn-strokes" role="img" aria-label=${`${sent.pieces.length} pieces over time`}>
      ${sent.pieces.map(
        (piece, at) =>
          html`<i
            key=${at}
            class="decode"
            style=${{ left: `${(99 * piece.at) / sent.seconds}%`, width: "2px" }}
          ></i>`,
      )}
    </div>
    <p>
      <button
        class="link"
        onClick=${() => {
          selectRequest(sent.id);
          go("request");
        }}
      >
        This request on the page Request
      </button>
    </p>`;

/** `[id, title, what shows it, kind of its bar]`; those without a time are inside the prefill. */
const STATIONS = [
  ["keyboard", "Keyboard", Keyboard],
  ["key", "Key", Key, "http"],
  ["context", "Context", Context, "http"],
  ["tokens", "Tokens", Tokens, "http"],
  ["queue", "Queue", Queue, "waiting"],
  ["prefill", "Prefill", Prefill, "prefill"],
  ["embedding", "Embedding", Embedding],
  ["layers", "Layers", Layers],
  ["logits", "Logits", Logits],
  ["draw", "Draw", Draw, "decode"],
  ["decode", "Decode", Decode, "decode"],
  ["stream", "Stream", Stream, "http"],
];
const INSIDE = ["embedding", "layers", "logits"];
const open = signal(0);

const Figure = view(() => {
  const found = trial.result.value;
  const most = found ? Math.max(...Object.values(found.seconds)) : 1;
  const Shown = STATIONS[open.value][2];
  const turn = (by, word) =>
    STATIONS[open.value + by] &&
    html`<button
      onClick=${() => {
        open.value += by;
      }}
    >
      ${word}: ${STATIONS[open.value + by][1]}
    </button>`;
  return html`<form
      class="way-send"
      onSubmit=${(event) => {
        event.preventDefault();
        if (text.value.trim()) trial.start();
      }}
    >
      <label class="hidden" for="way-text">Your message</label>
      <input
        id="way-text"
        class="find"
        maxlength=${MAX_LETTERS}
        value=${text.value}
        onInput=${(event) => {
          text.value = event.target.value;
        }}
      />
      <button disabled=${trial.busy.value}>Send it</button>
    </form>
    ${
      found &&
      html`<ol class="way-stations" aria-label="Stations">
          ${STATIONS.map(([id, title, , kind], at) => {
            const seconds = found.seconds[id];
            return html`<li key=${id} class=${INSIDE.includes(id) ? "in" : ""}>
              <button
                aria-current=${at === open.value ? "step" : null}
                onClick=${() => {
                  open.value = at;
                }}
              >
                <span>${title}</span
                ><span class="num">${seconds === undefined ? "" : time(seconds)}</span
                ><span class="bar" aria-hidden="true"
                  >${
                    seconds !== undefined &&
                    html`<i
                      class=${kind}
                      style=${{ width: `${Math.max(0.5, (100 * seconds) / most)}%` }}
                    ></i>`
                  }</span
                >
              </button>
            </li>`;
          })}
        </ol>
        <section class="way-shown" aria-label=${STATIONS[open.value][1]}>
          <h3>${STATIONS[open.value][1]}</h3>
          <${Shown} key=${open.value} found=${found} />
          <p class="learn-turn">${turn(-1, "Back") || html`<span></span>`}${turn(1, "On")}</p>
        </section>`
    }`;
});

/** Seconds until the first token, by who had them. */
const shares = ({ seconds: { key, context, tokens, queue, prefill, draw } }) => [
  key + context + tokens,
  queue,
  prefill + draw,
];
const cachedOf = ({ started }) => started?.num_cached_tokens ?? 0;

export const way = {
  id: "way",
  title: "One request's way",
  lead: "From the keyboard to tokens.",
  needsModel: true,
  trial,
  Figure,
  Text: view(
    () =>
      html`<p>
          You press Enter, and a moment later words appear. Between the two lie the stations of this
          chapter. It sends <b>one real request</b> to this server and shows what was noted of it:
          times are measured, tokens are its own, attention is computed from the model's weights.
        </p>
        <p>
          Go through the stations in order, or open one. Inside the prefill is the model: a table
          (<b>embedding</b>), <b>layers</b> in which tokens look at each other, and scores for what
          may come next (<b>logits</b>). The chapters after this one take them one by one.
        </p>`,
  ),
  predict: {
    ask: "Until the first token, where does most of the time go?",
    choices: [
      "Before the engine: key, template, tokens",
      "Into waiting for a step",
      "Into the model: prefill and draw",
    ],
  },
  outcome(found) {
    const [before, queue, model] = shares(found);
    const largest = Math.max(before, queue, model);
    return {
      right: [before, queue, model].indexOf(largest),
      say:
        `Before the engine ${time(before)}, in the queue ${time(queue)}, in the` +
        ` model ${time(model)}. Then ${plural(found.decode.length, "step")} wrote the` +
        ` rest in ${time(found.seconds.decode)}.`,
    };
  },
  question: "The same message once more: which stations get shorter?",
  answer,
  show: () => answer.start(),
  reply: ({ first, second }) =>
    `Prefill took ${time(first.seconds.prefill)}, and now ${time(second.seconds.prefill)}:` +
    ` ${count(cachedOf(first))} of ${count(second.tokens.length)} tokens were in the prefix cache` +
    ` then, ${count(cachedOf(second))} now. Only whole blocks are found, and the last token is` +
    ` computed in any case. Decode does not change: ${short(1e3 * perToken(first))} and` +
    ` ${short(1e3 * perToken(second))} ms a token.`,
};

function perToken({ decode, seconds }) {
  return seconds.decode / Math.max(1, sum(decode, "new"));
}
