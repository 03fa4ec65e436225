// The tower: the layers of the model from its input (below) to its output, each with its bytes.

import { html, signal, view } from "../lib/html.js";
import { bytes, count, foreign, short } from "../lib/format.js";
import { shown } from "./model_data.js";

const HEIGHT = 300; // pixels of the whole tower
const MAX_SLABS = 160;
const chosen = signal(null);

const NAMES = {
  embedding: "embedding",
  attention: "attention",
  recurrent: "recurrent",
  mlp: "MLP",
  experts: "experts",
  other: "norms",
  head: "head",
};

/** `7.34 M`. */
export function parameters(number) {
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (number >= size) return `${short(number / size)}\u00a0${unit}`;
  }
  return count(number);
}

function groupsOf(storey) {
  const sums = new Map();
  for (const part of storey.parts) sums.set(part.group, (sums.get(part.group) ?? 0) + part.bytes);
  return [...sums];
}

function title(storey) {
  const name = storey.title.replaceAll("_", " ");
  if (!storey.layers) return name;
  if (storey.layers === 1) return `layer ${storey.first}`;
  return `${storey.layers} layers, ${storey.first} to ${storey.first + storey.layers - 1}`;
}

function isMain(tower, storey) {
  const most = Math.max(...tower.storeys.map((each) => each.layers));
  return storey.layers === most;
}

const current = (tower) =>
  tower.storeys[chosen.value] ?? tower.storeys.find((storey) => isMain(tower, storey));

const Storey = ({ tower, storey, index }) => {
  const total = tower.weight_bytes;
  const slabs = Math.min(MAX_SLABS, Math.max(1, storey.layers));
  const whole = (storey.bytes * Math.max(1, storey.layers)) / total;
  const height = Math.max(storey.layers ? 2 : 3, (HEIGHT * whole) / slabs - 1);
  const share = 100 * whole;
  return html`<li>
    <button
      class="storey"
      aria-pressed=${current(tower) === storey}
      onClick=${() => {
        chosen.value = index;
      }}
    >
      <span class="slabs" aria-hidden="true"
        >${Array.from(
          { length: slabs },
          (_, slab) =>
            html`<span key=${slab} class="slab" style=${{ height: `${height}px` }}
              >${groupsOf(storey).map(
                ([group, size]) =>
                  html`<i key=${group} class=${group} style=${{ flexGrow: size }}></i>`,
              )}</span
            >`,
        )}</span
      >
      <span class="label"
        ><b>${title(storey)}</b>
        <span class="muted num"
          >${bytes(storey.bytes)}${storey.layers > 1 ? " each" : ""}${`, ${
            share >= 0.1 ? short(share) : "under 0.1"
          } %`}</span
        ></span
      >
    </button>
  </li>`;
};

const Parts = ({ tower, storey }) =>
  html`<table class="parts">
    <caption>
      ${title(storey)}${storey.layers > 1 ? ", one of them" : ""}${
        storey.attention ? `: ${foreign(storey.attention, 80)}` : ""
      }${storey.window ? `, the latest ${count(storey.window)} tokens` : ""}
    </caption>
    <thead>
      <tr>
        <th>part</th>
        <th class="n">in x out</th>
        <th class="n">parameters</th>
        <th class="n">bytes</th>
      </tr>
    </thead>
    <tbody>
      ${storey.parts.map(
        (part) =>
          html`<tr key=${part.name}>
            <td><i class=${`swatch ${part.group}`}></i>${part.name.replaceAll("_", " ")}</td>
            <td class="n">
              ${part.copies > 1 ? `${count(part.copies)} x ` : ""}${
                part.inputs ? `${count(part.inputs)} x ${count(part.outputs)}` : "–"
              }
            </td>
            <td class="n">${parameters(part.parameters)}</td>
            <td class="n">${bytes(part.bytes)}</td>
          </tr>`,
      )}
      ${
        storey.kv_bytes_per_token
          ? html`<tr>
              <td>KV cache, a token in this layer</td>
              <td class="n">–</td>
              <td class="n">–</td>
              <td class="n">${bytes(storey.kv_bytes_per_token)}</td>
            </tr>`
          : null
      }
    </tbody>
  </table>`;

export const Tower = view(() => {
  const { tower } = shown.value;
  const storeys = tower.storeys.map((storey, index) => [storey, index]).reverse();
  const kinds = [...new Set(tower.storeys.flatMap((each) => each.parts.map((p) => p.group)))];
  const isSparse = tower.active_parameters < 0.9 * tower.parameters;
  return html`<section class="panel">
    <h2>
      ${foreign(tower.name, 40)}
      <span class="muted num"
        >${parameters(tower.parameters)} parameters, ${bytes(tower.weight_bytes)} in${" "}
        ${tower.weights}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          From the embedding below to the head above; a slab is a layer, as high as its bytes, its
          parts as wide as theirs. A decode step reads all of it, for one request as for sixty-four.
          Select a layer to see its matrices.
        </p>
      </details>
    </h2>
    <ol class="tower" aria-label="Layers, the output first">
      ${storeys.map(
        ([storey, index]) =>
          html`<${Storey} key=${index} tower=${tower} storey=${storey} index=${index} />`,
      )}
    </ol>
    <p class="legend">
      ${kinds.map(
        (group) =>
          html`<span key=${group}><i class=${`swatch ${group}`}></i>${NAMES[group]}</span>`,
      )}
    </p>
    <${Parts} tower=${tower} storey=${current(tower)} />
    <dl class="facts">
      <dt>hidden size, vocabulary</dt>
      <dd>${count(tower.hidden_size)}, ${count(tower.vocab_size)}${tower.tied ? ", tied" : ""}</dd>
      <dt>longest context</dt>
      <dd>${count(tower.context_length)} tokens</dd>
      ${
        tower.ranks > 1
          ? html`<dt>devices that share each layer; bytes are of one</dt>
              <dd>${count(tower.ranks)}</dd>`
          : null
      }
      ${
        isSparse
          ? html`<dt>parameters that one token uses</dt>
              <dd>${parameters(tower.active_parameters)}</dd>`
          : null
      }
      <dt>KV cache in ${tower.kv_cache}</dt>
      <dd>${bytes(tower.kv_bytes_per_token)} a token</dd>
    </dl>
  </section>`;
});
