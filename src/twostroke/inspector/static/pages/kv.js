// KV: who holds which block, which prefixes are cached, and what a token costs in bytes.

import { DemoWhereEmpty } from "../demo/panel.js";
import { Component, html, signal, view } from "../lib/html.js";
import { select, selected } from "../lib/address.js";
import { blocks, watchBlocks, whyNoBlocks } from "../lib/blocks.js";
import { Canvas, sparkline } from "../lib/canvas.js";
import { count, short, shortId } from "../lib/format.js";
import { description, seesAll } from "../lib/source.js";
import { store } from "../lib/store.js";
import { Arithmetic } from "./kv_arithmetic.js";

const MAX_EMPTY = 0.5; // of the cells that are drawn, at most, beside the used ones
const LARGEST = 28; // pixels of a cell: few blocks fill the space, too
const MAX_COUNTED = 32768; // cells, whatever a recording says
let cells = null; // of the last drawing, for the pointer
const filled = signal(0); // cells of the last drawing

/** Blocks from 0 to the last one in use, and some empty ones after it. */
function numDrawn(map) {
  const used = map.cells.block.length ? map.cells.block[map.cells.block.length - 1] + 1 : 0;
  return Math.min(map.num_blocks, Math.max(512, Math.ceil((used * (1 + MAX_EMPTY)) / 64) * 64));
}

function drawMap(context, width, height, palette) {
  const map = blocks.value;
  if (!map) return;
  const least = numDrawn(map);
  let size = LARGEST;
  const fitting = () => Math.floor(width / size) * Math.floor(height / size);
  while (size > 3 && fitting() < least) size -= 1;
  const columns = Math.floor(width / size);
  const number = Math.min(map.num_blocks, Math.max(least, fitting())); // down to its lower edge
  filled.value = number;
  const inset = size > 5 ? 1 : 0;
  cells = { size, columns, number };
  const place = (block) => [(block % columns) * size, Math.floor(block / columns) * size];
  context.fillStyle = palette.faint;
  for (let block = 0; block < Math.min(number, columns * Math.ceil(height / size)); block += 1) {
    const [x, y] = place(block);
    context.fillRect(x, y, size - inset, size - inset);
  }
  const { block, owner, position, holders, cached } = map.cells;
  const chosenOwner = map.owners.indexOf(selected.value?.id ?? "");
  for (let index = 0; index < block.length; index += 1) {
    const [x, y] = place(block[index]);
    if (y > height) break;
    const record = owner[index] >= 0 ? store.requests.get(map.owners[owner[index]]) : null;
    const isPrompt = record && position[index] * map.block_size < record.prompt;
    context.fillStyle =
      owner[index] === -1
        ? palette.cached
        : isPrompt
          ? palette.prefill
          : palette.decode;
    if (owner[index] === -1) {
      // Free but still cached: half a cell, so that it differs in form too.
      context.fillRect(x, y + Math.floor(size / 2), size - inset, Math.ceil(size / 2) - inset);
    } else {
      context.globalAlpha = chosenOwner >= 0 && owner[index] !== chosenOwner ? 0.35 : 1;
      context.fillRect(x, y, size - inset, size - inset);
      context.globalAlpha = 1;
    }
    if (holders[index] > 1) {
      context.strokeStyle = palette.cached;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, size - inset - 2, size - inset - 2);
      context.lineWidth = 1;
    }
    if (owner[index] >= 0 && chosenOwner === owner[index] && !cached[index]) {
      context.fillStyle = palette.panel;
      context.fillRect(x + size / 2 - 1.5, y + size / 2 - 1.5, 2, 2);
    }
  }
  if (selected.value?.kind === "block") {
    const [x, y] = place(selected.value.block);
    context.strokeStyle = palette.accent;
    context.lineWidth = 2;
    context.strokeRect(x, y, size - inset, size - inset);
    context.lineWidth = 1;
  }
}

function pickBlock(canvas) {
  canvas.addEventListener("click", (event) => {
    if (!cells) return;
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cells.size);
    const block = Math.floor((event.clientY - box.top) / cells.size) * cells.columns + column;
    if (column < cells.columns && block < cells.number) select({ kind: "block", block });
  });
  canvas.addEventListener("keydown", (event) => {
    const row = cells?.columns;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row };
    const by = moves[event.key];
    if (!by) return;
    event.preventDefault();
    const from = selected.value?.kind === "block" ? selected.value.block : -by;
    select({ kind: "block", block: Math.max(0, Math.min(cells.number - 1, from + by)) });
  });
}

