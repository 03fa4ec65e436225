// Model: its layers and bytes, and why decode is slow and batches help, on a roofline.

import { DemoWhereEmpty } from "../demo/panel.js";
import { Component, html, view } from "../lib/html.js";
import { bytes, clock, count, short, time } from "../lib/format.js";
import { description, seesAll } from "../lib/source.js";
import { CopyButtons } from "../lib/copy.js";
import { Slider, lengths } from "../lib/slider.js";
import {
  errorOfModel,
  groups,
  measure,
  measuring,
  paths,
  roof,
  shown,
  slide,
  sliders,
  trouble,
  watchModel,
} from "./model_data.js";
import { Roofline, hollow, rate } from "./model_roofline.js";
import { Tower } from "./model_tower.js";

const WAITS = {
  compute: "arithmetic",
  memory: "memory",
  communication: "other devices",
  launch: "the start of kernels",
  host: "the host's own work",
};

const NEITHER = 2; // times what the cost model says of a step

const perByte = (cost) => cost.flops / cost.bytes;

/** The first batch on the path that computes more for a byte than the ridge. */
function crossing(found, ridge) {
  const { requests, flops, bytes: moved } = found;
  const at = requests.findIndex((_, index) => flops[index] / moved[index] > ridge);
  return at < 0 ? null : found.requests[at];
}

/** What the roofline says of decode, in two sentences. */
function lead() {
  const ceilings = roof();
  const found = paths.value;
  if (!ceilings || !found) return null;
  const ridge = ceilings.flops / ceilings.bandwidth;
  const one = found.flops[0] / found.bytes[0];
  const last = found.requests.length - 1;
  const most = found.flops[last] / found.bytes[last];
  const from = crossing(found, ridge);
  const begin =
    `Decode of one request computes ${short(one)} FLOPs for each byte that it moves; this device` +
    ` has arithmetic for ${short(ridge)}. Of these two`;
  if (from === 1) return `${begin} arithmetic is the nearer limit from the first request on.`;
  if (from !== null) {
    return (
      `${begin} memory is the nearer limit: as far as these two go, further requests in a step` +
      ` cost little, up to about ${count(from)}. How many more users fit now, with places, KV` +
      " blocks and the times of real steps, says Live."
    );
  }
  const why = shown.value.tower.storeys.some((storey) => storey.experts)
    ? "more requests also read more experts"
    : `each has ${count(found.context)} tokens of its own to read`;
  return (
    `${begin} memory is the nearer limit: even ${count(found.requests[last])} requests get` +
    ` only to ${short(most)}, since ${why}.`
  );
}

/** Where steps take much longer than both limits say, what holds them is neither. */
function aboutOthers() {
  const error = errorOfModel();
  if (error === null || error < NEITHER) return "";
  return (
    ` But the latest steps took ${short(error)} times what that comes to: most of their time goes` +
    " to neither, as Live says."
  );
}

const Sliders = view(() => {
  const { batch, context, prompt } = sliders.value;
  const found = paths.value;
  const step = hollow();
  const steps = lengths(Math.min(shown.value.tower.context_length, 131072));
  const batches = found?.requests ?? [batch];
  const say = (cost) =>
    cost.seconds
      ? `${time(cost.seconds)}, ${short(perByte(cost))} FLOPs a byte, mostly waits for` +
        ` ${WAITS[cost.binding] ?? cost.binding}`
      : `${short(perByte(cost))} FLOPs a byte; no sheet of this device, so no time`;
  const error = errorOfModel();
  return html`<div class="sliders">
    <h3>
      If it were otherwise <span class="muted">the hollow marks, by the cost model</span>
    </h3>
    <${Slider}
      name="requests at once"
      values=${batches}
      value=${batch}
      set=${(value) => slide({ batch: value })}
      shown=${count(batch)}
    />
    <${Slider}
      name="context of each"
      values=${steps}
      value=${context}
      set=${(value) => slide({ context: value })}
      shown=${`${count(context)} tokens`}
    />
    <${Slider}
      name="one prompt"
      values=${steps}
      value=${prompt}
      set=${(value) => slide({ prompt: value })}
      shown=${`${count(prompt)} tokens`}
    />
    ${
      step
        ? html`<p class="said" aria-live="polite">
            Decode of ${count(step.requests)}: ${say(step)}${
              step.seconds ? `; ${count(step.requests / step.seconds)} tokens/s` : ""
            }. The prompt: ${say(found.prefill)}.
          </p>`
        : null
    }
    ${
      error !== null && shown.value.measured
        ? html`<p class="muted">
            The latest steps took ${short(error)} times what the cost model says.
          </p>`
        : null
    }
    ${shown.value.notes.map((note) => html`<p key=${note} class="muted">${note}</p>`)}
  </div>`;
});

const FROM = { measured: "measurement", traffic: "traffic" };

