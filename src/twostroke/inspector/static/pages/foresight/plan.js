// Plan: what to buy for a load, as `twostroke plan` says it, by formulas alone.

import { Component, html, signal, view } from "../../lib/html.js";
import { Canvas } from "../../lib/canvas.js";
import { copy } from "../../lib/copy.js";
import { count, many, short, time } from "../../lib/format.js";
import { Slider } from "../../lib/slider.js";
import { post } from "../../lib/source.js";

const PAUSE_MS = 250;
const MODELS = ["llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b"];
const USERS = [1, 4, 16, 50, 100, 200, 500, 1000, 2000, 5000, 20000];
const PROMPTS = [64, 256, 512, 1024, 2048, 4096, 8192, 16384];
const OUTPUTS = [16, 64, 128, 256, 512, 1024, 2048];
const FIRSTS = [0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10];
const GAPS = [0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2];

const asked = signal({
  ...{ model: "llama-3.1-8b", users: 200, prompt: 1024, output: 256 },
  ...{ ttft: 0.5, tpot: 0.04 },
});
const answer = signal(null);
const problem = signal("");
const busy = signal(false);
let latest = 0;
let timer = 0;

async function ask() {
  const mine = (latest += 1);
  busy.value = true;
  try {
    const planned = await post("v1/inspect/plan", asked.value);
    if (mine === latest) [answer.value, problem.value] = [planned, ""];
  } catch (error) {
    if (mine === latest) problem.value = error.message;
  }
  if (mine === latest) busy.value = false;
}

