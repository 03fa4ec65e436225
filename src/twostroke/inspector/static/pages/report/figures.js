// From the runs of a report to its charts: lines over the load, lines over time, bars.

import { foreign } from "../../lib/format.js";
import { LONGEST, WAITS, caches, labelOf } from "./words.js";

/** Colours of lines that mean nothing by themselves. */
export const PALETTE = ["prefill", "decode", "cached", "plum", "alarm", "waiting"];
/** From this ratio of the largest to the smallest value on, a linear axis would hide the small. */
const LOG_RATIO = 30;
/** Settings that are a load, and what an axis calls them. */
const LOADS = {
  rate: "requests/s offered",
  concurrency: "clients, each with one request under way",
};
/** A latency, its title, and its colour where nothing else needs the colours. */
const LATENCY_CHARTS = [
  ["ttft", "TTFT", "prefill"],
  ["tpot", "TPOT", "decode"],
  ["e2el", "End to end", "ink"],
];
const PERCENTILES = { median: 50, p90: 90, p95: 95, p99: 99 };

/** Whether a logarithmic axis shows these values better. */
function isWide(lines) {
  const values = lines.flatMap((line) => [...line.y, ...(line.low ?? []), ...(line.high ?? [])]);
  const least = Math.min(...values);
  return least > 0 && Math.max(...values) / least > LOG_RATIO;
}

// ---- over the load -----------------------------------------------------------------------------

/** Runs that differ in their load only, by what else their labels say. */
function groupsOf(runs, load) {
  const groups = new Map();
  for (const run of runs) {
    const rest = run.label.replace(new RegExp(`(^|[ ,])${load}=[^,]*`, "g"), "$1");
    const name = rest.replaceAll(", ,", ",").replace(/^[ ,:]+|[ ,:]+$/g, "");
    groups.set(name, [...(groups.get(name) ?? []), run]);
  }
  return groups;
}

/** The setting that is a load and differs within every group of runs. */
export function loadOf(runs) {
  const varies = (load) =>
    [...groupsOf(runs, load).values()].every((group) => {
      const values = group.map((run) => run.setting[load]);
      return !values.includes(null) && new Set(values).size > 1;
    });
  const isClosed = runs.every((run) => run.setting.arrivals === "closed");
  return Object.keys(LOADS).find((load) => (load === "rate" || isClosed) && varies(load)) ?? null;
}

/** A solid and a dashed line for each group, in the group's colour, from [name, key]. */
function loadLines(runs, load, colour, solid, dashed) {
  const groups = groupsOf(runs, load);
  return [...groups].flatMap(([name, group], number) => {
    const ordered = [...group].sort((one, other) => one.setting[load] - other.setting[load]);
    const hasInterval = ordered.every((run) => run.interval.low);
    return [solid, dashed].flatMap(([title, key]) => {
      if (ordered.some((run) => run[key] === null)) return [];
      const ends = (end) => ordered.map((run) => run.interval[end][key]);
      return [
        {
          name: foreign(`${name} ${title}`.trim(), LONGEST),
          x: ordered.map((run) => run.setting[load]),
          y: ordered.map((run) => run[key]),
          ...(hasInterval ? { low: ends("low"), high: ends("high") } : {}),
          colour: groups.size === 1 ? colour : PALETTE[number % PALETTE.length],
          dashed: key === dashed[1],
        },
      ];
    });
  });
}

/** Latencies and finished requests over the load of several runs. */
export function loadCharts(runs) {
  const load = loadOf(runs);
  const chart = (title, yLabel, lines) => ({
    title,
    xLabel: LOADS[load],
    yLabel,
    lines,
    log: isWide(lines),
    points: true,
  });
  const latencies = LATENCY_CHARTS.map(([key, title, colour]) => {
    const ends = [`median_${key}_ms`, `p99_${key}_ms`];
    const lines = loadLines(runs, load, colour, ["median", ends[0]], ["p99", ends[1]]);
    return chart(`${title} against load`, "ms", lines);
  });
  const done = [
    ["completed", "request_throughput"],
    ["good", "request_goodput"],
  ];
  const lines = loadLines(runs, load, "ink", ...done);
  return [...latencies, chart("Requests per second", "requests/s", lines)];
}

