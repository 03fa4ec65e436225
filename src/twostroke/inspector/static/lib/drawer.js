// What is selected explains itself here, in sentences, with links to the other pages.

import { html, view } from "./html.js";
import { go, select, selected, selectRequest } from "./address.js";
import { CopyButtons, copy } from "./copy.js";
import {
  aboutGap,
  aboutRequest,
  aboutStep,
  linksOfGap,
  standsOut,
  worstGap,
} from "./explain.js";
import { clock, count, foreign, many, shortId, time } from "./format.js";
import { isKept } from "./kept.js";
import { saveStutter } from "./share/stutter_picture.js";
import { description, seek, seesAll } from "./source.js";
import { store } from "./store.js";
import { aboutBlock } from "./blocks.js";

const Facts = ({ rows }) =>
  html`<dl>
    ${rows.filter(Boolean).map(
      ([name, value]) =>
        html` <dt key=${name}>${name}</dt>
          <dd>${value}</dd>`,
    )}
  </dl>`;

const Links = ({ names }) =>
  html`<p class="links">
    ${names.map(
      ([name, title]) => html` <button key=${name} onClick=${() => go(name)}>${title}</button>`,
    )}
  </p>`;

const Why = ({ lines }) =>
  html`<div class="why">${lines.map((line) => html`<p>${line}</p>`)}</div>`;

/** Where one can go on from a gap. */
export const OfGap = ({ record, gap }) => {
  const links = linksOfGap(record, gap).filter(
    ([to]) => !isKept && (seesAll() || !to.includes("compare=")),
  );
  return html`<p class="links">
    <button onClick=${() => saveStutter(record, gap)}>Save as a picture</button>
    ${links.map(([to, title]) => html`<a key=${to} href=${to}>${title}</a>`)}
  </p>`;
};

function requestPart(id) {
  const record = store.requests.get(id);
  if (!record) {
    return html`<p class="why">
      No request of this id is known at this moment. It may have ended long ago, or not have come
      yet.
    </p>`;
  }
  const gap = record.worstGap > 0 ? worstGap(record) : null;
  const end = record.finish ?? store.now;
  const output = Math.max(0, record.output);
  const tpot =
    output > 1 && record.lastToken > record.firstToken
      ? (record.lastToken - record.firstToken) / (output - 1)
      : null;
  const labels = Object.entries(record.labels);
  const life = html`<${Why} lines=${aboutRequest(record)} />`;
  const first = gap && standsOut(record); // why somebody has come here
  return html` <p class="mono muted">${foreign(record.id, 60)}</p>
    ${first ? null : life}
    ${gap ? html`<${Why} lines=${aboutGap(record, gap)} />` : null}
    ${gap ? html`<${OfGap} record=${record} gap=${gap} />` : null}
    ${first ? life : null}
    <${Facts}
      rows=${[
        ["status", record.status === "finished" ? `ended (${record.reason})` : record.status],
        record.tenant ? ["key", foreign(record.tenant, 24)] : null,
        ...labels.map(([name, value]) => [foreign(name, 24), foreign(value, 40)]),
        ["arrived", clock(record.arrival ?? 0, description.value)],
        [record.finish === null ? "age" : "took", time(end - record.arrival)],
        record.started !== null && record.arrival !== null
          ? ["queue", time(record.started - record.arrival)]
          : null,
        record.firstToken !== null && record.arrival !== null
          ? ["TTFT", time(record.firstToken - record.arrival)]
          : null,
        tpot !== null ? ["TPOT", time(tpot)] : null,
        ["prompt", many(record.prompt, "token")],
        record.cached ? ["of it cached", many(record.cached, "token")] : null,
        ["output", many(output, "token")],
        record.blocks ? ["KV blocks", count(record.blocks)] : null,
        record.preemptions ? ["preempted", `${record.preemptions} x`] : null,
      ]}
    />
    <${Links}
      names=${[
        ["timeline", "Timeline"],
        ["request", "Request"],
        ["kv", "KV"],
      ]}
    />
    ${gap
      ? html`<p class="links">
          <button onClick=${() => seek(gap.step)}>To its longest gap</button>
        </p>`
      : null}
    <${CopyButtons}
      path=${`/steps?request_id=${encodeURIComponent(record.id)}&count=2048`}
      value=${() => plain(record)}
    />`;
}

/** A record without what only the page needs. */
function plain(record) {
  const { number: _, firstRow: __, lastRow: ___, worstRow: ____, preemptedBy, ...rest } = record;
  return { ...rest, preemptedBy: preemptedBy?.id ?? null };
}

function stepPart(step) {
  const row = store.rowOfStep(step);
  if (row < 0)
    return html`<p class="why">
      Step ${count(step)} is not loaded. <button onClick=${() => seek(step)}>Load it</button>
    </p>`;
  const shares = store.sizesOf(row);
  shares.sort((one, other) => other[1] - one[1]);
  const timings = Object.entries(store.timings.get(row) ?? {}).sort(
    (one, other) => other[1] - one[1],
  );
  return html` <${Why} lines=${aboutStep(row)} />
    <${Facts}
      rows=${[
        ["began", clock(store.steps.get("time", row), description.value)],
        ["took", time(store.steps.get("duration", row))],
        ...timings.map(([name, value]) => [`  ${name}`, time(value)]),
        ...(seesAll()
          ? [
              ["running after it", count(store.steps.get("running", row))],
              ["waiting after it", count(store.steps.get("waiting", row))],
              ["free blocks", count(store.steps.get("free", row))],
            ]
          : []),
      ]}
    />
    <h2>Who got what</h2>
    <table class="list">
      <thead>
        <tr>
          <th>request</th>
          <th class="n">prompt</th>
          <th class="n">output</th>
        </tr>
      </thead>
      <tbody>
        ${shares.slice(0, 40).map(
          ([record, tokens, prompt]) =>
            html`<tr key=${record.number}>
              <td class="mono">
                <button class="link" onClick=${() => selectRequest(record.id)}>
                  ${shortId(record.id)}
                </button>
              </td>
              <td class="n">${prompt ? count(prompt) : ""}</td>
              <td class="n">${tokens - prompt ? count(tokens - prompt) : ""}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    ${shares.length > 40 ? html`<p class="muted">and ${shares.length - 40} more</p>` : null}
    <p class="links">
      <button onClick=${() => seek(step)}>Show this moment</button>
      <button onClick=${() => go("timeline")}>Timeline</button>
    </p>
    <${CopyButtons}
      path=${`/steps?from=${step}&to=${step}`}
      value=${() => ({
        step,
        shares: shares.map(([{ id }, tokens, prompt]) => ({ request: id, tokens, prompt })),
      })}
    />`;
}

export const Drawer = view(() => {
  const chosen = selected.value;
  if (!chosen) return null;
  store.beat.value;
  const titles = {
    request: () => `Request ${shortId(chosen.id)}`,
    gap: () => `Request ${shortId(chosen.id)}`,
    step: () => `Step ${count(chosen.step)}`,
    block: () => `Block ${count(chosen.block)}`,
  };
  const parts = {
    request: () => requestPart(chosen.id),
    gap: () => requestPart(chosen.id),
    step: () => stepPart(chosen.step),
    block: () => html`<${Why} lines=${aboutBlock(chosen.block)} />`,
  };
  return html`<aside aria-label="What is selected">
    <h2>
      ${titles[chosen.kind]()}<span>
        <button class="quiet" onClick=${() => copy(location.href, "link")}>Link</button>
        ${" "}<button class="quiet" onClick=${() => select(null)}>Close</button></span
      >
    </h2>
    ${parts[chosen.kind]()}
  </aside>`;
});
