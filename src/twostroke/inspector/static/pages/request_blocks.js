// The KV blocks of one request, in order of position.

import { html, view } from "../lib/html.js";
import { go, select, selected } from "../lib/address.js";
import { whyNoBlocks } from "../lib/blocks.js";
import { Canvas } from "../lib/canvas.js";
import { count, many } from "../lib/format.js";
import { blocksOf } from "./request_details.js";

const layout = (number, width) => {
  const size = number > 600 ? 8 : number > 200 ? 10 : 14;
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, rows: Math.ceil(number / columns) };
};

const draw = (record, blocks) => (context, width, height, palette) => {
  const { size, columns } = layout(blocks.ids.length, width);
  blocks.ids.forEach((block, position) => {
    const x = (position % columns) * size;
    const y = Math.floor(position / columns) * size;
    const isPrompt = position * blocks.block_size < record.prompt;
    const isFull = (position + 1) * blocks.block_size <= record.computed;
    context.fillStyle = isPrompt ? palette.prefill : palette.decode;
    if (isFull) context.fillRect(x, y, size - 2, size - 2);
    else {
      const filled = record.computed - position * blocks.block_size;
      const tall = Math.max(1, ((size - 2) * Math.max(0, filled)) / blocks.block_size);
      context.globalAlpha = 0.25;
      context.fillRect(x, y, size - 2, size - 2);
      context.globalAlpha = 1;
      context.fillRect(x, y + size - 2 - tall, size - 2, tall);
    }
    if (blocks.holders[position] > 1) {
      context.strokeStyle = palette.cached;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, size - 4, size - 4);
      context.lineWidth = 1;
    }
    if (selected.value?.kind === "block" && selected.value.block === block) {
      context.strokeStyle = palette.accent;
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, size, size);
      context.lineWidth = 1;
    }
  });
};

const sum = (values) => values.reduce((total, value) => total + value, 0);

function sentence(record, blocks) {
  const size = blocks.block_size;
  if (!blocks.ids.length) {
    if (record.status === "waiting") return "It holds no blocks yet.";
    if (!blocks.num_full) return "It holds no blocks; what it had is not known any more.";
    return (
      `It has given its blocks back. Of the ${count(blocks.num_full)} that it had filled,` +
      ` ${count(blocks.num_kept)} still have their content: a request that begins alike finds them.`
    );
  }
  const shared = blocks.holders.filter((holders) => holders > 1).length;
  const room = (blocks.ids.length + blocks.left_out) * size - record.computed;
  return (
    `${many(blocks.ids.length + blocks.left_out, "block")} of ${size} tokens;` +
    ` ${count(shared)} shared with others, ${count(sum(blocks.cached))} found by whoever begins` +
    ` alike, ${count(Math.max(0, room))} places still empty.`
  );
}

export const Blocks = view(({ record }) => {
  const blocks = blocksOf(record);
  if (blocks === undefined) return null;
  const open = () => {
    if (blocks?.ids.length) select({ kind: "request", id: record.id });
    go("kv");
  };
  return html`<section class="panel blocks">
    <h2>
      Its blocks
      ${blocks?.ids.length
        ? html`<span class="choice"><button onClick=${open}>On the block map</button></span>`
        : null}
    </h2>
    ${blocks?.ids.length
      ? html`<div class="cells" data-size=${blocks.ids.length > 200 ? "many" : "few"}>
          <${Canvas}
            name="fill"
            label=${`The request's ${many(blocks.ids.length, "KV block")} in order of position`}
            draw=${draw(record, blocks)}
          />
        </div>`
      : null}
    <p class=${blocks ? "" : "muted"}>
      ${blocks ? sentence(record, blocks) : `Not known: ${whyNoBlocks()}.`}
    </p>
    ${blocks?.ids.length
      ? html`<p class="legend">
          <span><i class="prefill"></i>holds prompt</span
          ><span><i class="decode"></i>holds output</span
          ><span><i class="ring"></i>shared by several</span>
        </p>`
      : null}
  </section>`;
});
