// One answer: thoughts, text, tool calls, and where its time went.

import { Component, html, signal, view } from "../../lib/html.js";
import { copy } from "../../lib/copy.js";
import { aboutGap, aboutRequest, standsOut, worstGap } from "../../lib/explain.js";
import { count, foreign, many, time } from "../../lib/format.js";
import { playing } from "../../lib/source.js";
import { startOf } from "../../lib/start.js";
import { store } from "../../lib/store.js";
import { beforeEngine } from "../request_stations.js";
import { changes, current, pathOf } from "./conversations.js";
import { Markdown } from "./markdown.js";
import { Branches } from "./branches.js";
import { again, giveResults, isWriting } from "./sending.js";

const ENDS = {
  stop: null,
  tool_calls: null,
  length: "It reached its greatest length (max_tokens, or the model's context).",
  stopped: "You stopped it.",
  elsewhere: "Another tab of this page is writing it.",
  left: "This page was left while it was being written.",
  cut: "The connection ended before the answer did.",
  error: null, // its message is shown
};

const Thoughts = ({ node, open }) => {
  const words = node.thoughts.trim().split(/\s+/).length;
  return html`<details class="thoughts" open=${open}>
    <summary>
      ${open ? "Thinking" : `Thoughts, ${many(words, "word")}`}
    </summary>
    <p class="plain" dir="auto">${node.thoughts.trim()}</p>
  </details>`;
};

/** Arguments as people read them, where they are whole JSON. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const Call = ({ call }) =>
  html`<section class="call">
    <h4><span class="muted">calls</span> <code>${foreign(call.name, 64)}</code></h4>
    <pre tabindex="0" role="region" aria-label="Arguments">${pretty(call.arguments)}</pre>
  </section>`;

/** The calls of an answer, and fields for what they return where nothing has been returned. */
class Calls extends Component {
  render({ node, isLast }) {
    const give = (event) => {
      event.preventDefault();
      const data = new FormData(event.target);
      giveResults(
        current.value,
        node,
        node.calls.map((_, index) => String(data.get(`result-${index}`))),
      );
    };
    const asks = isLast && node.finish === "tool_calls";
    return html`<form onSubmit=${give}>
      ${node.calls.map(
        (call, index) =>
          html`<${Call} key=${index} call=${call} /> ${
              asks &&
              html`<label class="result"
                ><span>What ${foreign(call.name, 40)} returns</span>
                <textarea name=${`result-${index}`} rows="2" required></textarea>
              </label>`
            }`,
      )}
      ${asks && html`<p><button>Give ${node.calls.length === 1 ? "it" : "them"} back</button></p>`}
    </form>`;
  }
}

const asked = signal(null); // the answer whose time is explained

/** Where the seconds went, in numbers that the page measured itself. */
function figures(node) {
  const tokens = node.usage?.completion_tokens;
  const parts = [`${time(node.took)}`];
  if (node.ttft !== undefined) parts.push(`first token after ${time(node.ttft)}`);
  if (tokens !== undefined) {
    const each = (node.took - (node.ttft ?? node.took)) / (tokens - 1);
    const pace = tokens > 1 && each > 1e-5 ? `, ${time(each)} each` : "";
    parts.push(`${many(tokens, "token")}${pace}`);
  }
  const cached = node.usage?.prompt_tokens_details?.cached_tokens;
  const prompt = node.usage?.prompt_tokens;
  if (prompt) parts.push(`prompt ${count(prompt)}${cached ? `, ${count(cached)} cached` : ""}`);
  return parts.join(" · ");
}

/** What did not fit into the prompt. */
function cutFrom(context) {
  if (!context) return "";
  const turns = context.turns?.dropped ?? 0;
  const documents = (context.documents ?? []).filter((one) => one.kept === 0).length;
  const lost = [
    turns && `${count(turns)} earlier turn${turns === 1 ? "" : "s"}`,
    documents && `${many(documents, "document")}`,
  ].filter(Boolean);
  return lost.length ? `Not in its prompt, for want of room: ${lost.join(" and ")}.` : "";
}

const place = (page, id, more) => `#/${page}?${new URLSearchParams({ ...more, request: id })}`;

const LEAST_SPAN = 0.25; // seconds

/** Its lane on the timeline, over the time that it took. */
function lane(id) {
  const record = store.requests.get(id);
  if (!record?.finish || record.arrival === null) return place("timeline", id);
  const took = record.finish - record.arrival;
  const span = Math.max(LEAST_SPAN, 1.4 * took);
  const end = record.finish + (span - took) / 2;
  return place("timeline", id, { span: span.toPrecision(4), end: end.toFixed(4) });
}

