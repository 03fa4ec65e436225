// What a report says in words and in numbers.

import { foreign } from "../../lib/format.js";

/** What a table shows of each run: key, title, digits; as on the terminal. */
export const COMPARED = [
  ["verdict", "verdict", 0],
  ["completed", "requests", 0],
  ["request_throughput", "req/s", 2],
  ["steady_output_throughput", "steady tok/s", 0],
  ["request_goodput", "goodput req/s", 2],
  ["output_throughput", "output tok/s", 0],
  ["median_ttft_ms", "TTFT p50 ms", 1],
  ["p99_ttft_ms", "TTFT p99 ms", 1],
  ["median_tpot_ms", "TPOT p50 ms", 2],
  ["p99_tpot_ms", "TPOT p99 ms", 2],
  ["mfu", "MFU", 3],
  ["mbu", "MBU", 3],
  ["kv_peak", "KV peak", 2],
  ["draft_acceptance", "drafts right", 2],
  ["tokens_per_pass", "tokens a pass", 2],
  ["dollars_per_million_tokens", "$/M tokens", 3],
];
/** What a request waits for; as on the terminal. */
export const WAITS = {
  step: "the step under way",
  max_num_seqs: "--max-num-seqs",
  no_free_block: "KV blocks",
  token_budget: "--max-num-batched-tokens",
  tpot_target: "--tpot-target",
  batch_running: "the batch to end",
  policy: "the policy",
  prefill_chunk: "--max-prefill-chunk",
  preempted: "KV blocks, preempted",
  shares_prompt: "a prompt it shares",
  loading: "a prefix to load",
};
const LATENCY_ROWS = [
  ["ttft", "TTFT"],
  ["tpot", "TPOT"],
  ["itl", "ITL"],
  ["e2el", "End to end"],
  ["queue", "Queue"],
];
const COLUMNS = ["mean", "median", "p90", "p95", "p99"];
const MOST_GROUPS = 20; // priorities or tenants in a table; the JSON has all
const MOST_NAMED = 3; // values of a setting that the heading names
export const LONGEST = 160; // characters of a label

const unique = (values) => [...new Set(values)];
const general = (value) => String(Number(value.toPrecision(6)));

export const labelOf = (run) => foreign(run.label || "this run", LONGEST);

/** Whether the model keeps anything by the token; earlier reports may not say. */
export const caches = (run) => Boolean(run.deployment.kv_bytes_per_device ?? 1);

/** A setting's value in all runs: a few values by name, more of them as a count. */
function common(runs, name) {
  const values = unique(runs.map((run) => String(run.setting[name])));
  return values.length <= MOST_NAMED ? values.join(" and ") : `${values.length} values of ${name}`;
}

/** What was simulated on what. */
export function titleOf(runs) {
  const replicas = common(runs, "replicas");
  const devices = unique(runs.map((run) => run.hardware.title)).join(", ");
  const fleet = `${replicas === "1" ? "" : `${replicas} x `}${common(runs, "tp")} x ${devices}`;
  const pools = runs.flatMap((run) => run.pools ?? []);
  if (pools.length) return `${common(runs, "model")}, prompts and answers apart`;
  return `${common(runs, "model")} on ${fleet}`;
}

/** What several runs have in common, where times come from, and notes: a sentence each. */
export function introductionOf(runs) {
  const rates = unique(runs.map((run) => run.setting.rate));
  const hasRate = rates.length === 1 && rates[0] !== null;
  const rate = hasRate ? ` at ${general(rates[0])} requests/s` : "";
  return [
    `Workload ${common(runs, "workload")}${rate}, seed ${common(runs, "seed")}; simulated with` +
      ` the engine's own scheduler, ${common(runs, "batching")} batching, policy` +
      ` ${common(runs, "policy")}.`,
    ...(runs.length === 1 ? [`${runs[0].description}.`] : []),
    ...explanationsOf(runs),
    ...notesOf(runs).map((note) => `Note: ${note}.`),
  ];
}

