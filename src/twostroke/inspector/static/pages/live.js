// Live: how the server fares, the step being run, and the requests as rows that fill up.

import { DemoOffer, isEmpty } from "../demo/panel.js";
import { Component, html, signal, view } from "../lib/html.js";
import { numWaiting, reasonWord, whyHeld } from "../lib/explain.js";
import { Figure } from "../lib/figure.js";
import { bytes, count, duration, many, percentile, short, time } from "../lib/format.js";
import { api, connection, description, hasKey, seesAll } from "../lib/source.js";
import { store } from "../lib/store.js";
import { lateGaps } from "./live_gaps.js";
import { Requests } from "./live_requests.js";
import { Step } from "./live_step.js";
import { BoundLine, WhyPanel, watchBound } from "./why/live_why.js";

const MOST_SECONDS = 60; // that the sparklines show
const BINS = 60;
const targets = signal([]);

let askedTargets = 0;

/** Seconds that the sparklines show: what there is, up to a minute. */
function inWindow(now) {
  if (!store.length) return MOST_SECONDS;
  return Math.min(MOST_SECONDS, Math.max(10, now - store.steps.get("time", store.steps.first)));
}

/** What `--target` holds the server to: drawn as lines. */
async function learnTargets() {
  const now = performance.now();
  if (description.value?.kind !== "live" || (askedTargets && now - askedTargets < 5000)) return;
  askedTargets = now;
  try {
    const found = await api("/../targets");
    const data = (await found.json()).data ?? [];
    // Only another judgement is a change: what follows it draws all figures.
    if (JSON.stringify(data) !== JSON.stringify(targets.value)) targets.value = data;
  } catch {
    targets.value = [];
  }
}

/** [share of the window, value] of samples [time, value], reduced bin by bin. */
function binned(samples, now, reduce) {
  const within = inWindow(now);
  const bins = Array.from({ length: BINS }, () => []);
  for (let index = samples.length - 1; index >= 0; index -= 1) {
    const age = now - samples[index][0];
    if (age > within) break;
    bins[Math.max(0, Math.min(BINS - 1, Math.floor((1 - age / within) * BINS)))].push(
      samples[index][1],
    );
  }
  return bins.flatMap((bin, index) => (bin.length ? [[index / (BINS - 1), reduce(bin)]] : []));
}

const spread = (share) => (values) =>
  percentile(
    values.sort((one, other) => one - other),
    share,
  );
const recent = (samples, now) =>
  samples.filter((sample) => now - sample[0] <= MOST_SECONDS).map((sample) => sample[1]);

/** Sums and last values of the steps in the window, bin by bin. */
function overSteps(now) {
  const { steps } = store;
  const within = inWindow(now);
  const begin = Math.max(now - within, steps.get("time", steps.first) || 0);
  const made = new Float64Array(BINS);
  const prompts = new Float64Array(BINS);
  const kv = new Array(BINS).fill(null);
  const queue = new Array(BINS).fill(null);
  for (let row = steps.end - 1; row >= steps.first; row -= 1) {
    const end = steps.get("time", row) + steps.get("duration", row);
    if (now - end > within) break;
    const bin = Math.max(0, Math.min(BINS - 1, Math.floor((1 - (now - end) / within) * BINS)));
    made[bin] += steps.get("new", row);
    prompts[bin] += steps.get("prompt", row);
    const total = description.value?.num_blocks ?? 0;
    kv[bin] ??= total ? 1 - steps.get("free", row) / total : 0;
    queue[bin] ??= steps.get("waiting", row);
  }
  const seconds = within / BINS;
  const known = (1 - Math.min(within, now - begin) / within) * BINS;
  const rate = (column) =>
    [...column].flatMap((sum, bin) =>
      bin + 1 >= known ? [[bin / (BINS - 1), sum / seconds]] : [],
    );
  const carried = (column) => {
    let value = 0;
    return column.flatMap((found, bin) => {
      value = found ?? value;
      return bin + 1 >= known ? [[bin / (BINS - 1), value]] : [];
    });
  };
  return { made: rate(made), prompts: rate(prompts), kv: carried(kv), queue: carried(queue) };
}