/** Blocks of running requests by count: what a recording of an earlier version knows. */
function drawCounts(context, width, height, palette) {
  store.tick.value;
  const total = description.value?.num_blocks ?? 0;
  const running = store.having("running").sort((one, other) => other.blocks - one.blocks);
  const number = Math.min(
    total,
    MAX_COUNTED,
    Math.max(512, running.reduce((sum, record) => sum + record.blocks, 0) * 1.5),
  );
  let size = LARGEST;
  while (size > 3 && Math.floor(width / size) * Math.floor(height / size) < number) size -= 1;
  const columns = Math.floor(width / size);
  let at = 0;
  for (const record of running) {
    for (let position = 0; position < record.blocks && at < number; position += 1, at += 1) {
      const isPrompt = position * description.value.block_size < record.prompt;
      context.globalAlpha = selected.value?.id && selected.value.id !== record.id ? 0.35 : 1;
      context.fillStyle = isPrompt ? palette.prefill : palette.decode;
      context.fillRect((at % columns) * size, Math.floor(at / columns) * size, size - 1, size - 1);
    }
  }
  context.globalAlpha = 1;
  context.fillStyle = palette.faint;
  for (; at < number; at += 1) {
    context.fillRect((at % columns) * size, Math.floor(at / columns) * size, size - 1, size - 1);
  }
}

function aboutMap(map, drawn) {
  const whole = `${count(map.num_blocks)} blocks of ${map.block_size} tokens`;
  if (drawn >= map.num_blocks) return whole;
  return `${whole}, the first ${count(drawn)} drawn, ${count(map.num_empty)} empty`;
}

const MapPanel = view(() => {
  const map = blocks.value;
  store.tick.value;
  const drawn = map ? Math.min(map.num_blocks, Math.max(numDrawn(map), filled.value)) : 0;
  const shared = map ? map.cells.holders.filter((holders) => holders > 1).length : 0;
  return html`<section class="panel map">
    <h2>
      Block map
      <span class="muted num"
        >${map ? aboutMap(map, drawn) : whyNoBlocks()}</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          A cell is a block of the KV cache, in order of address. A request gets blocks as it grows,
          wherever some are free. Select a cell to read what it holds; select a request to light its
          blocks.
        </p>
      </details>
    </h2>
    <div style=${{ height: "260px" }}>
      ${
        map
          ? html`<${Canvas}
              key="map"
              name="fill"
              label=${`Map of ${count(drawn)} KV blocks; ${count(map.cells.block.length)} hold or` +
              ` cache something, ${count(shared)} are shared; arrow keys go through them`}
              focusable=${true}
              draw=${drawMap}
              bind=${pickBlock}
            />`
          : html`<${Canvas}
              key="counts"
              name="fill"
              label="KV blocks of running requests, by number"
              draw=${drawCounts}
            />`
      }
    </div>
    <p class="legend">
      <span><i class="prefill"></i>holds prompt</span
      ><span><i class="decode"></i>holds output</span>
      <span><i class="cached half"></i>free, still cached</span
      ><span><i style=${{ border: "2px solid var(--cached)" }}></i>shared by several</span>
      <span
        ><i style=${{ background: "var(--faint)", border: "1px solid var(--line)" }}></i>empty</span
      >
    </p>
  </section>`;
});

/** Prefixes as an icicle: left to right by position, as high as the requests that begin so. */
function placeTree(tree) {
  const children = tree.map(() => []);
  const roots = [];
  tree.forEach((node, index) => (node.parent < 0 ? roots : children[node.parent]).push(index));
  const placed = [];
  let depth = 1;
  const place = (index, x, y) => {
    const node = tree[index];
    const width = Math.log2(1 + node.blocks);
    placed.push({ index, x, y, height: node.requests, width });
    depth = Math.max(depth, x + width);
    let top = y;
    for (const child of children[index]) {
      place(child, x + width, top);
      top += tree[child].requests;
    }
  };
  let top = 0;
  for (const root of roots) {
    place(root, 0, top);
    top += tree[root].requests;
  }
  return { placed, depth, height: Math.max(1, top) };
}