/** Where times come from, what a good request is, what bands are. */
function explanationsOf(runs) {
  const sources = new Map(
    runs.map((run) => [run.hardware.name, run.deployment.times_from ?? ""]),
  );
  const times = [...sources].filter(([, source]) => source);
  const targets = Object.entries(runs[runs.length - 1].targets);
  const limits = targets.map(([name, limit]) => `${name.toUpperCase()} ${general(limit)} s`);
  return [
    ...times.map(([name, source]) => `Times on ${name}: ${source}.`),
    ...(targets.length ? [`A good request stays within ${limits.join(", ")}.`] : []),
    ...(runs.some((run) => run.interval.low)
      ? [
          "Bands and ranges: each end of the cost model's interval taken for the truth in every" +
            " step.",
        ]
      : []),
  ];
}

/** All notes, each once; a note that some runs lack names the first that has it. */
export function notesOf(runs) {
  const labels = new Map();
  for (const run of runs) {
    for (const note of new Set(run.notes)) {
      labels.set(note, [...(labels.get(note) ?? []), run.label]);
    }
  }
  return [...labels].map(([note, having]) => {
    const more = having.length > 1 ? ` and ${having.length - 1} more` : "";
    return having.length === runs.length || !having[0] ? note : `${having[0]}${more}: ${note}`;
  });
}

/** The figures of one run: [title, value, unit]. */
export function tilesOf(run, [bound] = []) {
  const percent = (share) => (100 * share).toFixed(0);
  const pair = (key, digits) =>
    ["median", "p99"].map((name) => run[`${name}_${key}_ms`].toFixed(digits)).join(" / ");
  return [
    ["TTFT median / p99", pair("ttft", 0), "ms"],
    ["TPOT median / p99", pair("tpot", 1), "ms"],
    ...(run.request_goodput === null ? [] : [["Goodput", run.request_goodput.toFixed(2), "req/s"]]),
    ["Requests per second", run.request_throughput.toFixed(2)],
    ["Output tokens per second", run.output_throughput.toFixed(0)],
    ["MFU / MBU", `${percent(run.mfu)} / ${percent(run.mbu)}`, "%"],
    ...(caches(run)
      ? [["KV cache mean / peak", `${percent(run.kv_mean)} / ${percent(run.kv_peak)}`, "%"]]
      : []),
    ["Prefix cache hits", percent(run.prefix_hit_rate), "%"],
    ["Steps wait for", ...(bound ? [bound[0], `${bound[1].toFixed(0)} %`] : ["–"])],
    ["Per million tokens", `$${run.dollars_per_million_tokens.toFixed(3)}`],
  ];
}

/** A table as `head`, titles of its columns, and `rows` of cells. */
export function comparison(runs) {
  const shown = COMPARED.filter(([key]) => runs.some((run) => (run[key] ?? null) !== null));
  const cell = (value, digits) => {
    if ((value ?? null) === null) return "–";
    return typeof value === "string" ? value : value.toFixed(digits);
  };
  return {
    head: ["run", ...shown.map(([, title]) => title)],
    rows: runs.map((run) => [
      labelOf(run),
      ...shown.map(([key, , digits]) => cell(run[key], digits)),
    ]),
  };
}

export function latencies(run) {
  const { low, high } = run.interval;
  const cells = (values, key) =>
    COLUMNS.map((column) => values[`${column}_${key}_ms`].toFixed(2));
  const range = (key) =>
    low
      ? [[low, high].map((end) => end[`median_${key}_ms`].toFixed(2)).join(" to ")]
      : [];
  const ofGroups = (kind) =>
    Object.entries(run[`by_${kind}`] ?? {})
      .slice(0, MOST_GROUPS)
      .map(([group, values]) => [
        `TTFT, ${kind} ${foreign(group)}`,
        ...cells(values, "ttft"),
        ...(low ? [""] : []),
      ]);
  return {
    head: ["ms", ...COLUMNS, ...(low ? ["median, range"] : [])],
    rows: [
      ...LATENCY_ROWS.map(([key, name]) => [name, ...cells(run, key), ...range(key)]),
      ...ofGroups("priority"),
      ...ofGroups("tenant"),
    ],
  };
}

export const settings = (run) => ({
  head: ["setting", "value"],
  rows: Object.entries({ ...run.setting, ...run.deployment }).map(([name, value]) => [
    name,
    value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value),
  ]),
});
