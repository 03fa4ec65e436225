// A report of simulated runs: in words, in tables, over the load and over time.

import { html } from "../../lib/html.js";
import { costCharts, devices, pools } from "./devices.js";
import {
  PALETTE,
  comparedBars,
  latencyChart,
  loadCharts,
  loadOf,
  overlaidCharts,
  percentages,
  timeCharts,
  waitBars,
} from "./figures.js";
import { LineChart, brief, newLook } from "./line_chart.js";
import {
  comparison,
  introductionOf,
  labelOf,
  latencies,
  settings,
  tilesOf,
  titleOf,
} from "./words.js";

/** A report's `runs`, as in the JSON, and what charts of the same runs share. */
export function opened({ runs }) {
  return { runs, looks: runs.map(newLook), together: newLook() };
}

const Table = ({ label, table }) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table aria-label=${label}>
      <thead>
        <tr>
          ${table.head.map((title, index) => html`<th key=${index} scope="col">${title}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${table.rows.map(
          ([name, ...cells], row) =>
            html`<tr key=${row}>
              <th scope="row">${name}</th>
              ${cells.map((cell, index) => html`<td key=${index} class="n">${cell}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;

const withUnit = (value, unit) =>
  unit === "$"
    ? `$${value.toFixed(3)}`
    : unit === "%"
      ? `${value.toFixed(1)} %`
      : `${brief(value)} ${unit}`;

/** One horizontal bar for each label, with its value beside it. */
const Bars = ({ title, unit, bars }) => {
  const longest = Math.max(...bars.map(([, value]) => value)) || 1;
  return html`<figure class="panel">
    <figcaption>${title}</figcaption>
    <table class="bars" aria-label=${title}>
      <tbody>
        ${bars.map(
          ([label, value], index) =>
            html`<tr key=${index}>
              <th scope="row">${label}</th>
              <td><i style=${{ width: `${(100 * value) / longest}%` }}></i></td>
              <td class="n">${withUnit(value, unit)}</td>
            </tr>`,
        )}
      </tbody>
    </table>
  </figure>`;
};

const Charts = ({ charts, look }) =>
  charts.map((chart) => html`<${LineChart} key=${chart.title} chart=${chart} look=${look} />`);

const AllBars = ({ figures }) =>
  figures
    .filter(({ bars }) => bars.length)
    .map((figure) => html`<${Bars} key=${figure.title} ...${figure} />`);

const Tiles = ({ run }) =>
  html`<dl class="tiles">
    ${tilesOf(run, percentages(run.binding)).map(
      ([title, value, unit]) =>
        html`<div key=${title} class="panel">
          <dt>${title}</dt>
          <dd>${value}${unit && html` <span>${unit}</span>`}</dd>
        </div>`,
    )}
  </dl>`;

/** A table with its heading; nothing for no table. */
const Section = ({ title, table }) =>
  table && html`<h3>${title}</h3><${Table} label=${title} table=${table} />`;

/** All of one run but its heading. */
const Run = ({ run, look }) =>
  html`<div class="charts">
      <${Charts} charts=${timeCharts(run)} look=${look} />
      <div class="stack"><${AllBars} figures=${waitBars(run)} /></div>
    </div>
    <${Section} title="Pools" table=${pools(run)} />
    <h3>Latencies</h3>
    <div class="charts">
      <${LineChart} chart=${latencyChart(run)} />
      <${Table} label="Latencies in milliseconds" table=${latencies(run)} />
    </div>
    <details>
      <summary>All settings</summary>
      <${Table} label="All settings" table=${settings(run)} />
    </details>`;

const Several = ({ runs, looks, together }) =>
  html`<h3>Side by side</h3>
    <${Table} label="Runs side by side" table=${comparison(runs)} />
    <${Section} title="Devices" table=${devices(runs)} />
    <h3>Cost against speed</h3>
    <div class="charts"><${Charts} charts=${costCharts(runs)} /></div>
    <h3>${loadOf(runs) ? "Latency against load" : "Compared"}</h3>
    <div class="charts">
      ${
        loadOf(runs)
          ? html`<${Charts} charts=${loadCharts(runs)} />`
          : html`<${AllBars} figures=${comparedBars(runs)} />`
      }
    </div>
    ${
      runs.length <= PALETTE.length &&
      html`<h3>Timelines</h3>
        <div class="charts"><${Charts} charts=${overlaidCharts(runs)} look=${together} /></div>`
    }
    ${runs.map(
      (run, index) =>
        html`<details key=${index} open=${index === runs.length - 1}>
          <summary>Timeline: ${labelOf(run)}</summary>
          <${Run} run=${run} look=${looks[index]} />
        </details>`,
    )}`;

/** What `opened` made of a report. */
export const Report = ({ runs, looks, together }) =>
  html`<div class="report">
    <h2 class="lead">${titleOf(runs)}</h2>
    ${introductionOf(runs).map((line, index) => html`<p key=${index} class="muted">${line}</p>`)}
    ${
      runs.some((run) => run.interrupted) &&
      html`<p class="held">Interrupted: only the requests that finished are counted.</p>`
    }
    ${
      runs.length > 1
        ? html`<${Several} runs=${runs} looks=${looks} together=${together} />`
        : html`<${Tiles} run=${runs[0]} />
            <h3>Timeline</h3>
            <${Run} run=${runs[0]} look=${looks[0]} />`
    }
    <p class="muted hint">
      Drag along a chart to see a part of it; a double click shows all. A name in a legend hides and
      shows its line.
    </p>
  </div>`;
