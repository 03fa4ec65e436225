// What keys and values cost: this model and others, and what other attention would take.
// `twostroke kv` counts with the same terms; see model_spec/kv_terms.py.

import { askOnce } from "../lib/ask_once.js";
import { html, signal, view } from "../lib/html.js";
import { bytes, count, foreign, many, short } from "../lib/format.js";
import { Slider, lengths } from "../lib/slider.js";
import { description } from "../lib/source.js";

const MOST_TOKENS = 131072;
const MOST_REQUESTS = 256;
const FORMATS = { fp32: "float32", bf16: "bfloat16", fp8: "fp8", int8: "int8", int4: "int4" };

/** `ShownTerms`. */
const { answer: known, failure, ask } = askOnce("/kv-models");
const name = signal(null);
const format = signal(null);
const tokens = signal(2048);
const requests = signal(16);

/** Bytes of a conversation: windows that are full grow no more. */
export function conversation(terms, length, kept, states) {
  return terms.reduce(
    (sum, term) =>
      sum +
      term.count *
        term.bytes_per_token[kept] *
        (term.window === null ? length : Math.min(length, term.window)),
    states,
  );
}

/** Today's choice and others: [title, bytes of a conversation, whether it is today's]. */
function choices(model, length, kept) {
  const size = (terms, as) => conversation(terms, length, as, model.state_bytes);
  const today = size(model.terms, kept);
  const others = model.variants
    .map((variant) => [variant.title, size(variant.terms, kept), false])
    .filter(([, changed]) => changed !== today);
  const formats = Object.keys(FORMATS)
    .filter((each) => each !== kept && each !== "fp32")
    .map((each) => [`keys and values in ${FORMATS[each]}`, size(model.terms, each), false]);
  return [["as it is", today, true], ...others, ...formats];
}

function kinds(model, kept) {
  return model.terms
    .map((term) => {
      const window = term.window === null ? "" : `, the latest ${count(term.window)} tokens`;
      const size = count(term.bytes_per_token[kept]);
      const each = `${size} bytes a token in each layer`;
      return `${term.count} x ${term.kind} (${term.source}: ${each}${window})`;
    })
    .join("; ");
}

/** Room of the engine that runs, for conversations of its own model. */
function Room({ model, each }) {
  const found = description.value;
  const slots = found.num_blocks * found.block_size;
  const perToken = found.configuration?.kv_bytes_per_token;
  const fitting = Math.floor(slots / Math.max(1, each));
  const drafts = found.configuration?.speculation?.method === "draft";
  if (!perToken || !slots) {
    return html`<p class="muted">
      How many bytes this cache has, only a live engine says; it holds ${count(slots)} tokens.
    </p>`;
  }
  return html`<p>
    This engine's cache has <b>${bytes(slots * perToken)}</b>, ${count(slots)} tokens:${" "}
    <b>${count(fitting)}</b> ${fitting === 1 ? "conversation" : "conversations"} of this length at
    once,
    beside ${bytes(found.configuration.weight_bytes)} of weights${
      drafts ? ", with its drafter's" : ""
    }.
  </p>`;
}

/** All models at the same length and format, the smallest first. */
const Others = view(({ length, kept, current }) => {
  const sizes = known.value.models
    .map((model) => [model, conversation(model.terms, length, kept, model.state_bytes)])
    .sort((one, other) => one[1] - other[1]);
  const most = Math.max(...sizes.map(([, size]) => size), 1);
  return html`<details>
    <summary>A conversation of ${count(length)} tokens in ${sizes.length} models</summary>
    <table class="parts sizes">
      <thead>
        <tr>
          <th>model</th>
          <th><span class="hidden">drawn</span></th>
          <th class="n">bytes</th>
          <th>attention</th>
        </tr>
      </thead>
      <tbody>
        ${sizes.map(
          ([model, size]) =>
            html`<tr key=${model.name} class=${model === current ? "today" : ""}>
              <td>${foreign(model.name, 40)}</td>
              <td><i style=${{ width: `${(100 * size) / most}%` }}></i></td>
              <td class="n">${bytes(size)}</td>
              <td>
                ${[...new Set(model.terms.map((term) => term.kind))].join(", ") || "none"}${
                  model.terms.some((term) => term.window !== null) ? ", window" : ""
                }${model.state_bytes ? ", states" : ""}
              </td>
            </tr>`,
        )}
      </tbody>
    </table>
  </details>`;
});

