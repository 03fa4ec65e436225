// The gaps between a request's tokens: each names its steps, and what else ran in them.

import { html, signal, view } from "../lib/html.js";
import { select, selectRequest } from "../lib/address.js";
import { Canvas } from "../lib/canvas.js";
import { usualGap } from "../lib/explain.js";
import { count, many, percentile, shortId, time } from "../lib/format.js";
import { gapsOf, store } from "../lib/store.js";

const MAX_NAMED = 4;
/** `{number, at}`: the gap of a request that is looked at, by its place among those known. */
const chosen = signal(null);

/** Rows of the steps that ended in a gap, the last one being the step that ended it. */
function rowsOf([end, seconds, row]) {
  const begin = end - seconds;
  let first = row;
  while (first - 1 >= store.steps.first) {
    const before = first - 1;
    const ended = store.steps.get("time", before) + store.steps.get("duration", before);
    if (ended <= begin + 1e-9) break;
    first = before;
  }
  return [first, row];
}

/** Who else ran in a gap: prompts as [record, tokens], decoding records, own tokens again. */
export function neighbours(record, gap) {
  const [first, last] = rowsOf(gap);
  const prompts = new Map();
  const decoding = new Set();
  let again = 0; // tokens of its own that were computed once more, after a preemption
  let preempted = false;
  for (let row = first; row <= last; row += 1) {
    const [begin, end] = store.sharesOf(row);
    for (let share = begin; share < end; share += 1) {
      const other = store.byNumber.get(store.shares.get("request", share));
      const prompt = store.shares.get("prompt", share);
      if (other === record) {
        const tokens = store.shares.get("tokens", share) - store.shares.get("drafts", share);
        if (prompt || tokens > 1) again += tokens;
      } else if (other && prompt) prompts.set(other, (prompts.get(other) ?? 0) + prompt);
      else if (other) decoding.add(other);
    }
    preempted ||= (store.notes.get(row)?.preempted ?? []).some(([victim]) => victim === record);
  }
  return {
    first: store.steps.get("step", first),
    last: store.steps.get("step", last) + store.steps.get("span", last) - 1,
    prompts: [...prompts].sort((one, other) => other[1] - one[1]),
    decoding: [...decoding].filter((other) => !prompts.has(other)),
    again,
    preempted,
  };
}

/** Which output tokens a step gave a request, as [first, last]; with drafts several. */
function tokensIn(record, row) {
  const [first, end] = store.sharesOf(row);
  for (let share = first; share < end; share += 1) {
    if (store.shares.get("request", share) !== record.number) continue;
    const last =
      store.shares.get("start", share) +
      store.shares.get("tokens", share) -
      store.shares.get("drafts", share) +
      store.shares.get("accepted", share) +
      1 -
      record.prompt;
    return [last - store.shares.get("new", share) + 1, last];
  }
  return [0, 0];
}

const stepsOf = ({ first, last }) =>
  first === last ? count(last) : `${count(first)} to ${count(last)}`;