function change(fields) {
  asked.value = { ...asked.value, ...fields };
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

const dollars = (value) => `$${short(value)}`;
const named = (pool) => {
  const devices = pool.tensor_parallel * pool.pipeline_parallel * pool.data_parallel;
  return devices > 1 ? `${devices} x ${pool.gpu}` : pool.gpu;
};
const replicas = ({ replicas: number }) => `${many(number, "replica")}`;
const inWords = (plan) =>
  (plan.prefill
    ? `${count(plan.prefill.replicas)} prefill x ${named(plan.prefill)} and` +
      ` ${count(plan.replicas)} decode x ${named(plan)}`
    : `${replicas(plan)} of ${named(plan)}`) +
  `, ${plan.weight_dtype}: ${dollars(plan.cost_per_hour)} an hour`;

const Lead = view(() => {
  const planned = answer.value;
  if (problem.value) return html`<p class="lead" role="alert">Not planned: ${problem.value}.</p>`;
  if (!planned) return html`<p class="lead">Searching.</p>`;
  const [best] = planned.plans;
  return html`<p class="lead" aria-live="polite">
    ${best ? `${inWords(best)}.` : `No plan meets the targets: ${planned.why_none}.`}
  </p>`;
});

const Sliders = view(() => {
  const slider = (name, field, values, shown) =>
    html`<${Slider}
      name=${name}
      values=${values}
      value=${asked.value[field]}
      shown=${shown(asked.value[field])}
      set=${(value) => change({ [field]: value })}
    />`;
  const tokens = (value) => `${count(value)} tokens`;
  return html`<section class="panel plan-asked">
    <h2>The load <span class="muted">${busy.value ? "searching" : ""}</span></h2>
    <label class="slider"
      ><span>model</span>
      <select
        value=${asked.value.model}
        onChange=${(event) => change({ model: event.target.value })}
      >
        ${MODELS.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label
    >
    ${slider("users at once", "users", USERS, count)}${slider("prompt", "prompt", PROMPTS, tokens)}
    ${slider("answer", "output", OUTPUTS, tokens)}${slider("TTFT P95", "ttft", FIRSTS, time)}
    ${slider("TPOT P95", "tpot", GAPS, time)}
    <p class="muted">
      As many requests are under way as there are users; lengths have a tail of twice the mean. Step
      times are the cost model's, at the pessimistic end.
    </p>
  </section>`;
});

const Why = ({ planned }) => {
  const [best] = planned.plans;
  return html`<section class="panel foresight">
    <h2>Why</h2>
    ${
      best &&
      html`<p><b>Bound by ${best.binding_constraint}:</b> ${best.binding_reason}.</p>
        ${best.next_lever && html`<p>Next lever: ${best.next_lever}: ${best.lever_effect}.</p>`}`
    }
    <dl class="facts plan-others">
      ${Object.entries(planned.rejected).map(
        ([gpu, reason]) =>
          html`<dt key=${gpu}>${gpu}</dt>
            <dd>${reason}</dd>`,
      )}
    </dl>
    ${
      planned.sensitivity.length > 0 &&
      html`<h3>What changes the answer</h3>
        <dl class="facts plan-others">
          ${planned.sensitivity.map(
            ({ question, answer: other }) =>
              html`<dt key=${question}>${question.replace("->", "→")}</dt>
                <dd>${other}</dd>`,
          )}
        </dl>`
    }
  </section>`;
};

function drawFront(points, best) {
  return (context, width, height, palette) => {
    const margin = { left: 56, right: 12, top: 8, bottom: 28 };
    const ranges = ["tpot_p95_high", "cost_per_hour"].map((name) => {
      const values = points.map((point) => Math.log(point[name]));
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return [low, Math.max(high - low, 1e-6), name];
    });
    const part = (point, [low, wide, name]) => (Math.log(point[name]) - low) / wide;
    const x = (point) =>
      margin.left + part(point, ranges[0]) * (width - margin.left - margin.right);
    const y = (point) =>
      height - margin.bottom - part(point, ranges[1]) * (height - margin.top - margin.bottom);
    context.font = `12px ${palette.font}`;
    context.fillStyle = palette.muted;
    const costs = points.map((point) => point.cost_per_hour);
    context.fillText(dollars(Math.max(...costs)), 0, margin.top + 10);
    context.fillText(dollars(Math.min(...costs)), 0, height - margin.bottom);
    const gaps = points.map((point) => point.tpot_p95_high);
    context.fillText(time(Math.min(...gaps)), margin.left, height - 8);
    context.textAlign = "right";
    context.fillText(`${time(Math.max(...gaps))} TPOT P95`, width - margin.right, height - 8);
    context.textAlign = "left";
    context.strokeStyle = palette.line;
    context.strokeRect(
      margin.left - 6,
      margin.top,
      width - margin.left - 2,
      height - margin.top - margin.bottom + 6,
    );
    for (const point of points) {
      const isBest = best && point.cost_per_hour === best.cost_per_hour;
      context.fillStyle = isBest ? palette.accent : palette.decode;
      context.fillRect(x(point) - 3, y(point) - 3, 6, 6);
    }
  };
}

const Table = ({ planned }) =>
  html`<section class="panel foresight">
    <h2>Plans by cost</h2>
    <div class="plan-scroll" tabindex="0" role="region" aria-label="Plans by cost">
      <table class="list">
        <thead>
          <tr>
            <th>replica</th>
            <th class="n">replicas</th>
            <th class="n">an hour</th>
            <th class="n">a million tokens</th>
            <th class="n">TTFT P95</th>
            <th class="n">TPOT P95</th>
            <th class="n">at once</th>
            <th class="n">budget</th>
            <th class="n">weights</th>
          </tr>
        </thead>
        <tbody>
          ${planned.plans.map(
            (plan, at) =>
              html`<tr key=${at}>
                <td>
                  ${plan.prefill ? `prefill ${named(plan.prefill)}, decode ` : ""}${named(plan)}
                </td>
                <td class="n">
                  ${plan.prefill ? `${count(plan.prefill.replicas)} + ` : ""}${count(plan.replicas)}
                </td>
                <td class="n">${dollars(plan.cost_per_hour)}</td>
                <td class="n">$${plan.cost_per_million_tokens.toFixed(3)}</td>
                <td class="n">${time(plan.ttft_p95_interval[1])}</td>
                <td class="n">${time(plan.tpot_p95_interval[1])}</td>
                <td class="n">${count(plan.max_num_seqs)}</td>
                <td class="n">${count(plan.max_num_batched_tokens)}</td>
                <td class="n">${plan.weight_dtype}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${
      planned.pareto.length > 1 &&
      html`<h3>Cost an hour against speed: nothing is cheaper and faster</h3>
        <div class="plan-front">
          <${Canvas}
            name="fill"
            label=${`${planned.pareto.length} plans by cost and TPOT`}
            draw=${drawFront(planned.pareto, planned.plans[0])}
          />
        </div>`
    }
  </section>`;

const Command = ({ text }) =>
  html`<p class="tools command">
    <code>${text}</code><button onClick=${() => copy(text, "the command")}>Copy</button>
  </p>`;

const Commands = ({ planned }) =>
  html`<section class="panel foresight">
    <h2>Commands</h2>
    <p class="muted">
      All devices and formats, with simulations by the scheduler that serves; then what runs it.
    </p>
    ${[planned.command, ...planned.commands].map(
      (text) => html`<${Command} key=${text} text=${text} />`,
    )}
    <ul class="muted">
      ${planned.notes.map((note) => html`<li key=${note}>${note}</li>`)}
    </ul>
  </section>`;

const Content = view(() => {
  const planned = answer.value;
  return html`<${Lead} />
    <div class="columns"><${Sliders} />${planned && html`<${Why} planned=${planned} />`}</div>
    ${planned?.plans.length ? html`<${Table} planned=${planned} />` : null}
    ${planned && html`<${Commands} planned=${planned} />`}`;
});

export class PlanPage extends Component {
  componentDidMount() {
    if (!answer.value) ask();
  }

  render() {
    return html`<${Content} />`;
  }
}
