// The way of a request, station by station: over HTTP, through the engine, and back.

import { html, signal, view } from "../lib/html.js";
import { Canvas } from "../lib/canvas.js";
import { clock, count, foreign, many, shortId, time } from "../lib/format.js";
import { description } from "../lib/source.js";
import { store } from "../lib/store.js";
import { callOf } from "./request_details.js";

const MAX_CHUNKS = 12;
const WORDS = {
  authenticated: "key checked",
  limited: "limits counted",
  read: "body read",
  context: "context put together",
  tokenise: "tokenised",
  prepare: "checked, sent on",
};
const NOTES = {
  authenticated: (call) => (call.tenant ? `key ${foreign(call.tenant, 24)}` : ""),
  tokenise: (call) => (call.num_prompt_tokens ? many(call.num_prompt_tokens, "token") : ""),
  context: (call) =>
    call.context?.unit === "tokens" ? `${many(call.num_prompt_tokens, "token")}, counted` : "",
};
/** Whether the scale ends with the first token, so that the short stations can be seen. */
const toFirst = signal(true);

/** A station: `begin` and `end` in seconds, `kind` one of http, waiting, prefill, decode, mark. */
const station = (name, begin, end, kind, note = "") => ({ name, begin, end, kind, note });

function before(call) {
  if (!call) return [];
  const found = [station("received", call.received, call.received, "mark", foreign(call.path, 40))];
  let begin = call.received;
  for (const { name, end } of call.stations) {
    found.push(station(WORDS[name] ?? name, begin, end, "http", NOTES[name]?.(call) ?? ""));
    begin = end;
  }
  return found;
}

function after(call) {
  if (!call || call.first_byte === null) return [];
  const name = call.streamed ? "stream" : "answer";
  // Pieces of a stream are written past what takes notes; the last one is noted again.
  const end = call.ended === null ? Math.max(store.now, call.first_byte) : call.last_byte;
  const status = call.status && call.status !== 200 ? `, status ${call.status}` : "";
  if (!call.streamed && end - call.first_byte < 1e-4) {
    return [station(name, end, end, "mark", `all of it at once${status}`)];
  }
  const at = (moment) => time(moment - call.received);
  const note =
    `first byte at ${at(call.first_byte)}, ` +
    `${call.ended === null ? "goes on" : `last at ${at(end)}`}${status}`;
  return [station(name, call.first_byte, end, "http", note)];
}

/** Prefill chunks as [begin, end, tokens], and when each decode step ended. */
function sharesOf(record) {
  const chunks = [];
  const ticks = [];
  let steps = 0;
  let tokens = 0; // of the decode steps; the first token came with the prefill
  let begin = null;
  for (const [row, share] of store.sharesFor(record)) {
    const from = store.steps.get("time", row);
    const end = from + store.steps.get("duration", row);
    const prompt = store.shares.get("prompt", share);
    if (prompt) chunks.push([from, end, prompt]);
    else {
      begin ??= from;
      ticks.push(end);
      steps += store.steps.get("span", row);
      tokens += store.shares.get("new", share);
    }
  }
  return { chunks, ticks, steps, tokens, begin };
}

function inEngine(record) {
  const now = record.finish ?? store.now;
  if (record.arrival === null) return [];
  const found = [station("queue", record.arrival, record.started ?? now, "waiting")];
  const { chunks, ticks, steps, tokens, begin } = sharesOf(record);
  const cached = record.cached ? `, ${count(record.cached)} cached` : "";
  if (chunks.length > MAX_CHUNKS) {
    const sum = chunks.reduce((total, chunk) => total + chunk[2], 0);
    const name = `${chunks.length} chunks`;
    const end = chunks[chunks.length - 1][1];
    found.push(station(name, chunks[0][0], end, "prefill", `${many(sum, "token")}${cached}`));
  } else {
    chunks.forEach(([from, end, size], index) => {
      const name = chunks.length > 1 ? `prefill ${index + 1}` : "prefill";
      const note = `${many(size, "token")}${index ? "" : cached}`;
      found.push(station(name, from, end, "prefill", note));
    });
  }
  if (!chunks.length && record.started !== null && record.firstToken !== null) {
    const note = `${many(record.prompt - record.cached, "token")}${cached}`;
    found.push(station("prefill", record.started, record.firstToken, "prefill", note));
  }
  if (record.firstToken !== null) {
    found.push(station("first token", record.firstToken, record.firstToken, "mark"));
  }
  if (ticks.length) {
    const note = `${many(tokens, "token")} in ${many(steps, "step")}`;
    const last = ticks[ticks.length - 1];
    const decode = station("decode", record.firstToken ?? begin, last, "decode", note);
    found.push({ ...decode, ticks });
  }
  return found;
}

