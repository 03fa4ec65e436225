// Replicas as rows: how many requests ran and waited and how many blocks were held, over time.

import { html, view } from "../lib/html.js";
import { go } from "../lib/address.js";
import { Canvas, niceSeconds } from "../lib/canvas.js";
import { count, short, time } from "../lib/format.js";
import { seek } from "../lib/source.js";
import { store } from "../lib/store.js";
import { columnAt, fleetOf, replicaLink } from "./fleet_data.js";

const NAMES = ["running", "waiting", "kv"];
const COLOURS = { running: "decode", waiting: "alarm", kv: "ink" };
const GAP = 2;
const ROUTE_COLOURS = {
  prefix: "cached",
  turn: "waiting",
  least_loaded: "waiting",
  least_full: "waiting",
  no_prefix: "waiting",
  overloaded: "alarm",
};
export const ROUTE_WORDS = {
  prefix: "prefix hit",
  turn: "its turn",
  least_loaded: "least loaded",
  least_full: "least full",
  no_prefix: "no known prefix",
  overloaded: "prefix overloaded",
  cached: "cached",
  session: "its session",
  no_session: "no session",
};
export const routeColour = (reason) => ROUTE_COLOURS[reason] ?? "waiting";

/** The largest value of each kind over all replicas: the darkest of its strips. */
export function largest(levels) {
  const most = {};
  for (const name of NAMES) {
    most[name] = Math.max(
      name === "kv" ? 0.01 : 1,
      ...levels.replicas.map((replica) => Math.max(0, ...replica[name])),
    );
  }
  return most;
}

/** A pixel a column at most: columns of a narrow screen are averaged. */
function shrunk(values, width) {
  if (values.length <= width) return values;
  const columns = Math.max(1, Math.floor(width));
  const sums = new Array(columns).fill(0);
  const numbers = new Array(columns).fill(0);
  values.forEach((value, index) => {
    const column = Math.floor((index / values.length) * columns);
    sums[column] += value;
    numbers[column] += 1;
  });
  return sums.map((sum, column) => sum / (numbers[column] || 1));
}

function drawMoment(context, palette, levels, width, height) {
  const share = (store.now - levels.begin) / (levels.end - levels.begin || 1);
  if (!(share >= 0 && share <= 1)) return;
  context.fillStyle = palette.accent;
  context.fillRect(Math.min(width - 2, Math.round(share * width)), 0, 2, height);
}

function drawStrips(levels, level, most) {
  return (context, width, height, palette) => {
    store.tick.value;
    const tall = (height - 2 * GAP) / 3;
    NAMES.forEach((name, index) => {
      const y = index * (tall + GAP);
      context.fillStyle = palette.faint;
      context.fillRect(0, y, width, tall);
      context.fillStyle = palette[COLOURS[name]];
      const values = shrunk(level[name], width);
      const wide = width / values.length;
      values.forEach((value, column) => {
        if (value <= 0) return;
        context.globalAlpha = 0.12 + 0.88 * Math.min(1, value / most[name]);
        const x = Math.floor(column * wide);
        context.fillRect(x, y, Math.floor((column + 1) * wide) - x, tall);
      });
      context.globalAlpha = 1;
    });
    drawMoment(context, palette, levels, width, height);
  };
}

