// A prompt of the reader's own, answered with drafts: which tokens were guessed, right or wrong.

import { html, signal, view } from "../lib/html.js";
import { selectRequest } from "../lib/address.js";
import { count, foreign, many, short, time } from "../lib/format.js";
import { api, description } from "../lib/source.js";
import { store } from "../lib/store.js";

const QUESTION = "What is a KV cache? Explain it in five sentences.";
const LENGTHS = [64, 160, 400];
const MOST_PIECES = 2000;

const prompt = signal(QUESTION);
const options = signal({ depth: "", length: 160, temperature: 0, compare: true });
/** `null`, or the answer so far: `{pieces, tokens, passes, ...}`. */
const answer = signal(null);
const plain = signal(null); // the same without drafts
const trouble = signal("");
let abort = null;

const set = (name, value) => {
  options.value = { ...options.value, [name]: value };
};

function fresh() {
  return {
    id: "",
    pieces: [],
    tokens: [],
    passes: 0,
    drafted: 0,
    accepted: 0,
    began: performance.now(),
    first: null,
    last: null,
    shared: false,
    done: false,
  };
}

/** The text of one step: what was guessed right, then the model's own token above wrong guesses. */
function piecesOf(text, drafts) {
  if (!drafts) return [{ own: text, wrong: "" }];
  const right = drafts.tokens.slice(0, drafts.num_accepted).join("");
  const wrong = drafts.tokens.slice(drafts.num_accepted).join("");
  // Where a character was held back, or a stop string cut the text, its parts cannot be told.
  if (!text.startsWith(right)) return [{ own: text, wrong }];
  const own = text.slice(right.length);
  return [...(right ? [{ right }] : []), ...(own || wrong ? [{ own, wrong }] : [])];
}

function take(found, chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return;
  found.id ||= chunk.id;
  const text = choice.delta
    ? (choice.delta.content ?? "") + (choice.delta.reasoning_content ?? "")
    : (choice.text ?? "");
  const tokens = choice.token_ids ?? [];
  const { drafts } = choice;
  if (tokens.length) {
    found.first ??= performance.now();
    found.last = performance.now();
    found.passes += 1;
    found.shared ||= store.length > 0 && store.steps.get("running", store.lastRow) > 1;
    found.tokens.push(...tokens);
  }
  if (drafts) {
    found.drafted += drafts.token_ids.length;
    found.accepted += drafts.num_accepted;
  }
  if ((text || drafts) && found.pieces.length < MOST_PIECES) {
    found.pieces.push(...piecesOf(text, drafts));
  }
}

async function ask(into, speculation) {
  const { length, temperature } = options.value;
  const body = {
    model: description.value.name,
    stream: true,
    max_tokens: length,
    temperature,
    seed: 0,
    speculation,
    return_token_ids: true,
    return_drafts: true,
  };
  const found = fresh();
  into.value = found;
  const messages = [{ role: "user", content: prompt.value }];
  const options_ = { signal: abort.signal, accept: "text/event-stream" };
  let response;
  try {
    response = await api("/../chat/completions", { ...options_, body: { ...body, messages } });
  } catch (error) {
    if (!/template/i.test(error.message)) throw error;
    // A model that knows no chats goes on with the text.
    const text = { ...body, prompt: prompt.value };
    response = await api("/../completions", { ...options_, body: text });
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    buffer += value;
    const lines = buffer.split("\n");
    buffer = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: {")) continue;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      take(found, chunk);
    }
    into.value = { ...found };
  }
  into.value = { ...found, done: true };
}

async function run() {
  abort?.abort();
  abort = new AbortController();
  const mine = abort;
  trouble.value = "";
  plain.value = null;
  const { depth, compare } = options.value;
  try {
    await ask(answer, depth === "" ? true : Number(depth));
    if (compare) await ask(plain, false);
  } catch (error) {
    if (mine.signal.aborted) return;
    trouble.value = error.message;
  } finally {
    if (abort === mine) {
      abort = null;
      answer.value = answer.value && { ...answer.value, done: true };
    }
  }
}

/** Line ends and empty texts, so that a wrong guess is never invisible. */
const visible = (text) =>
  foreign(text.replaceAll("\n", "\u21b5"), 80).trim() || (text ? "\u2423" : "\u2205");

/** `foreign` bounds a text and replaces controls; line ends are meant here. */
const clean = (text) =>
  text
    .split("\n")
    .map((line) => foreign(line, 400))
    .join("\n");

const piece = ({ right, own, wrong }, index, all) => {
  const [, space, words] = /^(\s*)([^]*)$/.exec(right ?? own);
  if (right !== undefined) return html`${space}<ins key=${index}>${clean(words)}</ins>`;
  const text = clean(own);
  if (!wrong) return html`<span key=${index}>${text}</span>`;
  return html`${words ? space : ""}<ruby key=${index}
    >${words
      ? clean(words)
      : html`<span class="muted"
          >${!own && index === all.length - 1 ? "end" : visible(own)}</span
        >`}<rt
      ><del>${visible(wrong)}</del></rt
    ></ruby
  >`;
};

/**
 * Seconds from the first token to the last: what drafts make shorter. By the engine's own steps,
 * where the page has them: a busy page reads what came bit by bit at once.
 */