function drawTree(context, width, height, palette) {
  const tree = blocks.value?.tree ?? [];
  if (!tree.length) return;
  const { placed, depth, height: whole } = placeTree(tree);
  const x = (at) => (at / depth) * width;
  const y = (at) => (at / whole) * height;
  context.font = `12px ${palette.font}`;
  context.textBaseline = "middle";
  for (const { index, x: left, y: top, width: wide, height: tall } of placed) {
    const node = tree[index];
    const box = [x(left), y(top), Math.max(1, x(wide) - 1), Math.max(1, y(tall) - 1)];
    context.globalAlpha = node.held ? 1 : 0.45;
    context.fillStyle = node.found ? palette.cached : palette.waiting;
    context.fillRect(...box);
    context.globalAlpha = 1;
    if (box[3] < 14 || box[2] < 44) continue;
    const tokens = node.blocks * blocks.value.block_size;
    const words = node.found
      ? `${count(tokens)} tokens, found ${count(node.found)} x`
      : `${count(tokens)} tokens`;
    const text =
      context.measureText(words).width < box[2] - 12
        ? words
        : node.found
          ? `${count(node.found)} x`
          : "";
    context.fillStyle = node.held ? palette.panel : palette.ink;
    context.fillText(text, box[0] + 6, box[1] + Math.min(box[3] / 2, 12));
  }
}

const Tree = view(() => {
  const map = blocks.value;
  if (!map) return null;
  return html`<section class="panel">
    <h2>
      Cached prefixes
      <span class="muted num"
        >${count(map.tokens_saved)} prompt tokens were found instead of computed</span
      >
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          Left is the start of the prompt, a box is a run of blocks (as wide as the logarithm of
          their number), as high as the number of requests that begin so. Green was found again, and
          saved its computation each time; what is dimmed is held by no request now and goes when
          room is needed.
        </p>
      </details>
    </h2>
    ${
      map.tree.length
        ? html`<div style=${{ height: "180px" }}>
              <${Canvas}
                name="fill"
                label=${`Tree of ${count(map.tree.length)} cached prefixes`}
                draw=${drawTree}
              />
            </div>
            <p class="legend">
              <span><i class="cached"></i>found again</span
              ><span><i class="waiting"></i>not yet</span><span>dimmed: held by no request</span>
            </p>`
        : html`<p class="empty">
            No prefix is cached yet. Send the same long prompt twice: the second request finds its
            blocks.
          </p>`
    }
  </section>`;
});

const Use = view(() => {
  store.tick.value;
  const row = store.lastRow;
  if (row < 0) return null;
  if (!seesAll()) {
    return html`<section class="panel">
      <h2>In use</h2>
      <p class="empty">How full the cache is concerns all keys: an admin key shows it.</p>
    </section>`;
  }
  const { steps } = store;
  const total = description.value?.num_blocks ?? 0;
  const held = total - steps.get("free", row);
  const allocated = steps.get("allocated", row);
  const used = steps.get("used", row);
  const points = [];
  const begin = Math.max(steps.first, row - 2000);
  for (let at = begin; at <= row; at += Math.max(1, Math.floor((row - begin) / 200))) {
    points.push([(at - begin) / Math.max(1, row - begin), total - steps.get("free", at)]);
  }
  let queries = 0;
  let hits = 0;
  for (let at = steps.first; at <= row; at += 1) {
    queries += steps.get("queries", at);
    hits += steps.get("hits", at);
  }
  const isFirstCome = description.value?.configuration?.policy === "fcfs";
  const last = store
    .having("running")
    .sort((one, other) => (other.arrival ?? 0) - (one.arrival ?? 0))[0];
  return html`<section class="panel">
    <h2>In use <span class="muted num">${count(held)} of ${count(total)} blocks held</span></h2>
    <div style=${{ height: "56px" }}>
      <${Canvas}
        name="fill"
        label=${`Held blocks over the latest steps, now ${count(held)}`}
        draw=${(context, width, height, palette) =>
          sparkline(context, width, height, points, {
            colour: palette.ink,
            line: palette.line,
            muted: palette.muted,
          })}
      />
    </div>
    <dl class="facts">
      <dt>slots reserved and empty (waste)</dt>
      <dd>${allocated ? `${short((100 * (allocated - used)) / allocated)} %` : "0 %"}</dd>
      <dt>cached blocks, held or free</dt>
      <dd>${count(steps.get("cached", row))}</dd>
      <dt>prompt tokens looked up, in the steps shown</dt>
      <dd>${count(queries)}</dd>
      <dt>of these found</dt>
      <dd>${count(hits)}${queries ? ` (${short((100 * hits) / queries)} %)` : ""}</dd>
      ${
        isFirstCome && last
          ? html`<dt>the next preemption would hit the latest, under fcfs</dt>
              <dd class="mono">${shortId(last.id)}</dd>`
          : null
      }
    </dl>
  </section>`;
});

export class KvPage extends Component {
  componentDidMount() {
    this.stop = watchBlocks();
  }

  componentWillUnmount() {
    this.stop();
  }

  render() {
    return html`<${MapPanel} />
      <div class="columns"><${Use} /><${Arithmetic} /></div>
      <${Tree} /><${DemoWhereEmpty} />`;
  }
}