/** To the step under the pointer, on that replica's own timeline. */
function leadTo(number, levels, level) {
  return (canvas) =>
    canvas.addEventListener("click", (event) => {
      const share = (event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth;
      const columns = level.step.length;
      const step = level.step[Math.max(0, Math.min(columns - 1, Math.floor(share * columns)))];
      if (step === undefined) return;
      const fleet = fleetOf();
      if (!fleet || fleet.replica === number) {
        seek(step);
        go("timeline");
      } else {
        location.href = replicaLink(number, "timeline", { at: step });
      }
    });
}

const Row = view(({ number, levels, most, busiest }) => {
  store.tick.value;
  const level = levels.replicas[number];
  const at = Math.min(level.running.length - 1, columnAt(levels, store.now));
  const step = level.step[at];
  const fleet = fleetOf();
  const live = levels.names; // of which the page shows the steps of the first
  const here = live ? number === 0 : !fleet || fleet.replica === number;
  const [running, waiting, kv] = NAMES.map((name) => (level.last ?? level)[name][at]);
  const name = live ? live[number] : fleet ? `Replica ${number}` : "This server";
  const words =
    `${short(running)} running, ${short(waiting)} waiting,` + ` ${short(100 * kv)} % of the blocks`;
  const link =
    live && !here
      ? html`<span>${name}</span>`
      : step === undefined
        ? html`<span class="muted">${name}, idle</span>`
        : here
          ? html`<button class="link" onClick=${() => go("timeline")}>${name}</button>`
          : html`<a href=${replicaLink(number, "timeline", { at: step })}>${name}</a>`;
  return html`<li class=${`fleet-row ${busiest === number ? "busiest" : ""}`}>
    <span class="fleet-name"
      >${link}${(fleet || live) && here ? html` <small>shown</small>` : null}</span
    >
    <${Canvas}
      key=${`${number} ${level.running.length} ${levels.end}`}
      label=${`${name} over time; at the moment ${words}`}
      draw=${drawStrips(levels, level, most)}
      bind=${leadTo(number, levels, level)}
    />
    <span class="fleet-now num">
      <b>${count(running)}</b> <span class=${waiting >= 0.5 ? "held" : "muted"}
        >+${count(waiting)}</span
      >
      <span class="muted">${short(100 * kv)} %</span>
    </span>
  </li>`;
});

/** How many requests were routed, by reason, over the same time. */
function drawRouted(levels) {
  return (context, width, height, palette) => {
    store.tick.value;
    const reasons = Object.keys(levels.routed).sort();
    const columns = Math.min(levels.imbalance.length, Math.max(1, Math.floor(width / 3)));
    const sums = reasons.map(() => new Array(columns).fill(0));
    reasons.forEach((reason, index) => {
      levels.routed[reason].forEach((number, column) => {
        sums[index][Math.floor((column / levels.imbalance.length) * columns)] += number;
      });
    });
    const most = Math.max(
      1,
      ...sums[0].map((_, column) => sums.reduce((sum, one) => sum + one[column], 0)),
    );
    const wide = width / columns;
    for (let column = 0; column < columns; column += 1) {
      let y = height;
      reasons.forEach((reason, index) => {
        const tall = (sums[index][column] / most) * height;
        context.fillStyle = palette[routeColour(reason)];
        context.fillRect(column * wide, y - tall, Math.max(1, wide - 1), tall);
        y -= tall;
      });
    }
    drawMoment(context, palette, levels, width, height);
  };
}

const minutes = (seconds) =>
  `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")}`;

function drawAxis(levels) {
  return (context, width, height, palette) => {
    const span = levels.end - levels.begin;
    const step = niceSeconds(span, Math.max(2, width / 110));
    context.font = `12px ${palette.font}`;
    context.textBaseline = "middle";
    context.fillStyle = palette.muted;
    for (let at = 0; at <= span; at += step) {
      const x = Math.round((at / span) * width);
      context.fillRect(x, 0, 1, 4);
      const words = !at ? "0" : step < 10 ? time(at) : minutes(at);
      const wide = context.measureText(words).width;
      if (x + wide < width) context.fillText(words, x + (at ? 3 : 0), height - 8);
    }
  };
}

/** The replica with the most requests at the moment; -1 if none has any. */
export function busiestAt(levels) {
  const at = columnAt(levels, store.now);
  let busiest = -1;
  let most = 0;
  levels.replicas.forEach((level, number) => {
    const load = level.running[at] + level.waiting[at];
    if (load > most) [busiest, most] = [number, load];
  });
  return busiest;
}

export const Strips = view(({ levels }) => {
  store.tick.value;
  const most = largest(levels);
  const busiest = levels.replicas.length > 1 ? busiestAt(levels) : -1;
  const routed = Object.keys(levels.routed);
  return html`<section class="panel fleet">
    <h2>
      Occupancy over time
      <span class="muted"
        >darkest: ${count(most.running)} running, ${count(most.waiting)} waiting,
        ${" "}${short(100 * most.kv)} % of the KV blocks</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          A row is a replica, with three strips: requests that run, requests that wait, and KV
          blocks that requests hold, each the darker the more. The purple line is the moment that is
          shown; at the right are its figures.
          ${levels.names
            ? "The other pages show the steps of the first engine."
            : "Select a place to see that replica's timeline there."}
        </p>
      </details>
    </h2>
    ${routed.length
      ? html`<div class="fleet-row fleet-routed">
          <span class="fleet-name muted">Routed</span>
          <${Canvas}
            key=${levels.end}
            label=${`Requests routed over time, by reason: ${routed.join(", ")}`}
            draw=${drawRouted(levels)}
          />
          <span class="fleet-now muted">run + wait<span class="wide">, KV</span></span>
        </div>`
      : null}
    <ul class="fleet-rows">
      ${levels.replicas.map(
        (_, number) =>
          html`<${Row}
            key=${number}
            number=${number}
            levels=${levels}
            most=${most}
            busiest=${busiest}
          />`,
      )}
    </ul>
    <div class="fleet-row fleet-axis">
      <span></span>
      <${Canvas}
        key=${levels.end}
        label=${`Time from 0 to ${time(levels.end - levels.begin)}`}
        draw=${drawAxis(levels)}
      />
      <span></span>
    </div>
    <p class="legend">
      <span><i class="decode"></i>running</span><span><i class="alarm"></i>waiting</span
      ><span><i class="ink"></i>KV blocks held</span>
      ${routed.map(
        (reason) =>
          html`<span key=${reason}><i class=${routeColour(reason)}></i>routed:
            ${" "}${ROUTE_WORDS[reason] ?? reason}</span>`,
      )}
    </p>
  </section>`;
});

