// What bounds the server, what its requests waited for, how many more fit: asked of the server.

import { html, signal, view } from "../../lib/html.js";
import { askAgain } from "../../lib/ask_again.js";
import { reasonWord } from "../../lib/explain.js";
import { clock, count, foreign, short, time } from "../../lib/format.js";
import { description, json, playing, seesAll } from "../../lib/source.js";
import { isKept } from "../../lib/kept.js";
import { store } from "../../lib/store.js";

const EVERY_MS = 3000;
const MINUTES = 10; // that the panel shows

/** `ShownBound` of `/v1/inspect/bound`, and the minutes of `/v1/inspect/waits/minutes`. */
const found = signal(null);
/** What bounded the latest steps of a server that rests; else null. */
const lately = signal(null);
const minutes = signal([]);
/** Why there is no answer yet, if the server said so. */
const trouble = signal("");

/** Ask while Live is shown; `target` says which TPOT may not be passed, or null. */
export function watchBound(target) {
  const about = () => {
    const source = description.value;
    if (!source || !seesAll() || store.lastStep < 0) return null;
    const isNow = source.kind === "live" && playing.value;
    const key = `${source.engine_id} ${isNow ? "" : store.lastStep} ${source.ready}`;
    return { key, isNow, changes: isNow };
  };
  const { turn, stop } = askAgain(EVERY_MS, about, async ({ isNow }) => {
    const values = new URLSearchParams();
    if (!isNow) values.set("to", store.lastStep);
    const limit = target();
    if (limit) values.set("tpot", limit);
    const end = store.now;
    const path = `/waits/minutes?begin=${Math.max(0, end - 60 * MINUTES)}&end=${end}`;
    try {
      const [bound, waits] = await Promise.all([json(`/bound?${values}`), json(path)]);
      const rests = bound.bound.kind === "idle" && store.lastStep >= 0;
      const step = rests && store.lastStepOf(store.shownRow);
      lately.value = rests ? (await json(`/bound?to=${step}`)).bound : null;
      [found.value, minutes.value, trouble.value] = [bound, waits, ""];
    } catch (error) {
      trouble.value = error.message;
      throw error; // it is asked again
    }
  });
  const soon = setTimeout(turn, 400); // the first answer comes once the store is filled
  return () => {
    clearTimeout(soon);
    stop();
  };
}

const percent = (share) => `${short(100 * share)}\u00a0%`;

const WORDS = {
  compute: "arithmetic",
  memory: "memory bandwidth",
  host: "the host",
  overhead: "neither arithmetic nor memory",
};

/** Why a step takes as long as it does. */
function aboutSteps({ within, compute, memory, host }) {
  if (within === "host") {
    return `${percent(host)} of a step's time passes outside the model: scheduling and input.`;
  }
  if (within === "memory") {
    return (
      `each step reads the weights, at ${percent(memory)} of what this device's memory can;` +
      ` its arithmetic is used to ${percent(compute)}.`
    );
  }
  if (within === "compute") {
    return (
      `its arithmetic is used to ${percent(compute)} of the device's, its memory` +
      ` to ${percent(memory)}.`
    );
  }
  if (within === "overhead") {
    return (
      `steps use ${percent(compute)} of this device's arithmetic and ${percent(memory)} of its` +
      " memory bandwidth: the time goes to many small operations, one after the other."
    );
  }
  return "";
}

const ROOM = {
  max_num_seqs: "all places are taken (--max-num-seqs)",
  no_free_block: "no KV block is free",
  batch_running: "a batch has to end first",
};

const UNKNOWN = {
  model: "nothing tells which model ran",
  device: "no sheet describes this device",
  tokens: "its latest steps computed no token",
  gone: "the steps of this moment are no longer kept",
};

/** `[the short answer, the rest]`. */
function words(bound) {
  if (bound.kind === "idle") {
    // Also steps that were few and far between had a limit of their own.
    const steps = lately.value ?? bound;
    const kind = steps.kind === "idle" ? steps.within : steps.kind;
    if (kind === "idle") return ["Waits for requests.", ""];
    const [begin, rest] = words({ ...steps, kind });
    const when = kind === "unknown" ? begin : `When it last ran: ${begin.toLowerCase()}`;
    return ["Waits for requests.", `${when} ${rest}`];
  }
  if (bound.why === "unended") {
    const so = `A step has run for ${time(bound.unended)}:`;
    return [so, "what bounds it is known when it ends."];
  }
  if (bound.kind === "queue") {
    const inside = WORDS[bound.within];
    return [
      "Bound by its queue:",
      `${ROOM[bound.reason] ?? reasonWord(bound.reason)}.` +
        (inside ? ` Within a step ${inside} is the limit: ${aboutSteps(bound)}` : ""),
    ];
  }
  if (!WORDS[bound.kind]) {
    const canMeasure = bound.why === "device" && description.value.kind === "live";
    const helps = canMeasure ? " Measure it on the page Model." : "";
    return ["What bounds its steps is not known:", `${UNKNOWN[bound.why]}.${helps}`];
  }
  return [`Bound by ${WORDS[bound.kind]}:`, aboutSteps(bound)];
}

