// The conversation: what was said, one below the other.

import { Component, effect, html, signal, view } from "../../lib/html.js";
import { bytes, foreign } from "../../lib/format.js";
import { description } from "../../lib/source.js";
import { Answer, writingNow } from "./answer.js";
import { Branches } from "./branches.js";
import { changes, current, pathOf } from "./conversations.js";
import { edit, say } from "./sending.js";

const NEAR = 48; // pixels to the end, within which new text is followed
const STARTS = [
  "Why is decode slower than prefill?",
  "What does the KV cache hold?",
  "What helps when answers stutter?",
];

const edited = signal(null); // the message that is being changed

export const Documents = ({ documents, onRemove }) =>
  documents?.length
    ? html`<ul class="documents">
        ${documents.map(
          (one, index) =>
            html`<li key=${index}>
              <span>${foreign(one.title ?? "text", 40)}</span>
              <span class="muted">${bytes(new Blob([one.text]).size)}</span>
              ${
                onRemove &&
                html`<button
                  class="quiet"
                  aria-label=${`Remove ${foreign(one.title ?? "text", 40)}`}
                  onClick=${() => onRemove(index)}
                >
                  Remove
                </button>`
              }
            </li>`,
        )}
      </ul>`
    : null;

const focus = (area) => area?.focus(); // once: a new function would take the focus at each drawing

/** The form goes, and with it what had the focus. */
function leaveEdit() {
  edited.value = null;
  document.getElementById("say")?.focus({ preventScroll: true });
}

const EditForm = ({ node }) => {
  const send = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("text").trim();
    leaveEdit();
    if (text) edit(current.value, node, text);
  };
  return html`<form class="edit" onSubmit=${send}>
    <label class="hidden" for="edit">Message</label>
    <textarea id="edit" name="text" rows="3" dir="auto" ref=${focus}>
${node.content}</textarea>
    <p class="acts">
      <button>Send</button>
      <button
        type="button"
        class="quiet"
        onClick=${leaveEdit}
      >
        Cancel
      </button>
    </p>
  </form>`;
};

const Said = view(({ node }) => {
  changes.value;
  if (edited.value === node.id) return html`<${EditForm} node=${node} />`;
  return html`<article class="said">
    <h3 class="hidden">You</h3>
    <${Documents} documents=${node.documents} />
    ${node.content && html`<p class="plain" dir="auto">${node.content}</p>`}
    <p class="acts">
      <${Branches} node=${node} what="message" />
      <button
        class="quiet"
        onClick=${() => {
          edited.value = node.id;
        }}
      >
        Edit
      </button>
    </p>
  </article>`;
});

const Result = ({ node }) =>
  html`<article class="call">
    <h3><span class="muted">returned</span></h3>
    <pre tabindex="0" role="region" aria-label="Result">${node.content}</pre>
  </article>`;

const DRAWN = { user: Said, assistant: Answer, tool: Result };

const Start = view(
  () =>
    html`<section class="start">
      <p class="lead">Talk to ${foreign(description.value?.name ?? "the model", 60)}.</p>
      <p class="muted">
        Each answer links to what the server did for it: its stations, tokens, gaps, and its lane
        among the others.
      </p>
      <ul>
        ${STARTS.map(
          (text) =>
            html`<li key=${text}>
              <button
                onClick=${() => {
                  say(current.value, text, []);
                  document.getElementById("say").focus({ preventScroll: true });
                }}
              >${text}</button>
            </li>`,
        )}
      </ul>
      <p class="muted">
        New to this? <a href="#/learn">Short chapters</a> say how it works.
      </p>
    </section>`,
);

const Messages = view(() => {
  changes.value;
  const path = pathOf(current.value);
  if (!path.length) return html`<${Start} />`;
  return path.map((node) => {
    const drawn = DRAWN[node.role];
    return drawn && html`<${drawn} key=${node.id} node=${node} />`;
  });
});

const Told = view(() => {
  const node = writingNow();
  const last = pathOf(current.value).at(-1);
  const words = node ? "An answer is being written" : last?.took ? "The answer is there" : "";
  return html`<p class="hidden" role="status">${words}</p>`;
});

/** Stays at the end while an answer comes, unless the reader has gone elsewhere. */
export class Thread extends Component {
  componentDidMount() {
    this.follows = true;
    this.top = 0;
    const follow = () => {
      if (this.follows && this.box) this.box.scrollTop = this.box.scrollHeight;
    };
    this.observer = new ResizeObserver(follow);
    this.observer.observe(this.inner);
    let shown = null;
    this.stop = effect(() => {
      changes.value;
      const { leaf } = current.value;
      if (leaf === shown) return;
      // Something was said, or another branch or conversation is shown.
      shown = leaf;
      this.follows = true;
      edited.value = null;
      requestAnimationFrame(follow);
    });
  }

  componentWillUnmount() {
    this.observer.disconnect();
    this.stop();
  }

  render() {
    return html`<div
      class="thread"
      tabindex="0"
      role="region"
      aria-label="Conversation"
      ref=${(box) => {
        this.box = box;
      }}
      onScroll=${({ target }) => {
        // Text that comes moves the end away; only the reader moves up.
        if (target.scrollHeight - target.scrollTop - target.clientHeight < NEAR) {
          this.follows = true;
        } else if (target.scrollTop < this.top) {
          this.follows = false;
        }
        this.top = target.scrollTop;
      }}
    >
      <div
        class="inner"
        ref=${(inner) => {
          this.inner = inner;
        }}
      >
        <${Messages} />
      </div>
      <${Told} />
    </div>`;
  }
}