/** The same of runs among which no load varies. */
export const comparedBars = (runs) =>
  [
    ["p99_ttft_ms", "TTFT, 99th percentile", "ms"],
    ["p99_tpot_ms", "TPOT, 99th percentile", "ms"],
    ["output_throughput", "Output tokens per second", "tok/s"],
    ["dollars_per_million_tokens", "Cost of a million tokens", "$"],
  ].map(([key, title, unit]) => ({
    title,
    unit,
    bars: runs.map((run) => [labelOf(run), run[key]]),
  }));

// ---- one run -----------------------------------------------------------------------------------

const percent = (shares) => shares.map((share) => 100 * share);

function timeChart(title, yLabel, lines, step) {
  return { title, xLabel: "seconds", yLabel, step, lines };
}

/** Its state over time. */
export function timeCharts(run) {
  const { time, running, waiting, kv, tokens_per_second: tokens } = run.timeline;
  const line = (name, y, colour) => ({ name, x: time, y, colour });
  const requests = [line("running", running, "decode"), line("waiting", waiting, "waiting")];
  const cache = [line("in use", percent(kv), "ink")];
  const work = [line("tokens", tokens, "ink")];
  return [
    timeChart("Requests", "requests", requests, true),
    ...(caches(run) ? [timeChart("KV cache in use by requests", "% of blocks", cache, true)] : []),
    timeChart("Tokens computed (prompt and output)", "tokens/s", work, false),
  ].filter(() => time.length);
}

/** How its latencies are distributed, from their percentiles. */
export function latencyChart(run) {
  const names = Object.keys(PERCENTILES);
  const lines = LATENCY_CHARTS.map(([key, name, colour]) => ({
    name,
    x: Object.values(PERCENTILES),
    y: names.map((percentile) => run[`${percentile}_${key}_ms`]),
    colour,
  }));
  return {
    title: "Latencies by percentile",
    xLabel: "% of requests that take no longer",
    yLabel: "ms",
    xRange: [50, 100],
    log: isWide(lines),
    points: true,
    lines,
  };
}

/** Shares as percentages, the largest first. */
export const percentages = (shares) =>
  Object.entries(shares)
    .filter(([, share]) => share > 0)
    .sort(([one, size], [other, otherSize]) => otherSize - size || (one < other ? -1 : 1))
    .map(([name, share]) => [name, 100 * share]);

/** What its steps and its requests wait for. */
export const waitBars = (run) =>
  [
    ["What steps wait for", percentages(run.binding)],
    ["What requests wait for", percentages(run.waiting_for).map(([key, p]) => [WAITS[key], p])],
  ].map(([title, bars]) => ({ title, unit: "%", bars }));

// ---- several runs over time --------------------------------------------------------------------

/** One chart for each column of the timelines, with a line for each run. */
export const overlaidCharts = (runs) =>
  [
    ["Running requests", "running", "requests", true],
    ["Waiting requests", "waiting", "requests", true],
    ["KV cache in use by requests", "kv", "% of blocks", true],
    ["Tokens computed (prompt and output)", "tokens_per_second", "tokens/s", false],
  ].flatMap(([title, column, unit, step]) => {
    const lines = runs.flatMap((run, number) => {
      const { time, [column]: values } = run.timeline;
      if (!time.length || (column === "kv" && !caches(run))) return [];
      const y = column === "kv" ? percent(values) : values;
      return [{ name: labelOf(run), x: time, y, colour: PALETTE[number] }];
    });
    return lines.length ? [timeChart(title, unit, lines, step)] : [];
  });