/** What the engine did in the last seconds, from its own timings. */
function lead() {
  const { steps } = store;
  if (!store.length) return null;
  const now = store.now;
  const since = now - 5;
  let busy = 0;
  let longest = "";
  let prompt = 0;
  let tokens = 0;
  const parts = {};
  for (let row = steps.end - 1; row >= steps.first; row -= 1) {
    if (steps.get("time", row) < since) break;
    busy += steps.get("duration", row);
    prompt += steps.get("prompt", row);
    tokens += steps.get("tokens", row);
    for (const [name, seconds] of Object.entries(store.timings.get(row) ?? {})) {
      parts[name] = (parts[name] ?? 0) + seconds;
    }
  }
  const waiting = numWaiting();
  const queue =
    waiting && store.held.length
      ? `${count(waiting)} wait${waiting === 1 ? "s" : ""}:` +
        ` ${whyHeld({ ...store.held[0], behind: 0 })}`
      : waiting
        ? `${count(waiting)} wait.`
        : seesAll()
          ? "The queue is empty."
          : "None of this key's requests waits; those of other keys are not shown.";
  if (!tokens) {
    return steps.get("running", store.lastRow)
      ? `No step has ended for ${time(now - store.end)}. ${queue}`
      : "Idle: nothing to compute.";
  }
  const ordered = Object.entries(parts).sort((one, other) => other[1] - one[1]);
  const share = Math.min(1, busy / 5);
  if (share < 0.005) return `Almost idle. ${queue}`;
  if (ordered.length) {
    const [name, seconds] = ordered[0];
    const part = Math.round((100 * seconds) / busy);
    longest = ` ${part}\u00a0% of that is ${PARTS[name] ?? name}.`;
  }
  const mix =
    prompt > tokens / 2
      ? "it mostly reads prompts (prefill)"
      : prompt
        ? "it writes answers (decode) and reads some prompts (prefill)"
        : "it writes answers (decode), a token for each request in each step";
  const much = `${Math.round(100 * share)}\u00a0%`;
  return `Busy for ${much} of the last 5 seconds: ${mix}.${longest} ${queue}`;
}

const PARTS = {
  forward: "the model itself (its forward pass)",
  sample: "drawing tokens",
  input: "building the input",
  schedule: "scheduling",
};

const Gauge = (props) => {
  const label = `${props.title} over the last minute: now ${props.value} ${props.unit}`;
  return html`<${Figure} ...${props} label=${label} />`;
};

/** The mean of the latest bins: of about five seconds, or a sixth of a shorter window. */
function latest(points) {
  const last = points.slice(-Math.ceil((5 / inWindow(store.now)) * BINS) - 1, -1);
  return last.length ? last.reduce((sum, point) => sum + point[1], 0) / last.length : 0;
}

function aboutHeld(held, total) {
  const perToken = description.value.configuration.kv_bytes_per_token;
  if (!perToken) return `${many(held, "block")} of ${count(total)}`;
  return `${many(held, "block")}, ${bytes(held * description.value.block_size * perToken)}`;
}

const percent = (share) => Number((100 * share).toFixed(2));

/** Mean gaps of what ended in the last minute, or else of what runs; ascending. */
function tpotLately(now) {
  const ended = recent(store.tpot, now);
  const running = () =>
    store
      .having("running")
      .filter((record) => record.output > 1 && record.lastToken > record.firstToken)
      .map((record) => (record.lastToken - record.firstToken) / (record.output - 1));
  return (ended.length ? ended : running()).sort((one, other) => one - other);
}

