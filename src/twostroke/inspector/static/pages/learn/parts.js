// What the chapters are made of: an experiment that the reader starts, sliders, bars, lanes.

import { batch, html, signal, view } from "../../lib/html.js";
import { Canvas, niceStep } from "../../lib/canvas.js";
import { count, time } from "../../lib/format.js";
import { choosePlace, isLive, median, place } from "./server.js";

const PAUSE_MS = 250; // a slider moves on before its value is tried
const STUTTER = 4; // times the usual gap: this one is marked
const AXIS = 20;

/** Something that is tried out: `start` runs it, `result` is the latest, `first` the first one. */
export function experiment(run) {
  const result = signal(null);
  const first = signal(null);
  const busy = signal(false);
  const error = signal("");
  let latest = 0;
  let timer = 0;
  async function start(settings) {
    const mine = (latest += 1);
    batch(() => {
      busy.value = true;
      error.value = "";
    });
    try {
      const found = await run(settings);
      if (mine !== latest) return;
      batch(() => {
        result.value = found;
        first.value ??= found;
      });
    } catch (failure) {
      if (mine === latest) error.value = failure.message;
    } finally {
      if (mine === latest) busy.value = false;
    }
  }
  function later(settings) {
    clearTimeout(timer);
    timer = setTimeout(() => start(settings), PAUSE_MS);
  }
  return { result, first, busy, error, start, later };
}

export const Slider = ({ name, value, values, set, shown }) =>
  html`<label class="slider"
    ><span>${name}</span>
    <input
      type="range"
      min="0"
      max=${values.length - 1}
      value=${values.indexOf(value)}
      aria-valuetext=${shown ?? String(value)}
      onInput=${(event) => set(values[Number(event.target.value)])}
    />
    <span class="num">${shown ?? count(value)}</span></label
  >`;

/** A choice among a few words. */
export const Choice = ({ name, value, options, set }) =>
  html`<p class="choice" role="group" aria-label=${name}>
    <span class="muted">${name}</span>
    ${options.map(
      ([key, word]) =>
        html`<button key=${key} aria-pressed=${String(value === key)} onClick=${() => set(key)}>
          ${word}
        </button>`,
    )}
  </p>`;

/** Where to measure: on this server, or simulated; only the latter where no model runs. */
export const Place = view(({ changed }) => {
  if (!isLive()) {
    return html`<p class="muted">
      Simulated: Llama 3.1 8B on one H100. No model runs behind this page.
    </p>`;
  }
  return html`<${Choice}
    name="where"
    value=${place()}
    options=${[
      ["here", "this server"],
      ["h100", "H100, simulated"],
    ]}
    set=${(key) => {
      choosePlace(key);
      changed();
    }}
  />`;
});

/** Rows of `{name, shown, parts: [[kind, value]], mark}`; bars share one scale. */
export function Bars({ rows, label, head = [] }) {
  const total = (row) => row.parts.reduce((sum, part) => sum + part[1], 0);
  const most = Math.max(...rows.map(total), 1e-12);
  return html`<table class="learn-bars">
    <caption class="hidden">
      ${label}
    </caption>
    ${
      head.length
        ? html`<thead>
            <tr>
              <th scope="col">${head[0]}</th>
              <th scope="col" class="n">${head[1]}</th>
              <td></td>
            </tr>
          </thead>`
        : null
    }
    <tbody>
      ${rows.map((row) => {
        let left = 0;
        return html`<tr key=${row.name} class=${row.mark ? "marked" : ""}>
          <th scope="row">${row.name}</th>
          <td class="n">${row.shown}</td>
          <td>
            <span class="bar">
              ${row.parts.map(([kind, value]) => {
                const from = left;
                left += (100 * value) / most;
                return html`<i
                  class=${kind}
                  style=${{ left: `${from}%`, width: `${Math.max(0.4, left - from)}%` }}
                ></i>`;
              })}
            </span>
          </td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}

/** Requests as lanes: waiting as a line, prefill solid, output tokens as ticks. */
export function Lanes({ run, title, until, label, names = [] }) {
  const end = until ?? run.seconds;
  const number = Math.max(...run.requests.map((request) => request.number)) + 1;
  const lane = number > 8 ? 15 : 20;
  return html`<figure class="learn-lanes">
    ${title ? html`<figcaption>${title}</figcaption>` : null}
    <div style=${{ height: `${number * lane + AXIS}px` }}>
      <${Canvas}
        name="fill"
        label=${label}
        draw=${(context, width, height, palette) =>
          drawLanes(context, width, height, palette, { run, end, names, lane })}
      />
    </div>
  </figure>`;
}

