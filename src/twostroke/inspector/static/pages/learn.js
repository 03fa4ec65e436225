// Learn: a way through one request in short chapters. The reader predicts before the page shows.

import { Component, effect, html, signal, view } from "../lib/html.js";
import { extra } from "../lib/address.js";
import { copy } from "../lib/copy.js";
import { foreign } from "../lib/format.js";
import { useKeys } from "../lib/keyboard.js";
import { description } from "../lib/source.js";

const KEPT = "twostroke-learn";
const COMMAND = "twostroke serve pilot";
const SKIPPED = -1; // shown without a guess

const chapters = signal(null); // loaded when the page is opened
const failed = signal("");
const kept = readKept();
/** By chapter, which choice the reader took. */
const guesses = signal(kept.guesses);
let latest = kept.chapter;

function readKept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
    return { chapter: String(found.chapter ?? ""), guesses: { ...found.guesses } };
  } catch {
    return { chapter: "", guesses: {} };
  }
}

function keep() {
  sessionStorage.setItem(KEPT, JSON.stringify({ chapter: latest, guesses: guesses.value }));
}

function current() {
  const all = chapters.value;
  return all.find((chapter) => chapter.id === extra.value.chapter) ?? all[0];
}

function open(chapter) {
  latest = chapter.id;
  extra.value = { ...extra.value, chapter: chapter.id };
  keep();
  document.querySelector("main").scrollTop = 0;
  requestAnimationFrame(() => document.getElementById("learn-title")?.focus());
}

function move(by) {
  const all = chapters.value;
  const next = all?.[all.indexOf(current()) + by];
  if (next) open(next);
}

const hasModel = () => description.value?.kind === "live";
const canRun = (chapter) => !chapter.needsModel || hasModel();

function guess(chapter, index) {
  guesses.value = { ...guesses.value, [chapter.id]: index };
  keep();
  chapter.trial.start();
}

// ---- parts -------------------------------------------------------------------------------------

const Contents = view(
  () =>
    html`<nav class="learn-contents" aria-label="Chapters">
      <ol>
        ${chapters.value.map((chapter, at) => {
          const answered = guesses.value[chapter.id] !== undefined;
          return html`<li key=${chapter.id}>
            <a
              href=${`#/learn?chapter=${chapter.id}`}
              class=${answered ? "answered" : ""}
              aria-current=${chapter === current() ? "step" : null}
              onClick=${(event) => {
                event.preventDefault();
                open(chapter);
              }}
              ><span class="num">${at + 1}</span> <span>${chapter.title}</span>${
                answered ? html`<span class="hidden"> (answered)</span>` : null
              }</a
            >
          </li>`;
        })}
      </ol>
    </nav>`,
);

const NeedsModel = () =>
  html`<div class="empty">
    <p>
      This chapter asks a running model, and there is none behind
      a ${description.value?.kind ?? "recording"}. Start one, and open this page there:
    </p>
    <pre>${COMMAND}</pre>
    <p><button onClick=${() => copy(COMMAND, "the command")}>Copy the command</button></p>
  </div>`;

const Prediction = view(({ chapter }) => {
  const guessed = guesses.value[chapter.id];
  const first = chapter.trial.first.value;
  const outcome = first && guessed !== undefined ? chapter.outcome(first) : null;
  const mark = (at) => (outcome && outcome.right === at ? " – so it came out" : "");
  return html`<section class="learn-predict" aria-labelledby="learn-predict">
    <h3 id="learn-predict">Predict</h3>
    <p>${chapter.predict.ask}</p>
    <p class="choices">
      ${chapter.predict.choices.map(
        (choice, at) =>
          html`<button
            key=${choice}
            aria-pressed=${String(guessed === at)}
            class=${outcome && outcome.right === at ? "right" : ""}
            onClick=${() => guess(chapter, at)}
          >
            ${choice}${mark(at)}
          </button>`,
      )}
    </p>
    <div aria-live="polite">
      ${
        outcome &&
        html`<p>
          ${
            guessed === SKIPPED
              ? null
              : html`<b>${outcome.right === guessed ? "Right." : "It came out otherwise."}</b>`
          }
          ${` ${outcome.say}`}
        </p>`
      }
    </div>
  </section>`;
});