const Figures = view(() => {
  store.beat.value;
  learnTargets(); // again and again: a target is missed, or kept again, while the page is open
  const now = store.now;
  const series = overSteps(now);
  const ttft = recent(store.ttft, now).sort((one, other) => one - other);
  const tpot = tpotLately(now);
  const gaps = lateGaps(now, MOST_SECONDS, inWindow(now), BINS);
  const speed = latest(series.made);
  const row = store.lastRow;
  const total = description.value?.num_blocks ?? 0;
  const held = row >= 0 && total ? 1 - store.steps.get("free", row) / total : 0;
  const waiting = numWaiting();
  const errors = recent(store.errors, now).length;
  const limit = (metric) => targets.value.find((target) => target.metric === metric);
  const targetOf = (metric) => limit(metric)?.limit;
  const missed = (metric) => limit(metric)?.verdict === "missed"; // the server's own judgement
  const share = (metric) => (limit(metric)?.percentile ?? 95) / 100; // a target's own, where one is
  const [ttftValue, ttftUnit] = duration(percentile(ttft, share("ttft")));
  const [tpotValue, tpotUnit] = duration(percentile(tpot, share("tpot")));
  return html`<div class="figures">
    <${Gauge}
      title=${`TTFT, p${percent(share("ttft"))}`}
      value=${ttftValue}
      unit=${ttftUnit}
      colour="prefill"
      target=${targetOf("ttft")}
      missed=${missed("ttft")}
      points=${binned(store.ttft, now, spread(share("ttft")))}
      note=${ttft.length ? `median ${time(percentile(ttft, 0.5))}` : "none in the last minute"}
      how=${"Time to first token: from the arrival of a request to its first output token." +
        ` ${percent(share("ttft"))} of 100 requests of the last minute had at most this.`}
    />
    <${Gauge}
      title=${`TPOT, p${percent(share("tpot"))}`}
      value=${tpotValue}
      unit=${tpotUnit}
      colour="decode"
      target=${targetOf("tpot")}
      missed=${missed("tpot")}
      points=${limit("tpot") ? binned(store.tpot, now, spread(share("tpot"))) : gaps.points}
      note=${gaps.sorted.length
        ? `gap ${time(percentile(gaps.sorted, 0.5))}, longest ${time(gaps.sorted.at(-1))}`
        : "none in the last minute"}
      how="Time per output token: the mean gap between a request's tokens, of those that ended in
        the last minute, or else of those that run. A mean hides a single long gap: below are the
        median and the longest of all gaps. The line shows gaps; with a target, TPOT."
    />
    <${Gauge}
      title="Output"
      value=${short(speed)}
      unit="tokens/s"
      colour="decode"
      points=${series.made}
      note=${`prompts ${short(latest(series.prompts))} tokens/s`}
      how="Output tokens of all requests together, in the last five seconds; below, the
        prompt tokens that were computed."
    />
    ${seesAll()
      ? html`<${Gauge}
            title="KV held"
            value=${short(100 * held)}
            unit="%"
            colour="ink"
            top=${0.02}
            target=${targetOf("kv")}
            missed=${missed("kv")}
            points=${series.kv}
            note=${row >= 0 ? aboutHeld(total - store.steps.get("free", row), total) : ""}
            how="Share of the KV blocks that requests hold. Other blocks may still cache
              prefixes of earlier requests, until somebody needs the room."
          />`
      : null}
    <${Gauge}
      title="Waiting"
      value=${count(waiting)}
      unit=""
      colour="waiting"
      top=${4}
      target=${targetOf("queue")}
      missed=${missed("queue")}
      points=${seesAll() ? series.queue : []}
      note=${waiting && store.held.length
        ? reasonWord(store.held[0].reason)
        : `${row >= 0 ? count(store.steps.get("running", row)) : 0} running`}
      how="Requests that have come and wait for their first step, or for room after a preemption."
    />
    <${Gauge}
      title="Errors"
      value=${count(errors)}
      unit="in a minute"
      colour="alarm"
      top=${4}
      target=${undefined}
      missed=${errors > 0}
      points=${binned(
        store.errors.map((error) => [error[0], 1]),
        now,
        (bin) => bin.length,
      )}
      note=${preemptions()}
      how="Requests that failed inside the engine, and steps that failed as a whole."
    />
  </div>`;
});

function preemptions() {
  let number = 0;
  for (const [row, note] of store.notes) {
    if (store.now - store.steps.get("time", row) <= MOST_SECONDS) number += note.preempted.length;
  }
  return number ? `${count(number)} preempted` : "none preempted";
}

const Lead = view(() => {
  store.beat.value;
  return html`<p class="lead">
    <${BoundLine} /><span class="rest"
      >${lead() ?? (connection.value === "opening" ? "Opening." : "Nothing has run yet.")}</span
    >
  </p>`;
});

const Empty = view(() => {
  const found = description.value;
  if (!found) return null;
  const url = new URL("../v1/chat/completions", document.baseURI).href;
  const key = hasKey() ? ' -H "Authorization: Bearer $TWOSTROKE_API_KEY"' : "";
  const body = JSON.stringify({
    model: found.name,
    stream: true,
    messages: [{ role: "user", content: "Why is decode slower than prefill?" }],
  }).replaceAll("'", "\\u0027");
  return html`<section class="panel empty">
    <p>
      No requests yet. Each step of the engine is shown here as it runs: which requests share it,
      what they wait for, and how long their users wait. Talk to the model in${" "}
      <a href="#/chat">Chat</a>, send demo traffic, or:
    </p>
    <pre>
curl -N ${url} -H 'Content-Type: application/json'${key} -d '${body}'</pre>
    <p>
      Or read <a href="#/learn">how it works, in short chapters</a>: they need no request.
    </p>
  </section>`;
});

const Content = view(() => {
  if (isEmpty.value) {
    return html`<${Lead} />
      <div class="columns"><${Empty} /><${DemoOffer} /></div>
      <${Figures} />`;
  }
  return html`<${Lead} /><${Figures} /><${Step} /><${WhyPanel} /><${Requests} /><${DemoOffer} />`;
});

export class Live extends Component {
  componentDidMount() {
    const target = () => targets.value.find((one) => one.metric === "tpot")?.limit ?? null;
    this.stop = watchBound(target);
  }

  componentWillUnmount() {
    this.stop();
  }

  render() {
    return html`<${Content} />`;
  }
}