function drawLanes(context, width, height, palette, { run, end, names, lane }) {
  const margin = names.length ? 76 : 4;
  const x = (seconds) => margin + (seconds / end) * (width - margin - 8);
  drawAxis(context, width, height, palette, end, x);
  for (const request of run.requests) {
    const middle = request.number * lane + lane / 2;
    context.fillStyle = palette.waiting;
    context.fillRect(x(request.arrival), middle - 0.5, x(request.finish) - x(request.arrival), 1);
    if (names[request.number]) {
      context.fillStyle = palette.muted;
      context.font = `12px ${palette.font}`;
      context.textBaseline = "middle";
      context.fillText(names[request.number], 0, middle, margin - 8);
    }
  }
  const stutter = STUTTER * usualGap(run);
  const last = new Map(); // request -> end of its latest token
  const { step, request, prompt } = run.shares;
  step.forEach((row, at) => {
    const begin = run.steps.begin[row];
    const stop = run.steps.end[row];
    const middle = request[at] * lane + lane / 2;
    if (prompt[at]) {
      context.fillStyle = palette.prefill;
      const wide = Math.max(1.5, x(stop) - x(begin) - (x(stop) - x(begin) > 4 ? 1 : 0));
      context.fillRect(x(begin), middle - lane / 2 + 3, wide, lane - 6);
    }
    if (!run.shares.new[at]) return;
    context.fillStyle = palette.decode;
    context.fillRect(x(stop) - 1, middle - lane / 4, 1, lane / 2);
    const before = last.get(request[at]);
    if (stop - before > stutter && x(stop) - x(before) > 6) {
      context.strokeStyle = palette.alarm;
      context.strokeRect(x(before) + 1, middle - lane / 2 + 2, x(stop) - x(before) - 3, lane - 4);
    }
    last.set(request[at], stop);
  });
}

/** The median time of a step that only decodes: the gap that readers are used to. */
export function usualGap(run) {
  const { begin, end, prompt } = run.steps;
  const rows = begin.map((_, row) => row).filter((row) => !prompt?.[row]);
  return median(rows.map((row) => end[row] - begin[row]));
}

function drawAxis(context, width, height, palette, end, x) {
  context.font = `12px ${palette.font}`;
  context.textBaseline = "alphabetic";
  const step = niceStep(end, width / 90);
  for (let at = 0; at <= end * 1.0001; at += step) {
    context.fillStyle = palette.line;
    context.fillRect(Math.round(x(at)), 0, 1, height - AXIS);
    context.fillStyle = palette.muted;
    const word = at ? time(at) : "0";
    const left = Math.min(x(at) - 3, width - context.measureText(word).width);
    context.fillText(word, Math.max(0, left), height - 4);
  }
}

/** Lines over one axis: `lines` are `{kind, points: [x, y][]}`. */
export function Curves({ lines, label, unit, across }) {
  return html`<div class="learn-curves">
    <${Canvas}
      name="fill"
      label=${label}
      draw=${(context, width, height, palette) => {
        const all = lines.flatMap((line) => line.points);
        const right = Math.max(...all.map((point) => point[0]));
        const top = Math.max(...all.map((point) => point[1]));
        const x = (value) => 4 + (value / right) * (width - 12);
        const y = (value) => height - AXIS - (value / top) * (height - AXIS - 22);
        context.font = `12px ${palette.font}`;
        context.fillStyle = palette.line;
        context.fillRect(4, height - AXIS, width - 8, 1);
        context.fillStyle = palette.muted;
        context.fillText(`${unit(top)} at the top`, 4, 14);
        const word = `${count(right)} ${across}`;
        context.fillText(word, width - context.measureText(word).width - 4, height - 4);
        for (const line of lines) {
          context.strokeStyle = palette[line.kind];
          context.fillStyle = palette[line.kind];
          context.lineWidth = 2;
          context.beginPath();
          line.points.forEach(([at, value], index) => {
            if (index) context.lineTo(x(at), y(value));
            else context.moveTo(x(at), y(value));
          });
          context.stroke();
          context.lineWidth = 1;
          if (line.dots) {
            for (const [at, value] of line.points) {
              context.fillRect(x(at) - 2.5, y(value) - 2.5, 5, 5);
            }
          }
        }
      }}
    />
  </div>`;
}

export const Legend = ({ items }) =>
  html`<p class="legend">
    ${items.map(
      ([kind, word]) =>
        html`<span key=${word}
          ><i class=${kind === "decode" ? "tick decode" : kind}></i>${word}</span
        >`,
    )}
  </p>`;