/** All stations of a request, as far as they have been reached and are known. */
export function stationsOf(record) {
  const call = callOf(record);
  return [...before(call), ...inEngine(record), ...after(call)];
}

const drawTicks = (ticks, from, span) => (context, width, height, palette) => {
  context.fillStyle = palette.decode;
  let last = -2;
  for (const end of ticks) {
    const x = Math.floor(((end - from) / span) * width);
    if (x > width) break;
    if (x - last < 2) continue; // closer together they would be one bar
    context.fillRect(x, 2, 1, height - 4);
    last = x;
  }
};

const Track = ({ one, from, span }) => {
  const share = (at) => Math.max(0, Math.min(100, (100 * (at - from)) / span));
  const left = share(one.begin);
  if (one.begin > from + span) return html`<span class="track beyond" aria-hidden="true"></span>`;
  if (one.ticks) {
    return html`<span class="track" aria-hidden="true">
      <i class="decode" style=${{ left: `${left}%`, width: `${share(one.end) - left}%` }}></i>
      <${Canvas} name="fill" draw=${drawTicks(one.ticks, from, span)} />
    </span>`;
  }
  const goesOn = one.end > from + span ? "on" : "";
  return html`<span class="track" aria-hidden="true">
    <i
      class=${`${one.kind} ${goesOn}`}
      style=${{ left: `${left}%`, width: `${share(one.end) - left}%` }}
    ></i
  ></span>`;
};

function whyNoStations(record) {
  const { kind } = description.value ?? {};
  if (kind === "simulation") {
    return (
      "A simulation has no HTTP: its requests begin in the queue and end with their last token."
    );
  }
  if (callOf(record) === undefined) return "";
  if (kind === "recording") {
    return (
      "The recording has no stations over HTTP for it: it did not come that way, had not ended," +
      " or the recording is of an earlier version."
    );
  }
  return "Its stations over HTTP are not known: it did not come that way, or too long ago.";
}

/** What passed in the server before the engine had a request, and its longest station. */
export function beforeEngine(record, call) {
  if (!call || record.arrival === null) return "";
  const parts = before(call).filter((one) => one.begin < record.arrival);
  const took = (one) => one.end - one.begin;
  const longest = parts.reduce((one, other) => (took(other) > took(one) ? other : one), parts[0]);
  const most = longest && took(longest) ? ` (${longest.name}: ${time(took(longest))})` : "";
  const whole = time(record.arrival - call.received);
  return `${whole} passed in the server before the engine had it${most}.`;
}

/** How much of the time to the first token went where, in one sentence. */
function summary(record, call) {
  if (!call || record.firstToken === null || record.arrival === null) return "";
  const whole = record.firstToken - call.received;
  const http = Math.max(0, record.arrival - call.received);
  const share = Number(((100 * http) / Math.max(whole, 1e-9)).toPrecision(2));
  const out =
    call.first_byte !== null && call.streamed && call.first_byte > record.firstToken
      ? ` Its first byte was written ${time(call.first_byte - record.firstToken)} after it.`
      : "";
  return (
    `The first token came ${time(whole)} after the request's head; ${time(http)} of that` +
    ` (${share}\u00a0%) passed before the engine had it.${out}`
  );
}

