// What goes into a model.

import { html, signal, view } from "../../lib/html.js";
import { count, foreign, short } from "../../lib/format.js";
import { description } from "../../lib/source.js";
import { experiment } from "./parts.js";
import { tokenize } from "./server.js";

const WORD = " strawberry";
const ENGLISH = "The server computes the whole prompt before it writes the first word.";
const GERMAN = "Der Server berechnet die ganze Eingabe, bevor er das erste Wort schreibt.";
const MAX_LETTERS = 2000;
const text = signal(`How many letters has the word${WORD}?`);

const trial = experiment(async () => ({
  word: await tokenize(WORD),
  all: await tokenize(text.value),
}));
const answer = experiment(async () => ({
  english: (await tokenize(ENGLISH)).length,
  german: (await tokenize(GERMAN)).length,
}));

function write(value) {
  text.value = value.slice(0, MAX_LETTERS);
  trial.later();
}

const Figure = view(() => {
  const found = trial.result.value;
  const letters = [...text.value].length;
  return html`<label for="learn-text">Your text</label>
    <textarea
      id="learn-text"
      rows="3"
      maxlength=${MAX_LETTERS}
      value=${text.value}
      onInput=${(event) => write(event.target.value)}
    ></textarea>
    <p class="learn-tokens" aria-label="The text as tokens">
      ${found?.all.map(
        (token, at) =>
          html`<span key=${at}
            ><b>${foreign(token.text.replaceAll("\n", "⏎")).replaceAll(" ", "\u00a0")}</b
            ><i>${token.id}</i></span
          >`,
      )}
    </p>
    <dl class="facts">
      <dt>letters and signs</dt>
      <dd>${count(letters)}</dd>
      <dt>tokens</dt>
      <dd>${count(found?.all.length ?? 0)}</dd>
      <dt>letters a token</dt>
      <dd>${found?.all.length ? short(letters / found.all.length) : "–"}</dd>
    </dl>`;
});

export const tokens = {
  id: "tokens",
  title: "Tokens",
  lead: "A model reads numbers, not letters.",
  needsModel: true,
  trial,
  Figure,
  Text: view(
    () =>
      html`<p>
          The tokenizer cuts a text into <b>tokens</b>: pieces from a fixed list, the vocabulary.
          This model's has ${count(description.value?.configuration?.vocab_size ?? 0)} pieces. Each
          piece has a number, and the numbers are all that the model gets.
        </p>
        <p>
          A frequent word is one piece. A rare one is put together from several. A space belongs to
          the piece after it. Prices, limits and speeds of models all count tokens.
        </p>`,
  ),
  predict: {
    ask: "How many tokens is “strawberry” for this model?",
    choices: ["1, as it is a word", "2 to 5 pieces", "10, one for each letter"],
  },
  outcome: ({ word }) => ({
    right: word.length === 1 ? 0 : word.length <= 5 ? 1 : 2,
    say:
      `It is ${word.length}:` +
      ` ${word.map((token) => `“${foreign(token.text.trim())}”`).join(", ")}.` +
      " The model sees these numbers and no letter. That is why counting letters is hard for it.",
  }),
  question: "Does a sentence in German cost as many tokens as in English?",
  answer,
  show() {
    write(GERMAN);
    return answer.start();
  },
  reply: ({ english, german }) =>
    `English: ${english} tokens for “${ENGLISH}” German: ${german} for the same. ` +
    (german > english
      ? "This vocabulary has more pieces of English. Other languages fall into smaller ones: they" +
        " cost more, and fill the context sooner."
      : "This vocabulary has pieces of both languages."),
};
