// Prompt and answer as tokens, where the server keeps them (--inspect-content); else their counts.

import { askAgain } from "../lib/ask_again.js";
import { Component, html, signal, view } from "../lib/html.js";
import { CopyButtons } from "../lib/copy.js";
import { count, foreign, many } from "../lib/format.js";
import { api, description } from "../lib/source.js";
import { store } from "../lib/store.js";

const WINDOW = 512; // tokens of a part that are in the document at once
const EVERY_MS = 500;
const LEVELS = 6; // shades of how unlikely a token was

/** `{part, page, index}` of the token that the pointer or the keyboard is on. */
const looked = signal(null);
/** `{id, prompt, output}`: a `TokenPage` for each part; null where nothing is kept. */
const content = signal(null);
/** Where the windows begin; null follows the end of the answer. */
const begins = signal({ prompt: 0, output: null });

const CONTROL = /[\u0000-\u001f\u007f-\u009f]/g;

/** A token's text: line ends and tabs can be seen, what would change the text around it is not. */
function shownText(text) {
  if (text === null) return "◦"; // part of a character that a later token ends
  const shown = text
    .replaceAll("\r", "␍")
    .replaceAll("\t", "→")
    .split("\n")
    .map((line) => foreign(line.replace(CONTROL, "�"), 200))
    .join("↵\n");
  return shown === "" ? "∅" : shown;
}

function levelOf(logprob) {
  if (logprob === null || logprob === undefined) return null;
  return Math.min(LEVELS - 1, Math.floor(Math.max(0, -logprob / Math.LN2)));
}

/** The tokens of one window. It is drawn again when its page changes, not with every step. */
class Window extends Component {
  shouldComponentUpdate(next) {
    return next.page !== this.props.page;
  }

  componentDidMount() {
    this.stop = looked.subscribe((found) => {
      this.marked?.classList.remove("on");
      this.marked = null;
      if (found && found.part === this.props.part && this.element) {
        this.marked = this.element.children[found.index] ?? null;
        this.marked?.classList.add("on");
        if (found.byKey) this.marked?.scrollIntoView({ block: "nearest" });
      }
    });
  }

  componentWillUnmount() {
    this.stop?.();
  }

  look(index, byKey = false) {
    const { page, part } = this.props;
    if (index >= 0 && index < page.ids.length) looked.value = { part, page, index, byKey };
  }