function spent(found) {
  const record = found && store.requests.get(found.id);
  if (record?.lastToken > record?.firstToken) return record.lastToken - record.firstToken;
  return found?.last > found?.first ? (found.last - found.first) / 1000 : 0;
}

function verdict() {
  const found = answer.value;
  if (!found?.tokens.length) return null;
  const perPass = short(found.tokens.length / Math.max(1, found.passes));
  const passes = many(found.passes, "pass", "passes");
  const lines = [`${many(found.tokens.length, "token")} in ${passes}: ${perPass} a pass.`];
  if (found.drafted) {
    const share = Math.round((100 * found.accepted) / found.drafted);
    lines.push(
      `${count(found.accepted)} of ${many(found.drafted, "guess was", "guesses were")} right` +
        ` (${share} %).`,
    );
  } else if (found.done) {
    const { adaptive, method } = description.value.configuration.speculation;
    lines.push(
      "Nothing was guessed: the depth chosen was 0, for the reasons below." +
        (adaptive && !["ngram", "suffix"].includes(method)
          ? ' A server with --speculative-config {"adaptive": false} always guesses.'
          : ""),
    );
  }
  const other = plain.value;
  if (other?.done && found.done && spent(found) && spent(other)) {
    const factor = spent(other) / spent(found);
    const same =
      other.tokens.length === found.tokens.length &&
      other.tokens.every((token, index) => token === found.tokens[index]);
    lines.push(
      `${time(spent(found))} from the first token to the last, ${time(spent(other))} without` +
        ` guesses${factor > 1.05 ? `: ${short(factor)} times as fast` : ""}.`,
      same
        ? "Both answers are the same, token by token."
        : "The answers differ: please report it, they should not.",
    );
    if (found.shared || other.shared) lines.push("Others ran beside them, so the times vary.");
  } else if (other && !other.done) {
    lines.push("Once more without guesses, to compare.");
  }
  return lines.join(" ");
}

const Answer = view(() => {
  const found = answer.value;
  if (!found) {
    return html`<p class="empty">
      Run it, and see the answer as it was made: what was guessed and right is underlined, what was
      wrong is struck out above the token that took its place.
    </p>`;
  }
  const tall = found.pieces.some((one) => one.wrong) ? "tall" : "";
  return html`<p class=${`spec-text ${tall}`} aria-live="off">${found.pieces.map(piece)}</p>
    <p class="legend">
      <span><ins>underlined</ins> guessed, and right</span>
      <span><del>struck out</del> guessed wrong; below it what replaced it</span>
      <span>plain: drawn by the model</span>
    </p>
    <p role="status">${store.beat.value >= 0 && verdict()}</p>
    ${found.id
      ? html`<p class="links">
          <button onClick=${() => selectRequest(found.id)}>Show its steps</button>
        </p>`
      : null}`;
});

const choices = (most) => Array.from({ length: most }, (_, index) => index + 1);

export const TryIt = view(() => {
  const settings = description.value?.configuration?.speculation;
  if (!settings) return null;
  const chosen = options.value;
  const running = answer.value && !answer.value.done;
  return html`<section class="panel spec-try">
    <h2>A prompt of yours <span class="muted">as it is answered with guesses</span></h2>
    <form
      onSubmit=${(event) => {
        event.preventDefault();
        run();
      }}
    >
      <label class="hidden" for="spec-prompt">Prompt</label>
      <textarea
        id="spec-prompt"
        rows="2"
        maxlength="8000"
        required
        value=${prompt.value}
        onInput=${(event) => {
          prompt.value = event.target.value;
        }}
      ></textarea>
      <p class="tools">
        <span class="pair">
          <label for="spec-depth">Guess</label>
          <select
            id="spec-depth"
            value=${chosen.depth}
            onChange=${(event) => set("depth", event.target.value)}
          >
            <option value="">as the server does</option>
            ${choices(settings.num_speculative_tokens).map(
              (depth) => html`<option key=${depth} value=${depth}>at most ${depth}</option>`,
            )}
          </select>
        </span>
        <span class="pair">
          <label for="spec-length">Tokens</label>
          <select
            id="spec-length"
            value=${chosen.length}
            onChange=${(event) => set("length", Number(event.target.value))}
          >
            ${LENGTHS.map(
              (length) => html`<option key=${length} value=${length}>${length}</option>`,
            )}
          </select>
        </span>
        <span class="pair">
          <label for="spec-temperature">Temperature</label>
          <select
            id="spec-temperature"
            value=${chosen.temperature}
            onChange=${(event) => set("temperature", Number(event.target.value))}
          >
            ${[0, 0.5, 1].map(
              (value) => html`<option key=${value} value=${value}>${value}</option>`,
            )}
          </select>
        </span>
        <label class="pair"
          ><input
            type="checkbox"
            checked=${chosen.compare}
            onChange=${(event) => set("compare", event.target.checked)}
          />
          once more without, to compare</label
        >
        ${running
          ? html`<button type="button" onClick=${() => abort?.abort()}>Stop</button>`
          : html`<button>Run</button>`}
      </p>
    </form>
    ${trouble.value ? html`<p class="held" role="alert">${foreign(trouble.value, 300)}</p>` : null}
    <${Answer} />
  </section>`;
});