/** How it went on after the first token, and what held it up most. */
function aboutDecode(record) {
  if (record.output < 2 || !(record.lastToken > record.firstToken)) return [];
  const took = record.lastToken - record.firstToken;
  const rest = record.output - 1;
  const each = time(took / rest);
  const lines = [`Then it wrote ${many(rest, "token")} in ${time(took)}, ${each} each.`];
  const worst = record.worstGap > 0 && standsOut(record) ? worstGap(record) : null;
  return worst ? [...lines, ...aboutGap(record, worst)] : lines;
}

/** Its life in sentences; how it ended comes last. */
function aboutWay(record) {
  const lines = aboutRequest(record);
  const end = record.status === "finished" ? lines.splice(-1) : [];
  return [beforeEngine(record, startOf(record).call), ...lines, ...aboutDecode(record), ...end];
}

/** How much of the time to the first token passed neither in the server nor in its engine. */
function onTheWay(node, record) {
  const { call } = record ? startOf(record) : {};
  if (!call || record.firstToken === null || node.ttft === undefined) return "";
  const rest = node.ttft - (record.firstToken - call.received);
  return rest > 0 ? ` (${time(rest)} of it on the way there and back, and in the page)` : "";
}

/** Why nothing is told of a request. */
const UNKNOWN = {
  live:
    "The engine's steps of this request are not on this page: it is older than what the server" +
    " remembers, or another key's.",
  paused: "This page is paused at another moment: choose To now, and it is told here.",
};

const Why = view(({ node }) => {
  store.beat.value;
  const record = store.requests.get(node.request);
  return html`<div class="why">
    <p>
      ${
        record
          ? aboutWay(record).join(" ")
          : UNKNOWN[playing.value ? "live" : "paused"]
      }
    </p>
    <p>
      The page waited${" "}
      ${node.ttft === undefined
        ? ""
        : `${time(node.ttft)} for the first token${onTheWay(node, record)} and `}
      ${time(node.took)} in all.
    </p>
  </div>`;
});

const Links = ({ id }) =>
  html`<span class="places">
    <a href=${place("request", id, { part: "stations" })}>stations</a>
    <a href=${place("request", id, { part: "tokens" })}>tokens</a>
    <a href=${place("request", id, { part: "gaps" })}>gaps</a>
    <a href=${lane(id)}>lane</a>
  </span>`;

const About = view(({ node }) => {
  const open = asked.value === node.id;
  return html`<div class="about">
      <span class="muted num">${figures(node)}</span>
      ${
        node.request &&
        html`<button
            class="link"
            aria-expanded=${open}
            onClick=${() => {
              asked.value = open ? null : node.id;
            }}
          >
            Why ${time(node.took)}?
          </button>
          <${Links} id=${node.request} />`
      }
    </div>
    ${open && html`<${Why} node=${node} />`}`;
});

export const Answer = view(({ node }) => {
  changes.value;
  const writes = isWriting(node);
  const isLast = current.value.leaf === node.id;
  const thinks = writes && !node.content && !node.calls;
  const ended = writes ? null : ENDS[node.finish];
  const waits = node.ttft === undefined ? "Waits for the first token" : "";
  const isEmpty = !writes && !node.content && !node.calls && !node.error && !node.thoughts;
  const lost = cutFrom(node.usage?.context);
  return html`<article class="answer" aria-busy=${writes}>
    <h3 class="hidden">Answer</h3>
    ${node.thoughts && html`<${Thoughts} node=${node} open=${thinks} />`}
    ${node.content && html`<${Markdown} text=${node.content} />`}
    ${node.calls && html`<${Calls} node=${node} isLast=${isLast} />`}
    ${writes && html`<p class="muted">${waits}<i class="caret"></i></p>`}
    ${node.error && html`<p class="banner" role="alert">${foreign(node.error, 600)}</p>`}
    ${isEmpty && html`<p class="muted">It is empty.</p>`}
    ${ended && html`<p class="muted">${ended}</p>`} ${lost && html`<p class="muted">${lost}</p>`}
    ${!writes && node.took !== undefined && html`<${About} node=${node} />`}
    ${
      !writes &&
      html`<p class="acts">
        <${Branches} node=${node} what="answer" />
        <button class="quiet" onClick=${() => copy(node.content, "answer")}>Copy</button>
        <button class="quiet" onClick=${() => again(current.value, node)}>
          ${node.finish === "error" ? "Try again" : "Regenerate"}
        </button>
      </p>`
    }
  </article>`;
});

/** The last answer on the branch shown, if it is being written. */
export function writingNow() {
  changes.value;
  const last = pathOf(current.value).at(-1);
  return last && isWriting(last) ? last : null;
}