  onKey(event) {
    const last = this.props.page.ids.length - 1;
    const found = looked.value;
    const is = found?.part === this.props.part ? found.index : -1;
    const to = { ArrowLeft: is - 1, ArrowRight: is + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.look(Math.max(0, Math.min(last, to)), true);
  }

  render({ page, part, label }) {
    const special = new Set(page.special);
    return html`<div
      class=${`tokens ${part}`}
      tabindex="0"
      role="group"
      aria-label=${`${label}; arrow keys go through its tokens`}
      ref=${(element) => {
        this.element = element ?? this.element;
      }}
      onKeyDown=${(event) => this.onKey(event)}
      onMouseOver=${(event) => {
        const index = event.target.dataset?.i;
        if (index !== undefined) this.look(Number(index));
      }}
      onFocus=${() => this.look(looked.value?.part === part ? looked.value.index : 0)}
    >
      ${page.ids.map((_, index) => {
        const level = levelOf(page.logprobs[index]);
        const shade = level === null ? ((page.begin + index) % 2 ? "odd" : "even") : `p${level}`;
        const kind = special.has(index) ? " special" : "";
        const text = shownText(page.texts[index]);
        return html`<span class=${shade + kind} data-i=${index}>${text}</span>`;
      })}
    </div>`;
  }
}

/** What is known of the token that is looked at. */
const About = view(({ part }) => {
  const found = looked.value;
  if (!found || found.part !== part) {
    return html`<p class="muted token" aria-live="polite">
      Point at a token, or go through them with the arrow keys.
    </p>`;
  }
  const { page, index } = found;
  const logprob = page.logprobs[index];
  const draw = page.draws[index];
  const position = page.begin + index;
  const facts = [
    `token ${page.ids[index]}`,
    `position ${count(position)}`,
    page.special.includes(index) ? "special" : "",
    logprob === null || logprob === undefined
      ? ""
      : `probability ${(100 * Math.exp(logprob)).toPrecision(3)} %`,
    part === "output" && draw === null ? "taken as the likeliest (temperature 0)" : "",
    draw === null || draw === undefined
      ? ""
      : `drawn by ${draw.toFixed(6)}, of seed ${page.seed} at position ${count(position)}`,
  ].filter(Boolean);
  return html`<p class="token" aria-live="polite">
    <b class="mono">${shownText(page.texts[index]).trim() || "space"}</b> ${facts.join(", ")}
  </p>`;
});

const Steps = ({ page, part, whole, offset }) => {
  const begin = page.begin - offset;
  const end = begin + page.ids.length;
  if (begin <= 0 && end >= whole) return null;
  const move = (to) => {
    const most = Math.max(0, whole - WINDOW);
    begins.value = { ...begins.value, [part]: Math.max(0, Math.min(most, to)) };
  };
  return html`<span class="choice">
    <span class="num">${count(begin + 1)} to ${count(end)}</span>
    <button disabled=${begin <= 0} onClick=${() => move(begin - WINDOW)}>Earlier</button>
    <button disabled=${end >= whole} onClick=${() => move(begin + WINDOW)}>Later</button></span
  >`;
};

const Part = ({ part, name, page, whole, offset, note }) =>
  html`<h3>
      ${name} <span class="muted num">${many(whole, "token")}${note}</span
      ><${Steps} page=${page} part=${part} whole=${whole} offset=${offset} />
    </h3>
    <${Window} key=${part} page=${page} part=${part} label=${`${name}, ${many(whole, "token")}`} />
    <${About} part=${part} />`;

const NOT_KEPT = {
  live: "Its text is not kept. Start the server with --inspect-content to see the tokens here.",
  recording: "A recording holds no text: no prompt and no answer.",
  simulation: "A simulation computes no text: its requests have numbers of tokens only.",
};

const Counts = ({ record, why }) =>
  html`<section class="panel text">
    <h2>
      Tokens
      <span class="muted num"
        >${count(record.prompt)} of the prompt, ${count(Math.max(0, record.output))} of the
        answer</span
      >
    </h2>
    <p class="muted">${why}</p>
  </section>`;

export const Tokens = view(({ record }) => {
  const found = description.value;
  if (!found?.content) return html`<${Counts} record=${record} why=${NOT_KEPT[found?.kind]} />`;
  const kept = content.value?.id === record.id ? content.value : null;
  if (!kept?.prompt) {
    const why = kept ? "Its text is not kept any more: newer requests took its place." : "";
    return html`<${Counts} record=${record} why=${why} />`;
  }
  const { prompt, output } = kept;
  const shaded = output.logprobs.some((logprob) => logprob !== null);
  return html`<section class="panel text">
    <h2>
      Tokens
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          The text as the model has it, a background for each token. The answer's tokens are shaded
          by how unlikely they were where the request asked for log-probabilities. A draw is the
          uniform number that seed and position decide.
        </p>
      </details>
    </h2>
    <${Part}
      part="prompt"
      name="Prompt"
      page=${prompt}
      whole=${output.num_prompt}
      offset=${0}
      note=""
    />
    <${Part}
      part="output"
      name="Answer"
      page=${output}
      whole=${output.num_output}
      offset=${output.num_prompt}
      note=${`, seed ${output.seed}, temperature ${output.temperature}`}
    />
    ${shaded
      ? html`<p class="legend shades">
          <span>probability</span
          >${["1/2 and more", "1/4", "1/8", "1/16", "1/32", "less"].map(
            (name, level) => html`<span key=${level}><i class=${`p${level}`}></i>${name}</span>`,
          )}
        </p>`
      : html`<p class="muted">
          Not shaded: the request did not ask for log-probabilities (logprobs).
        </p>`}
    <${CopyButtons}
      path=${`/tokens?id=${encodeURIComponent(record.id)}`}
      value=${() => ({ prompt, output })}
    />
  </section>`;
});

async function load(id, from, size) {
  const path = `/tokens?id=${encodeURIComponent(id)}&from=${from}&count=${size}`;
  return (await api(path)).json();
}

/** Keep `content` of the request that `current` names, until the function returned is called. */
export function watchTokens(current) {
  const about = () => {
    const id = current();
    if (!id || !description.value?.content) return null;
    if (content.value && content.value.id !== id) {
      begins.value = { prompt: 0, output: null };
      looked.value = null;
    }
    const record = store.requests.get(id);
    const { prompt: fromPrompt, output: fromOutput } = begins.value;
    const key = JSON.stringify([id, fromPrompt, fromOutput, record?.status, record?.output]);
    return { key, id, record, fromPrompt, fromOutput };
  };
  const { turn, stop } = askAgain(EVERY_MS, about, async (asked) => {
    const { id, record, fromPrompt, fromOutput } = asked;
    const isSame = content.value?.id === id && content.value.prompt?.begin === fromPrompt;
    const prompt = isSame ? content.value.prompt : cut(await load(id, fromPrompt, WINDOW));
    let output = null;
    if (prompt) {
      const known = Math.max(record?.output ?? 0, prompt.num_output);
      const from = fromOutput ?? Math.max(0, known - WINDOW);
      output = await load(id, prompt.num_prompt + from, WINDOW);
    }
    content.value = { id, prompt: output && prompt, output };
  });
  const unsubscribe = begins.subscribe(turn);
  return () => {
    stop();
    unsubscribe();
  };
}

/** A page of the prompt without the answer's tokens behind it. */
function cut(page) {
  if (!page) return page;
  const size = Math.max(0, page.num_prompt - page.begin);
  const kept = { ...page, special: page.special.filter((index) => index < size) };
  for (const name of ["ids", "texts", "logprobs", "draws"]) kept[name] = page[name].slice(0, size);
  return kept;
}
