// What devices cost and give: a column for each, cost against each target, pools side by side.

import { foreign } from "../../lib/format.js";
import { PALETTE, percentages } from "./figures.js";
import { LONGEST, labelOf } from "./words.js";

/** Share of requests that must be good; as `--find rate` has it. */
export const ATTAINMENT = 0.9;
const TITLES = { ttft: "TTFT", tpot: "TPOT", e2el: "End to end" };

const percent = (share) => ((share ?? null) === null ? "–" : `${(100 * share).toFixed(0)} %`);
const hourly = (run) => (run.duration ? (3600 * run.dollars) / run.duration : 0);

/** Whether a run keeps up, and enough of its requests are good. */
const meets = (run) => run.verdict !== "overloaded" && (run.good_share ?? 1) >= ATTAINMENT;

function byDevice(runs) {
  const groups = new Map();
  for (const run of runs) {
    groups.set(run.hardware.name, [...(groups.get(run.hardware.name) ?? []), run]);
  }
  return groups;
}

/** Of a device's runs the cheapest that meets the targets; if none does, the best of them. */
function bestOf(runs) {
  const enough = runs.filter(meets);
  const cost = (run) => run.dollars_per_million_tokens;
  if (enough.length) return enough.reduce((best, run) => (cost(run) < cost(best) ? run : best));
  return runs.reduce((best, run) => ((run.good_share ?? 0) > (best.good_share ?? 0) ? run : best));
}

/** A table with a column for each device, the cheapest first; null for runs on one device. */
export function devices(runs) {
  const groups = byDevice(runs);
  if (groups.size < 2) return null;
  const cost = (run) => [meets(run) ? 0 : 1, run.dollars_per_million_tokens];
  const best = [...groups.values()].map(bestOf).sort((one, other) => {
    const [[mark, dollars], [otherMark, otherDollars]] = [cost(one), cost(other)];
    return mark - otherMark || dollars - otherDollars;
  });
  const row = (title, cell) => [title, ...best.map(cell)];
  const hasTargets = best.some((run) => (run.good_share ?? null) !== null);
  return {
    head: ["", ...best.map((run) => foreign(run.hardware.name, LONGEST))],
    rows: [
      row("cheapest run that meets the targets", (run) => (meets(run) ? labelOf(run) : "none")),
      row("verdict", (run) => run.verdict ?? "–"),
      ...(hasTargets ? [row("good requests", (run) => percent(run.good_share))] : []),
      row("$/M tokens", (run) => run.dollars_per_million_tokens.toFixed(3)),
      row("$ an hour", (run) => hourly(run).toFixed(2)),
      row("output tok/s", (run) => run.output_throughput.toFixed(0)),
      row("TTFT p99 ms", (run) => run.p99_ttft_ms.toFixed(1)),
      row("TPOT p99 ms", (run) => run.p99_tpot_ms.toFixed(2)),
      row("MFU, MBU", (run) => `${percent(run.mfu)}, ${percent(run.mbu)}`),
      row("KV cache, peak", (run) => percent(run.kv_peak)),
      row("TB/s of a device", (run) => (run.hardware.memory_bandwidth / 1e12).toFixed(2)),
      row("GB of a device", (run) => (run.hardware.memory_bytes / 1e9).toFixed(0)),
    ],
  };
}

/** Those that none is both cheaper and faster than, by their place along x and y. */
function front(points) {
  const kept = [];
  for (const point of [...points].sort((one, other) => one.x - other.x || one.y - other.y)) {
    if (!kept.length || point.y < kept[kept.length - 1].y) kept.push(point);
  }
  return kept;
}

/** Cost of a million tokens against each latency that has a target, or against TTFT and TPOT. */
export function costCharts(runs) {
  const { targets } = runs[runs.length - 1];
  const given = Object.keys(TITLES).filter((key) => key in targets);
  return (given.length ? given : ["ttft", "tpot"]).map((key) => {
    const place = (run) => ({ x: run.dollars_per_million_tokens, y: run[`p90_${key}_ms`] });
    const columns = (points) => ({ x: points.map(({ x }) => x), y: points.map(({ y }) => y) });
    const best = columns(front(runs.map(place)));
    const farthest = Math.max(...runs.map((run) => place(run).x));
    const groups = [...byDevice(runs)].map(([name, group], number) => ({
      name: foreign(name, LONGEST),
      ...columns(group.map(place).sort((one, other) => one.x - other.x)),
      colour: PALETTE[number % PALETTE.length],
      loose: true,
    }));
    // The first is drawn below the others, so that its points have their devices' colours.
    const unbeaten = { name: "none is cheaper and faster", ...best, colour: "ink", dashed: true };
    const lines = [unbeaten, ...groups];
    if (key in targets) {
      const limit = 1000 * targets[key];
      lines.push({ name: "target", x: [0, farthest], y: [limit, limit], colour: "alarm" });
    }
    const values = lines.flatMap(({ y }) => y).filter((value) => value > 0);
    return {
      title: `Cost against ${TITLES[key]}, 90th percentile`,
      xLabel: "$ for a million tokens",
      yLabel: "ms",
      lines,
      log: values.length > 0 && Math.max(...values) / Math.min(...values) > 30,
      points: true,
    };
  });
}

/** A column for each pool of a run, as on the terminal; null where replicas have no roles. */
export function pools(run) {
  const all = run.pools ?? [];
  if (!all.length) return null;
  const waits = (pool) =>
    percentages(pool.binding)
      .filter(([, share]) => share >= 0.5)
      .map(([name, share]) => `${name} ${share.toFixed(0)} %`)
      .join(", ");
  const row = (title, cell) => [title, ...all.map(cell)];
  return {
    head: ["pool", ...all.map((pool) => foreign(pool.role))],
    rows: [
      row("Replicas", (pool) => String(pool.replicas)),
      row("Time with a step running", (pool) => percent(pool.busy)),
      row("MFU while it runs", (pool) => percent(pool.mfu)),
      row("MBU while it runs", (pool) => percent(pool.mbu)),
      row("Requests per step", (pool) => pool.batch_mean.toFixed(1)),
      row("KV cache, mean", (pool) => percent(pool.kv_mean)),
      row("KV cache, peak", (pool) => percent(pool.kv_peak)),
      row("Steps wait mostly for", waits),
      row("Cost ($)", (pool) => pool.dollars.toFixed(2)),
    ],
  };
}