const Groups = view(() => {
  const ceilings = roof();
  const how = shown.value.measured ? "measured" : "simulated";
  const note = how === "measured" ? cacheNote() : null;
  return html`<section class="panel">
    <h2>
      ${how === "measured" ? "Measured steps" : "Simulated steps"}
      <span class="muted">medians</span>
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Real steps of this engine, alike ones together: from its traffic, as far as the page has
          seen it, or from a measurement. A batch counts up to half as much again or two thirds, and
          a step as prefill where nine tenths of its tokens are prompts.
          Share of the roof: how fast the step computed, of what its FLOPs a byte allow.
        </p>
      </details>
    </h2>
    <div class="scrolls" tabindex="0" role="region" aria-label="Steps by kind">
      <table class="parts">
        <thead>
          <tr>
            <th>step</th>
            <th class="n">time</th>
            <th class="n">cost model</th>
            <th class="n">FLOPs/B</th>
            <th class="n">FLOP/s</th>
            <th class="n">B/s</th>
            <th class="n">of the roof</th>
            <th>from</th>
          </tr>
        </thead>
        <tbody>
          ${groups().map(({ name, wanted, found, from }) => {
            const what = found
              ? name === "prefill"
                ? `prefill, ${count(found.prompt)} tokens`
                : `decode, ${count(found.requests)} at once`
              : name === "prefill"
                ? "prefill"
                : `decode, ${wanted} at once`;
            if (!found) {
              return html`<tr key=${wanted}>
                <td>${what}</td>
                <td class="muted" colspan="7">no such step yet</td>
              </tr>`;
            }
            const speed = found.flops / found.seconds;
            const limit = ceilings
              ? Math.min(ceilings.flops, perByte(found) * ceilings.bandwidth)
              : null;
            return html`<tr key=${wanted}>
              <td><i class=${`swatch ${name}`}></i>${what}</td>
              <td class="n">${time(found.seconds)}</td>
              <td class="n">${found.estimate ? time(found.estimate) : "–"}</td>
              <td class="n">${short(perByte(found))}</td>
              <td class="n">${rate(speed, "F/s")}</td>
              <td class="n">${rate(found.bytes / found.seconds, "B/s")}</td>
              <td class="n">${limit ? `${short((100 * speed) / limit)} %` : "–"}</td>
              <td>${how === "measured" ? FROM[from] : "simulation"}, ${count(found.steps)}</td>
            </tr>`;
          })}
        </tbody>
      </table>
    </div>
    ${note ? html`<p class="muted">${note}</p>` : null}
    <${Measure} />
  </section>`;
});

function aboutMeasurement(found) {
  const at = clock(found.at - description.value.clock_origin, description.value, 0);
  const list = (batches) =>
    batches.map((batch) => (batch ? `batch ${batch}` : "the prompt")).join(", ");
  return (
    `Measured at ${at} in ${time(found.took)}: a product at` +
    ` ${rate(found.ceilings.flops, "FLOP/s")}, a copy at ${rate(found.ceilings.bandwidth, "B/s")}` +
    ` (${found.ceilings.source}).` +
    (found.busy ? " Other requests ran meanwhile, so the machine can do more than this." : "") +
    (found.shared.length ? ` In the steps of ${list(found.shared)} they had a share.` : "") +
    (found.missing.length ? ` No such step came about for ${list(found.missing)}.` : "")
  );
}

const Measure = view(() => {
  const { price, measurement } = shown.value;
  if (!price) {
    const live = description.value?.kind === "live";
    return live
      ? null
      : html`<p class="muted">
            Only a live engine can be measured; these are its recorded steps.
          </p>`;
  }
  const alone = price.seconds === null ? null : time(price.seconds);
  const takes = alone ? `, about ${alone} where nothing else runs` : "";
  return html`<div class="measure">
    <button disabled=${measuring.value} onClick=${measure}>
      ${measuring.value ? "Measuring" : measurement ? "Measure again" : "Measure this machine"}
    </button>
    <p class="muted">
      Times a product and a copy on all cores (a quarter of a second, 128 MiB of memory), then
      submits ${count(price.requests)} requests of random tokens, ${count(price.tokens)} tokens in
      all, in batches of ${price.batches.join(", ")}${takes}. They queue with other requests and
      slow them meanwhile, and their blocks may push cached prefixes out.
    </p>
    ${
      measurement
        ? html`<p role="status">${aboutMeasurement(measurement)}</p>`
        : shown.value.calibrated
          ? html`<p>The solid roof is that of the calibration, the dashed one the sheet's.</p>`
          : html`<p>The dashed roof is the sheet's. A measurement draws this machine's own.</p>`
    }
    ${trouble.value ? html`<p class="held" role="alert">Not done: ${trouble.value}</p>` : null}
  </div>`;
});

const Content = view(() => {
  const found = shown.value;
  if (!found) return html`<p class="empty">Asking for the model.</p>`;
  if (!found.tower) {
    return html`<section class="panel">
      <h2>Model</h2>
      <p class="empty">${found.why}</p>
    </section>`;
  }
  const text = lead();
  return html`${text ? html`<p class="lead">${text}${aboutOthers()}</p>` : null}
    <div class="modelpage">
      <${Tower} />
      <div class="stack">
        <${Roofline} below=${html`<${Sliders} />`} />
        ${
          seesAll()
            ? null
            : html`<p class="banner">
                Steps of the whole engine concern all keys: an admin key shows them as dots.
              </p>`
        }
        <${Groups} /><${DemoWhereEmpty} />
        <${CopyButtons} path="/model" value=${() => shown.value} />
      </div>
    </div>`;
});

/** Why steps may be above the slope of memory. */
function cacheNote() {
  const size = shown.value.ceilings?.cache_bytes ?? 0;
  const weights = shown.value.tower.weight_bytes;
  if (!size || weights > size) return null;
  return (
    `The weights (${bytes(weights)}) fit into the last-level cache of the sheet's processor` +
    ` (${bytes(size)}): steps that find them there pass the slope, which is main memory's.`
  );
}

export class ModelPage extends Component {
  componentDidMount() {
    this.stop = watchModel();
  }

  componentWillUnmount() {
    this.stop();
  }

  render() {
    return html`<${Content} />`;
  }
}