function drawGaps(record) {
  return (context, width, height, palette) => {
    store.beat.value;
    const gaps = gapsOf(store, record);
    if (!gaps.length) return;
    const usual = usualGap(record);
    const most = Math.max(...gaps.map((gap) => gap[1]));
    const base = height - 18;
    const [wide, from] = layout(gaps.length, width);
    const y = (gap) => base - (gap / most) * (base - 16);
    gaps.slice(from).forEach((gap, index) => {
      context.fillStyle =
        gap[2] === record.worstRow
          ? palette.alarm
          : neighbours(record, gap).prompts.length
            ? palette.prefill
            : palette.decode;
      const top = y(gap[1]);
      context.fillRect(index * wide, top, Math.max(1, wide - (wide > 3 ? 1 : 0)), base - top);
      if (chosen.value?.number === record.number && chosen.value.at === from + index) {
        context.strokeStyle = palette.accent;
        context.lineWidth = 2;
        const above = Math.min(top, base - 6) - 2;
        context.strokeRect(index * wide - 1, above, wide + 1, base - above + 1);
        context.lineWidth = 1;
      }
    });
    context.fillStyle = palette.line;
    context.fillRect(0, base, width, 1);
    context.setLineDash([3, 3]);
    context.strokeStyle = palette.ink;
    context.beginPath();
    context.moveTo(0, y(usual));
    context.lineTo(width, y(usual));
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = palette.muted;
    context.font = `12px ${palette.font}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillText(`longest ${time(most)}`, width, 7);
    context.textAlign = "left";
    context.fillText("dashed: the median", 0, 7);
    context.fillText(`output token ${count(tokensIn(record, gaps[from][2])[0])}`, 0, base + 10);
    const lastToken = tokensIn(record, gaps[gaps.length - 1][2])[1];
    context.textAlign = "right";
    // Below the last bar, where the first one's words leave room.
    const end = Math.min(width, Math.max(150, wide * (gaps.length - from)));
    context.fillText(`${count(lastToken)}`, end, base + 10);
    context.textAlign = "left";
  };
}

/** Width of a bar, and which gap is the first that fits. */
function layout(number, width) {
  const wide = Math.max(1, Math.min(14, width / number));
  return [wide, Math.max(0, number - Math.floor(width / wide))];
}

function pickGap(record) {
  return (canvas) => {
    const choose = (at) => {
      const gaps = gapsOf(store, record);
      if (gaps.length) {
        chosen.value = {
          number: record.number,
          at: Math.max(0, Math.min(gaps.length - 1, at)),
        };
      }
    };
    canvas.addEventListener("click", (event) => {
      const [wide, from] = layout(gapsOf(store, record).length, canvas.clientWidth);
      choose(from + Math.floor((event.clientX - canvas.getBoundingClientRect().left) / wide));
    });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const is = chosen.value?.number === record.number;
      choose(is ? chosen.value.at + by : by > 0 ? 0 : gapsOf(store, record).length - 1);
    });
  };
}

const Named = ({ other, children }) =>
  html`<button class="link" onClick=${() => selectRequest(other.id)}>
      <span class="mono">${shortId(other.id)}</span>${children}</button
    >${" "}`;

/** Who ran beside it, as links. */
const Beside = ({ found }) => {
  const rest = found.prompts.slice(MAX_NAMED);
  return html`${found.preempted && html`<span class="held">preempted there </span>`}
  ${found.again > 0 && html`<span>${many(found.again, "token")} of its own again </span>`}
  ${found.prompts
    .slice(0, MAX_NAMED)
    .map(
      ([other, tokens]) =>
        html`<${Named} key=${other.number} other=${other}> ${many(tokens, "prompt token")}<//>`,
    )}
  ${rest.length > 0 &&
  html`<span
    >${rest.length} more with ${count(rest.reduce((sum, [, tokens]) => sum + tokens, 0))} prompt
    tokens${" "}</span
  >`}
  ${found.decoding.length
    ? html`<span class="muted"
          >${count(found.decoding.length)} decoding:${" "}</span
        >${found.decoding
          .slice(0, MAX_NAMED)
          .map((other) => html`<${Named} key=${other.number} other=${other} />`)}${found.decoding
          .length > MAX_NAMED
          ? html`<span class="muted">and ${found.decoding.length - MAX_NAMED} more</span>`
          : null}`
    : found.prompts.length
      ? null
      : html`<span class="muted">nothing</span>`}`;
};

const StepLink = ({ found }) =>
  html`<button class="link" onClick=${() => select({ kind: "step", step: found.last })}>
    ${stepsOf(found)}
  </button>`;

const Chosen = view(({ record, gaps }) => {
  const at = chosen.value?.number === record.number ? chosen.value.at : -1;
  const gap = gaps[at];
  if (!gap) {
    return html`<p class="muted" aria-live="polite">
      Select a bar, with the pointer or with the arrow keys, to read about its steps.
    </p>`;
  }
  const found = neighbours(record, gap);
  const [token, last] = tokensIn(record, gap[2]);
  const more = last > token ? `, with it up to ${count(last)}` : "";
  return html`<p aria-live="polite">
    <b>From token ${count(token - 1)} to ${count(token)}${more}: ${time(gap[1])}.</b>${" "}
    ${found.first === found.last ? "Step" : "Steps"} <${StepLink} found=${found} />. Beside
    it:${" "}
    <${Beside} found=${found} />
  </p>`;
});

export const Gaps = view(({ record }) => {
  store.beat.value;
  const gaps = gapsOf(store, record);
  if (!gaps.length) return null;
  const worst = [...gaps].sort((one, other) => other[1] - one[1]).slice(0, 6);
  const sorted = gaps.map((gap) => gap[1]).sort((one, other) => one - other);
  return html`<section class="panel gaps">
    <h2>
      Gaps between tokens
      <span class="muted num"
        >median ${time(percentile(sorted, 0.5))}, p99 ${time(percentile(sorted, 0.99))}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Each bar is the time from one output token to the next. Blue: steps that also computed
          other requests' prompts. Red: the longest. The dashed line is the median.
        </p>
      </details>
    </h2>
    <${Canvas}
      key=${record.number}
      label=${`${gaps.length} gaps between tokens, the longest ${time(record.worstGap)};` +
      " arrow keys go through them"}
      focusable=${true}
      draw=${drawGaps(record)}
      bind=${pickGap(record)}
    />
    <${Chosen} record=${record} gaps=${gaps} />
    <table class="list worst">
      <colgroup>
        <col style=${{ width: "72px" }} />
        <col style=${{ width: "84px" }} />
        <col />
      </colgroup>
      <thead>
        <tr>
          <th class="n">longest</th>
          <th class="n">step</th>
          <th>beside it</th>
        </tr>
      </thead>
      <tbody>
        ${worst.map((gap) => {
          const found = neighbours(record, gap);
          return html`<tr key=${gap[2]}>
            <td class="n">${time(gap[1])}</td>
            <td class="n"><${StepLink} found=${found} /></td>
            <td><${Beside} found=${found} /></td>
          </tr>`;
        })}
      </tbody>
    </table>
  </section>`;
});