/** A link to a page, where that is not left out of a file without a server. */
const leadsTo = (name, text) => (isKept ? "" : html`<a href=${`#/${name}`}>${text}</a>`);

export const BoundLine = view(() => {
  if (store.lastStep < 0) return null;
  if (!seesAll()) {
    return html`<span class="bound"
      >What bounds the server concerns all keys: an admin key shows it.</span
    >`;
  }
  // From the first moment on, so that what is below does not move when the answer comes.
  if (!found.value) {
    const why = trouble.value ? `What bounds it is not known: ${foreign(trouble.value, 200)}.` : "";
    return html`<span class="bound">${why || "Looking for what bounds it."}</span>`;
  }
  const [begin, rest] = words(found.value.bound);
  return html`<span class="bound"
    ><b>${begin}</b> ${rest}${" "}${leadsTo("model", "See the roofline")}</span
  >`;
});

const BINDS = {
  places: "then all places are taken (--max-num-seqs)",
  blocks: "then no KV block is free",
  time: "a further one would make a token take longer than that",
};

/** Whose limit it is: a target's, or a tenth more than now. */
const ruleOf = ({ limit, tpot }) =>
  Math.abs(limit / tpot - 1.1) < 1e-6
    ? " (a tenth longer than now; --target sets another)"
    : " (--target)";

function aboutRoom(room, isIdle) {
  if (!room) return "No step lately that only decoded: how many more users fit is not known.";
  const [one, many] = isIdle ? ["decoded", "decoded"] : ["decodes", "decode"];
  const isOne = room.users === 1;
  const decoding = isOne ? `1 request ${one}` : `${count(room.users)} requests ${many} at once`;
  const now = `${isIdle ? "Lately" : "Now"} ${decoding}`;
  const user = room.more === 1 ? "user" : "users";
  const limit = time(room.limit) + ruleOf(room);
  const fit = room.more === 0 ? "No further user" : `${count(room.more)} more ${user}`;
  const fits = room.more === 1 || room.more === 0 ? "fits" : "fit";
  return (
    `${fit} like these ${fits} ${isIdle ? "beside those of lately" : "now"}, at a TPOT of` +
    ` ${limit}: ${room.more ? BINDS[room.binding] : NONE[room.binding]}. ${now},` +
    ` with ${count(room.context)} tokens of context${isOne ? "" : " each"},` +
    ` at ${time(room.tpot)} a token.` +
    " Their prompts come on top."
  );
}

const NONE = {
  places: "all places are taken (--max-num-seqs)",
  blocks: "no KV block is free",
  time: "a token would take longer than that",
};

const LEAST_SAVED = 0.02; // of a token's time: less is noise

function aboutDrafts(drafts) {
  const [one, other] = [drafts.with_drafts, drafts.without];
  const saved = (other - one) / other;
  const pays =
    Math.abs(saved) <= LEAST_SAVED ? "changes little" : saved > 0 ? "pays" : "does not pay";
  const how =
    drafts.measured === 1
      ? "measured in steps of as many requests"
      : drafts.fitted
        ? "by how long steps of fewer tokens take"
        : drafts.measured
          ? "partly by the cost model"
          : "by the cost model";
  return (
    `Guessing ${pays}: ${time(one)} a token with guesses,` +
    ` ${time(other)} without (${how}); of the latest guesses ${percent(drafts.accepted)}` +
    " were right."
  );
}

/** The same on the page Speculation. */
export const DraftsLine = view(() =>
  found.value?.drafts && seesAll() ? html`<p>${aboutDrafts(found.value.drafts)}</p>` : null,
);

/** Colours tell only lack of room from the rest. */
const kindOf = (reason) =>
  ["no_free_block", "preempted"].includes(reason)
    ? "alarm"
    : ["next_step", "waking"].includes(reason)
      ? "faint"
      : "waiting";

const byMost = (one, other) => other[1] - one[1];

export const WhyPanel = view(() => {
  if (!found.value || !seesAll()) return null;
  const { bound, room, drafts, earlier } = found.value;
  const most = Math.max(
    ...minutes.value.map(({ seconds }) => Object.values(seconds).reduce((a, b) => a + b, 0)),
    1e-9,
  );
  return html`<section class="panel whypanel">
    <h2>
      Why, and how many more
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Waiting counts the seconds of all requests together: 3 that wait for 2 s are 6 s. A
          request that gets a part of its prompt does not wait. How many more users fit is the least
          of three: free places, free KV blocks, and how much longer a decode step may take by the
          cost model, scaled to what steps take now.
        </p>
      </details>
    </h2>
    <p>${aboutRoom(room, earlier || bound.kind === "idle")}</p>
    ${
      drafts
        ? html`<p>${aboutDrafts(drafts)}${" "}${leadsTo("speculation", "Speculation")}</p>`
        : null
    }
    ${
      minutes.value.length
        ? html`<h3>Seconds waited, by minute</h3>
            <ul class="waits">
              ${minutes.value.map(({ begin, seconds }) => {
                const sum = Object.values(seconds).reduce((one, other) => one + other, 0);
                return html`<li key=${begin}>
                  <span class="num">${clock(begin, description.value, 0)}</span>
                  <span class="bar" aria-hidden="true"
                    >${Object.entries(seconds)
                      .sort(byMost)
                      .map(
                        ([reason, value]) =>
                          html`<b
                            key=${reason}
                            class=${kindOf(reason)}
                            style=${{ width: `${(100 * value) / most}%` }}
                          ></b>`,
                      )}</span
                  >
                  <span class="num">${time(sum)}</span>
                  <span class="muted"
                    >${Object.entries(seconds)
                      .sort(byMost)
                      .map(([reason, value]) => `${reasonWord(reason)} ${time(value)}`)
                      .join(", ")}</span
                  >
                </li>`;
              })}
            </ul>`
        : html`<p class="muted">Nothing waited in the last ten minutes.</p>`
    }
  </section>`;
});