export const Arithmetic = view(() => {
  ask();
  if (!known.value) {
    return html`<section class="panel">
      <h2>What it costs</h2>
      <p class="empty">${failure.value || "Asking."}</p>
    </section>`;
  }
  const { models, loaded, kv_cache: own } = known.value;
  const model = models.find((each) => each.name === name.value) ?? models[0];
  const isLoaded = loaded && model === models[0];
  const kept = format.value ?? (own || "bf16");
  const longest = lengths(Math.min(MOST_TOKENS, model.context_length));
  const length = Math.min(tokens.value, longest[longest.length - 1]);
  const each = conversation(model.terms, length, kept, model.state_bytes);
  const rows = choices(model, length, kept);
  const most = Math.max(...rows.map(([, size]) => size), 1);
  return html`<section class="panel kvsum">
    <h2>
      What it costs
      <span class="muted num">${loaded ? "" : "the model of this recording is not known"}</span>
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Every token that a request has leaves keys and values in each layer, and decode reads them
          all again. Few heads for them (GQA), one compressed vector (MLA), a window or fewer bits
          make that less. The same arithmetic as twostroke kv.
        </p>
      </details>
    </h2>
    <div class="tools">
      <label
        >model${" "}
        <select
          onChange=${(event) => {
            name.value = event.target.value;
          }}
        >
          ${models.map(
            (item) =>
              html`<option key=${item.name} value=${item.name} selected=${item === model}>
                ${foreign(item.name, 40)}${loaded && item === models[0] ? " (this one)" : ""}
              </option>`,
          )}
        </select></label
      >
      <label
        >kept in${" "}
        <select
          onChange=${(event) => {
            format.value = event.target.value;
          }}
        >
          ${Object.entries(FORMATS).map(
            ([value, words]) =>
              html`<option key=${value} value=${value} selected=${value === kept}>
                ${words}
              </option>`,
          )}
        </select></label
      >
    </div>
    <${Slider}
      name="context"
      values=${longest}
      value=${length}
      set=${(value) => {
        tokens.value = value;
      }}
      shown=${`${count(length)} tokens`}
    />
    <${Slider}
      name="at once"
      values=${Array.from({ length: MOST_REQUESTS }, (_, index) => index + 1)}
      value=${requests.value}
      set=${(value) => {
        requests.value = value;
      }}
      shown=${many(requests.value, "request")}
    />
    <p aria-live="polite">
      ${many(requests.value, "request")} of ${count(length)}${" "}
      ${requests.value === 1 ? "tokens needs" : "tokens need"}${" "}
      <b>${bytes(each * requests.value)}</b> of keys and values${
        model.state_bytes ? " and states" : ""
      }${requests.value === 1 ? "" : `, ${bytes(each)} each`}; the weights
      take ${bytes(model.weight_bytes)}.
    </p>
    <p class="muted">${kinds(model, kept) || "No layer caches by the token."}</p>
    ${isLoaded ? html`<${Room} model=${model} each=${length} />` : null}
    <table class="parts sizes">
      <thead>
        <tr>
          <th>a conversation</th>
          <th><span class="hidden">drawn</span></th>
          <th class="n">bytes</th>
          <th class="n">of today's</th>
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ([title, size, isToday]) =>
            html`<tr key=${title} class=${isToday ? "today" : ""}>
              <td>${title}</td>
              <td><i style=${{ width: `${(100 * size) / most}%` }}></i></td>
              <td class="n">${bytes(size)}</td>
              <td class="n">${each ? `${short(size / each)} x` : "–"}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    <${Others} length=${length} kept=${kept} current=${model} />
  </section>`;
});
