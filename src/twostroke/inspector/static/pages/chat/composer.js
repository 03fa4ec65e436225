// What is said next: a text, files as documents; and the button that stops an answer.

import { Component, html, signal, view } from "../../lib/html.js";
import { foreign } from "../../lib/format.js";
import { writingNow } from "./answer.js";
import { changes, current, trouble } from "./conversations.js";
import { say, stop, toolsOf } from "./sending.js";
import { Documents } from "./thread.js";

const MOST_FILES = 16;
const MOST_BYTES = 1_000_000; // of one file
const MOST_ROWS = 12;

const attached = signal([]);
/** Texts and files that were not sent, by the conversation's id; "" for a new one. */
const drafts = new Map();
const problem = signal("");

/** Read files as documents; what is no text is refused by name. */
export async function attach(files) {
  problem.value = "";
  for (const file of files) {
    const name = foreign(file.name, 40);
    if (attached.value.length >= MOST_FILES) {
      problem.value = `At most ${MOST_FILES} files go with one message.`;
      return;
    }
    if (file.size > MOST_BYTES) {
      problem.value = `${name} is larger than 1 MB: attach the part that matters.`;
      continue;
    }
    try {
      const decoder = new TextDecoder("utf-8", { fatal: true });
      const text = decoder.decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError("no text");
      if (!text.trim()) problem.value = `${name} is empty.`;
      else attached.value = [...attached.value, { title: file.name.slice(0, 200), text }];
    } catch {
      problem.value = `${name} is no text in UTF-8: only text files can be attached.`;
    }
  }
}

const Problem = view(() => {
  const words = problem.value || trouble.value;
  return words && html`<p class="banner" role="alert">${words}</p>`;
});

const Attached = view(
  () =>
    html`<${Documents}
      documents=${attached.value}
      onRemove=${(index) => {
        attached.value = attached.value.filter((_, at) => at !== index);
      }}
    />`,
);

const SendOrStop = view(() => {
  changes.value;
  const node = writingNow();
  return node
    ? html`<button
        type="button"
        onClick=${({ detail }) => {
          if (detail < 2) stop(node); // the second click on Send is none on Stop
        }}
      >
        Stop
      </button>`
    : html`<button class="primary">Send</button>`;
});

const WIDE = 720; // pixels; below, a keyboard on the screen would cover the page

const keyOf = (chat) => (chat.nodes.length ? chat.id : "");

export class Composer extends Component {
  componentDidMount() {
    // Whoever opens a conversation can write at once.
    this.stop = current.subscribe((chat) => {
      const before = this.chat;
      this.chat = chat;
      if (before?.id === chat.id) return; // another tab has added to it
      this.change(before);
      if (innerWidth > WIDE) this.area.focus({ preventScroll: true });
    });
  }

  componentWillUnmount() {
    this.stop();
    this.keep(this.chat);
  }

  keep(chat) {
    const text = this.area.value;
    const files = attached.peek();
    if (text || files.length) drafts.set(keyOf(chat), { text, files });
  }

  /** What was begun in a conversation stays in it. */
  change(before) {
    if (before) this.keep(before);
    const key = keyOf(this.chat);
    const { text, files } = drafts.get(key) ?? { text: "", files: [] };
    drafts.delete(key);
    this.area.value = text;
    attached.value = files;
    problem.value = "";
    this.grow();
  }

  send(event) {
    event?.preventDefault();
    const text = this.area.value.trim();
    if (writingNow() || (!text && !attached.value.length)) return;
    try {
      toolsOf(current.value.settings.tools);
    } catch (error) {
      problem.value = error.message;
      return;
    }
    problem.value = "";
    trouble.value = "";
    const documents = attached.value;
    attached.value = [];
    this.area.value = "";
    this.grow();
    say(current.value, text, documents);
  }

  grow() {
    const rows = this.area.value.split("\n").length;
    this.area.rows = Math.max(2, Math.min(MOST_ROWS, rows));
  }

  render() {
    return html`<form class="composer panel" onSubmit=${(event) => this.send(event)}>
      <${Problem} /><${Attached} />
      <label class="hidden" for="say">Message</label>
      <textarea
        id="say"
        rows="2"
        dir="auto"
        placeholder="Ask something. Enter sends, Shift and Enter begin a line"
        ref=${(area) => {
          this.area = area;
        }}
        onInput=${() => this.grow()}
        onKeyDown=${(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          this.send();
        }}
        onPaste=${(event) => {
          // Office programs add a picture of the text that was copied.
          const { files, types } = event.clipboardData;
          if (!files.length || types.includes("text/plain")) return;
          event.preventDefault();
          attach(files);
        }}
      ></textarea>
      <p class="tools">
        <input
          type="file"
          id="attach"
          class="hidden"
          tabindex="-1"
          multiple
          aria-label="Attach text files"
          onChange=${async (event) => {
            const { target } = event;
            await attach([...target.files]);
            target.value = "";
          }}
        />
        <button
          type="button"
          class="quiet"
          onClick=${() => document.getElementById("attach").click()}
        >
          Attach text files
        </button>
        <${SendOrStop} />
      </p>
    </form>`;
  }
}
