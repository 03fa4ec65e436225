// Chapter "Symptoms": from what one sees to what it is, and to what one can do.

import { html, signal, view } from "../../lib/html.js";

/** What is seen; what else to look at: `[is it so?, cause, what helps, address, title]`. */
const SYMPTOMS = [
  {
    say: "The first token comes late",
    causes: [
      [
        "Requests wait, places are taken",
        "As many run as may, while memory is free",
        "--max-num-seqs, or another replica",
        "#/live",
        "Live: Waiting",
      ],
      [
        "Requests wait, no free block",
        "The KV cache is full",
        "--kv-cache-memory, --kv-cache-dtype fp8, shorter answers",
        "#/kv",
        "KV",
      ],
      [
        "No queue, prompts are long",
        "Prefill is arithmetic: it takes as long as the prompt is",
        "Equal beginnings, so that the prefix cache has them",
        "#/request",
        "Request: stations",
      ],
      [
        "Much before the queue",
        "The time passes over HTTP: reading, templates, tokenising",
        "Shorter bodies, more server processes",
        "#/request",
        "Request: stations",
      ],
    ],
  },
  {
    say: "An answer stands still and goes on",
    causes: [
      [
        "A long prompt in that step",
        "A step ends for all at once",
        "--max-num-batched-tokens, or --tpot-target",
        "#/timeline",
        "Timeline: Who stuttered?",
      ],
      [
        "Preempted",
        "Its blocks went to another request",
        "More KV cache, or fewer requests at once",
        "#/request",
        "Request: What it waited for",
      ],
      [
        "No step ran",
        "The engine's process got no processor",
        "Fewer processes beside it",
        "#/timeline",
        "Timeline",
      ],
    ],
  },
  {
    say: "All answers are slow",
    causes: [
      [
        "Bound by memory",
        "Each token reads the weights",
        "Fewer bytes: fp8, int4; speculation; more devices",
        "#/model",
        "Model: roofline",
      ],
      [
        "Bound by arithmetic",
        "Many requests or long prompts in each step",
        "Another replica; prefill apart from decode",
        "#/model",
        "Model: roofline",
      ],
      [
        "Bound by the host",
        "The device waits for scheduling and input",
        "A faster processor, larger batches",
        "#/live",
        "Live",
      ],
    ],
  },
  {
    say: "Speculation makes it no faster",
    causes: [
      [
        "Few guesses are right",
        "The text does not repeat, or the draft model is another kind",
        "Another method, fewer guesses",
        "#/speculation",
        "Speculation",
      ],
      [
        "Many requests at once",
        "There is no spare arithmetic: guesses are paid for",
        "Adaptive depth, which stops by itself",
        "#/live",
        "Live: with and without",
      ],
    ],
  },
  {
    say: "A replica is overloaded, others idle",
    causes: [
      [
        "One prefix is everybody's",
        "The router sends it where it is cached",
        "A bound on imbalance, or the prefix on several",
        "#/fleet",
        "Fleet",
      ],
    ],
  },
];

const open = signal(0);

const Figure = view(() => {
  const { say, causes } = SYMPTOMS[open.value];
  return html`<h3>${say}</h3>
    <ul class="symptoms">
      ${causes.map(
        ([sign, cause, help, address, title]) =>
          html`<li key=${sign}>
            <label><input type="checkbox" /> <b>${sign}</b></label>
            <p>${cause}.</p>
            <p class="muted">What helps: ${help}.</p>
            <p><a href=${address}>${title}</a></p>
          </li>`,
      )}
    </ul>`;
});

export const symptoms = {
  id: "symptoms",
  title: "Symptoms",
  lead: "From what you see to what it is.",
  Figure,
  Text: view(
    () =>
      html`<p>
          Choose what is seen. The list names what to look for, what it then is, and where this page
          shows it.
        </p>
        <ul class="choices symptom-list">
          ${SYMPTOMS.map(
            ({ say }, at) =>
              html`<li key=${say}>
                <button
                  aria-pressed=${String(open.value === at)}
                  onClick=${() => {
                    open.value = at;
                  }}
                >
                  ${say}
                </button>
              </li>`,
          )}
        </ul>`,
  ),
};
