// Chat: a person tries the model, and each answer leads to what the server did for it.

import { Component, effect, html, signal, view } from "../../lib/html.js";
import { correct, extra, page } from "../../lib/address.js";
import { description } from "../../lib/source.js";
import {
  changes,
  chats,
  current,
  makeChat,
  openStorage,
  remove,
  titleOf,
} from "./conversations.js";
import { Composer, attach } from "./composer.js";
import { loadMarkdown } from "./markdown.js";
import { learnModels, stopAll } from "./sending.js";
import { Settings } from "./settings.js";
import { Thread } from "./thread.js";

/** On a narrow window one of `chats` and `settings` covers the conversation, or none. */
const shown = signal("");
let opened = false;

const toggle = (name) => {
  shown.value = shown.value === name ? "" : name;
};

function open(chat) {
  current.value = chat;
  shown.value = "";
}

/** Delete conversations once it is confirmed, and stop what is written in them. */
function drop(dropped, question) {
  if (!confirm(question)) return;
  for (const chat of dropped) {
    stopAll(chat);
    remove(chat);
  }
}

const List = view(() => {
  changes.value;
  return html`<section class="chats panel" aria-label="Conversations">
    <h2>Conversations</h2>
    <button onClick=${() => open(makeChat(current.value.settings))}>New chat</button>
    ${
      chats.value.length
        ? html`<ul>
              ${chats.value.map(
                (chat) =>
                  html`<li key=${chat.id}>
                    <button
                      class="link"
                      aria-current=${chat.id === current.value.id ? "true" : null}
                      onClick=${() => open(chat)}
                    >
                      ${titleOf(chat)}
                    </button>
                    <button
                      class="quiet"
                      aria-label=${`Delete ${titleOf(chat)}`}
                      onClick=${() => drop([chat], `Delete ${titleOf(chat)}?`)}
                    >
                      Delete
                    </button>
                  </li>`,
              )}
            </ul>
            <p class="muted">
              Kept in this browser only.${" "}
              <button
                class="link"
                onClick=${() =>
                  drop(chats.value, "Delete all conversations that this browser keeps?")}
              >
                Delete all
              </button>
            </p>`
        : html`<p class="muted">What you say here is kept in this browser only.</p>`
    }
  </section>`;
});

const Bar = view(() => {
  changes.value;
  return html`<p class="chat-bar">
    <button aria-pressed=${shown.value === "chats"} onClick=${() => toggle("chats")}>
      Conversations
    </button>
    <b>${current.value.nodes.length ? titleOf(current.value) : "New chat"}</b>
    <button aria-pressed=${shown.value === "settings"} onClick=${() => toggle("settings")}>
      Settings
    </button>
  </p>`;
});

/** Text that is dragged goes where the browser puts it. */
const hasFiles = ({ dataTransfer }) => dataTransfer.types.includes("Files");

const Columns = view(
  () =>
    html`<div
      class=${`chat ${shown.value ? `shows-${shown.value}` : ""}`}
      onDragOver=${(event) => {
        if (hasFiles(event)) event.preventDefault();
      }}
      onDrop=${(event) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        attach([...event.dataTransfer.files]);
      }}
    >
      <${Bar} /><${List} />
      <div class="talk"><${Thread} /><${Composer} /></div>
      <${Settings} />
    </div>`,
);

class Conversation extends Component {
  componentDidMount() {
    if (!opened) openStorage();
    opened = true;
    loadMarkdown();
    learnModels();
    // The address says which conversation is open; a link, Back or Forward opens another one.
    const isKnown = (id) => chats.peek().some((one) => one.id === id);
    let isFirst = true; // then an address without one leaves open what is
    this.stops = [
      effect(() => {
        const { chat: id, ...rest } = extra.value;
        const opens = !isFirst;
        isFirst = false;
        const before = current.peek();
        if (page.peek() !== "chat" || id === before.id) return;
        if (isKnown(id)) open(chats.peek().find((one) => one.id === id));
        else if (opens && before.nodes.length) open(makeChat(before.settings));
        else if (opens && id !== undefined) correct(rest);
      }),
      effect(() => {
        changes.value;
        const { id, nodes } = current.value;
        const { chat: written, ...rest } = extra.peek();
        const wanted = nodes.length ? id : undefined;
        if (wanted === written) return;
        const more = wanted ? { ...rest, chat: wanted } : rest;
        // No entry of the browser's history is to lead to one that was deleted.
        if (written === undefined || isKnown(written)) extra.value = more;
        else correct(more);
      }),
    ];
  }

  componentWillUnmount() {
    for (const stop of this.stops) stop();
    const { chat: _, ...rest } = extra.value;
    extra.value = rest;
  }

  render() {
    return html`<${Columns} />`;
  }
}

export const ChatPage = view(() => {
  const source = description.value;
  if (!source) return html`<p class="empty">Opening</p>`;
  if (source.kind === "live") return html`<${Conversation} />`;
  return html`<section class="panel empty">
    <p>
      A ${source.kind} has steps and times, but no model to talk to: it needs a live one. Start a
      server and open its page:
    </p>
    <pre>twostroke serve</pre>
  </section>`;
});