export const Stations = view(({ record }) => {
  store.beat.value;
  const call = callOf(record);
  const found = stationsOf(record);
  const labels = Object.entries(record.labels);
  const from = found.length ? Math.min(...found.map((one) => one.begin)) : 0;
  const last = found.length ? Math.max(...found.map((one) => one.end)) : 0;
  const canZoom = record.firstToken !== null && last > record.firstToken;
  const end = canZoom && toFirst.value ? from + 1.06 * (record.firstToken - from) : last;
  const span = Math.max(end - from, 1e-6);
  return html`<section class="panel stations">
    <h2>
      ${shortId(record.id)}
      <span class="muted"
        >arrived${" "}
        ${clock(record.arrival ?? 0, description.value)}${record.tenant
          ? `, key ${foreign(record.tenant, 24)}`
          : ""}${labels
          .map(([name, value]) => `, ${foreign(name, 20)} ${foreign(value, 40)}`)
          .join("")}</span
      >
      ${canZoom &&
      html`<span class="choice" role="group" aria-label="Scale">
        <button aria-pressed=${toFirst.value} onClick=${() => { toFirst.value = true; }}>
          To the first token
        </button>
        <button aria-pressed=${!toFirst.value} onClick=${() => { toFirst.value = false; }}>
          Whole
        </button></span
      >`}
    </h2>
    <ol class="stations" aria-label="Stations of the request">
      ${found.map(
        (one) =>
          html`<li key=${one.name}>
            <span class="name">${one.name}</span>
            <${Track} one=${one} from=${from} span=${span} />
            <span class="num"
              >${one.kind === "mark" ? "at " : ""}${time(
                one.kind === "mark" ? one.begin - from : one.end - one.begin,
              )}</span
            >
            <span class="note muted">${one.note}</span>
          </li>`,
      )}
    </ol>
    <p class="muted">
      ${call ? summary(record, call) : whyNoStations(record)}
    </p>
  </section>`;
});

const PARTS = [
  ["system", "system"],
  ["documents", "documents"],
  ["history", "history"],
  ["message", "last message"],
  ["template", "template"],
];

/** What the prompt was put together of, and what was cut. */
export const ContextBudget = view(({ record }) => {
  const call = callOf(record);
  const context = call?.context;
  if (!context) return null;
  const parts = PARTS.map(([field, name]) => [field, name, context[field] ?? 0]).filter(
    ([, , size]) => size > 0,
  );
  const used = parts.reduce((sum, [, , size]) => sum + size, 0);
  const budget = context.budget ?? 0;
  const whole = Math.max(budget, used, 1);
  const cut = [
    context.cut_turns
      ? `${many(context.cut_turns, "turn")} of the history` +
        ` (${many(context.cut_history ?? 0, "token")})`
      : "",
    context.cut_documents ? `${many(context.cut_documents, "token")} of documents` : "",
    context.cut_tokens ? `${many(context.cut_tokens, "token")} at the start of the prompt` : "",
  ].filter(Boolean);
  return html`<section class="panel context">
    <h2>
      What the prompt is made of
      <span class="muted num"
        >${budget
          ? `${count(used)} of ${count(budget)} ${context.unit} that it may have`
          : `${count(used)} ${context.unit}`}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          The parts in the order in which they stand in the prompt. They are counted in tokens where
          documents or a budget came with the chat; otherwise in characters as the client sent them,
          since counting each part's tokens would encode it twice.
        </p>
      </details>
    </h2>
    <span class="bar parts" aria-hidden="true">
      ${parts.map(
        ([field, , size]) =>
          html`<b key=${field} class=${field} style=${{ width: `${(100 * size) / whole}%` }}></b>`,
      )}
    </span>
    <p class="legend">
      ${parts.map(
        ([field, name, size]) =>
          html`<span key=${field}><i class=${`part ${field}`}></i>${name} ${count(size)}</span>`,
      )}
      ${budget > used && html`<span><i class="unused"></i>room left ${count(budget - used)}</span>`}
    </p>
    <p class=${cut.length ? "cut" : "muted"}>
      ${cut.length ? `Cut: ${cut.join("; ")}.` : "Nothing was cut."}
    </p>
  </section>`;
});