const Question = view(({ chapter }) => {
  if (guesses.value[chapter.id] === undefined) return null;
  const { result, busy, error, first } = chapter.answer;
  const found = result.value ?? first.value;
  return html`<section class="learn-question" aria-labelledby="learn-question">
    <h3 id="learn-question">A question</h3>
    <p>${chapter.question}</p>
    <p>
      <button disabled=${busy.value} onClick=${() => chapter.show()}>
        ${busy.value ? "Trying it" : "Show it"}
      </button>
    </p>
    <div aria-live="polite">
      ${error.value && html`<p class="held">${foreign(error.value, 300)}</p>`}
      ${found && html`<p>${chapter.reply(found)}</p>`}
    </div>
  </section>`;
});

const Panel = view(({ chapter }) => {
  const { Figure, trial } = chapter;
  if (!canRun(chapter)) return html`<${NeedsModel} />`;
  if (!trial) return html`<${Figure} />`;
  if (guesses.value[chapter.id] === undefined) {
    return html`<div class="learn-hidden">
      <p>Predict first. The figure then shows what happens.</p>
      <p>
        <button class="quiet" onClick=${() => guess(chapter, SKIPPED)}>
          Show it without a guess
        </button>
      </p>
    </div>`;
  }
  return html`<${Figure} />
    ${
      trial.error.value &&
      html`<p class="held">${foreign(trial.error.value, 300)}</p>
        <p><button onClick=${() => trial.start()}>Try again</button></p>`
    }
    <p class="learn-busy muted" aria-live="polite">${trial.busy.value ? "Running." : ""}</p>`;
});

const Chapter = view(() => {
  const chapter = current();
  const all = chapters.value;
  const at = all.indexOf(chapter);
  const { Text } = chapter;
  const turn = (by, word) => {
    const next = all[at + by];
    return next
      ? html`<button onClick=${() => move(by)}>
          <kbd>${by < 0 ? "p" : "n"}</kbd> ${word}: ${next.title}
        </button>`
      : html`<span></span>`;
  };
  return html`<article class="learn" key=${chapter.id}>
    <div class="learn-text">
      <p class="muted">Chapter ${at + 1} of ${all.length}: ${chapter.title}</p>
      <h2 id="learn-title" class="lead" tabindex="-1">${chapter.lead}</h2>
      <${Text} />
      ${
        chapter.predict && canRun(chapter)
          ? html`<${Prediction} key=${chapter.id} chapter=${chapter} />`
          : null
      }
    </div>
    <section class="panel learn-figure" aria-label="Figure">
      <${Panel} key=${chapter.id} chapter=${chapter} />
    </section>
    <div class="learn-after">
      ${
        chapter.question && canRun(chapter)
          ? html`<${Question} key=${chapter.id} chapter=${chapter} />`
          : null
      }
      <p class="learn-turn">${turn(-1, "Before")}${turn(1, "Next")}</p>
    </div>
  </article>`;
});

const Book = view(() => {
  if (failed.value) return html`<p class="empty">The chapters did not load: ${failed.value}</p>`;
  if (!chapters.value || !description.value) return html`<p class="empty">Opening.</p>`;
  return html`<${Contents} /><${Chapter} key=${current().id} />`;
});

export class Learn extends Component {
  componentDidMount() {
    this.load();
    this.leave = useKeys({ n: () => move(1), p: () => move(-1) });
    this.stop = effect(() => {
      if (!chapters.value || !description.value) return;
      if (extra.value.chapter !== current().id || latest !== current().id) this.follow();
      const chapter = current();
      const { trial } = chapter;
      const isNew = trial && !trial.first.peek() && !trial.busy.peek() && !trial.error.peek();
      // A guess of this tab, before it was loaded again.
      if (isNew && guesses.value[chapter.id] !== undefined && canRun(chapter)) trial.start();
    });
  }

  async load() {
    try {
      chapters.value ??= (await import("./learn/book.js")).CHAPTERS;
    } catch (error) {
      failed.value = error.message;
    }
  }

  /** Address and memory say the same chapter. */
  follow() {
    const asked = extra.value.chapter;
    const known = chapters.value.find((chapter) => chapter.id === (asked ?? latest));
    latest = (known ?? chapters.value[0]).id;
    keep();
    queueMicrotask(() => {
      extra.value = { ...extra.value, chapter: latest };
    });
  }

  componentWillUnmount() {
    this.leave();
    this.stop();
    const { chapter: _, ...rest } = extra.value;
    extra.value = rest;
  }

  render() {
    return html`<${Book} />`;
  }
}
