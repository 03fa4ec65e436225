// Timeline: requests as lanes, steps as columns; zoom from all that is known to one step.

import { DemoOffer, isEmpty } from "../demo/panel.js";
import { Component, computed, effect, html, view } from "../lib/html.js";
import { extra, selected } from "../lib/address.js";
import { Canvas } from "../lib/canvas.js";
import { count, duration, many, time } from "../lib/format.js";
import { useKeys } from "../lib/keyboard.js";
import { description, seekTo } from "../lib/source.js";
import { store } from "../lib/store.js";
import {
  Compare,
  canCompare,
  compared,
  panCompared,
  readCompared,
  startComparing,
  stopComparing,
  zoomCompared,
} from "./timeline/compare.js";
import { dataFor } from "./timeline/data.js";
import {
  AREA,
  drawArea,
  drawAxis,
  drawLives,
  drawMarks,
  drawNames,
  drawShares,
  drawWaits,
} from "./timeline/drawing.js";
import { STRIP, drawChosen, drawStripNames, worstOfAll } from "./timeline/gap.js";
import { lanesFor } from "./timeline/lanes.js";
import { listen } from "./timeline/pointer.js";
import { fixedEnd, follow, hovered, inView, pan, show, span, zoom } from "./timeline/view.js";

const GUTTER = 76; // for the names of lanes
const AXIS = 22;
const PAD = 8;

let layout = null; // of the last drawing, for the pointer

function draw(context, width, height, palette) {
  store.tick.value;
  const [begin, end] = inView();
  const chosen = selected.value?.id ? store.requests.get(selected.value.id) : null;
  const top = AREA + PAD;
  const bottom = height - AXIS - (chosen ? STRIP + PAD : 0);
  const left = width < 520 ? 52 : GUTTER;
  const x = (moment) => left + ((moment - begin) / (end - begin)) * (width - left);
  const found = dataFor(begin, end);
  const scene = { begin, end, x, left, width, bottom, parts: found.parts };
  const lanes = lanesFor(found, begin, end, bottom - top);
  const tops = new Map(
    lanes.records.map((record, index) => [record.number, top + lanes.slots[index] * lanes.height]),
  );
  layout = { begin, end, left, width, top, bottom, lanes, seekTo: found.lives ? seekTo : null };
  context.font = `12px ${palette.font}`;
  drawAxis(context, palette, scene, height - AXIS, height);
  drawArea(context, palette, scene);
  context.save();
  context.beginPath();
  context.rect(left, 0, width - left, height);
  context.clip();
  const known = found.lives ? [store.begin, store.length ? store.end : store.begin] : null;
  if (known) drawLives(context, palette, scene, lanes, tops, found.lives, known);
  const clipped = known
    ? { ...scene, begin: Math.max(begin, known[0]), end: Math.min(end, known[1]) }
    : scene;
  if (!known || (store.length && begin < known[1])) {
    drawWaits(context, palette, clipped, lanes, tops, store.now);
  }
  drawShares(context, palette, scene, lanes, tops);
  drawMarks(context, palette, scene, lanes, tops);
  const longest = chosen ? drawChosen(context, palette, chosen, lanes, tops, scene) : 0;
  drawHover(context, palette, x, bottom);
  if (found.moment !== null && found.moment < end) {
    drawMoment(context, palette, x(found.moment), bottom);
  }
  context.restore();
  drawNames(context, palette, lanes, tops, left, chosen);
  if (longest) drawStripNames(context, palette, left, bottom, longest);
  if (!lanes.records.length && store.length) {
    context.fillStyle = palette.muted;
    context.font = `12px ${palette.font}`;
    const ended = begin > store.end ? ` The latest step ended ${time(end - store.end)} ago.` : "";
    context.fillText(`No request in this part of time.${ended}`, left + 8, top + 16);
  }
  if (lanes.hidden) {
    context.fillStyle = palette.muted;
    const words = `${count(lanes.hidden)} more: zoom in, or filter`;
    context.fillText(words, left + 4, bottom - 4);
  }
}

function drawHover(context, palette, x, bottom) {
  const row = hovered.value;
  if (row === null || row < store.steps.first || row >= store.steps.end) return;
  const begin = x(store.steps.get("time", row));
  context.fillStyle = palette.accent;
  context.globalAlpha = 0.12;
  context.fillRect(begin, 0, Math.max(1, x(store.endOf(row)) - begin), bottom);
  context.globalAlpha = 1;
}

/** Where the moment is, when the view goes beyond it. */
function drawMoment(context, palette, at, bottom) {
  context.strokeStyle = palette.accent;
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(Math.round(at) + 0.5, 0);
  context.lineTo(Math.round(at) + 0.5, bottom);
  context.stroke();
  context.setLineDash([]);
}

const Hovered = view(() => {
  const row = hovered.value;
  if (row === null || row < store.steps.first || row >= store.steps.end) {
    return html`<span class="muted num">${duration(span.value).join(" ")} in view</span>`;
  }
  const [first, end] = store.sharesOf(row);
  return html`<span class="num"
    >step ${count(store.steps.get("step", row))}: ${time(store.steps.get("duration", row))},
    ${" "}${many(store.steps.get("tokens", row), "token")}, ${many(end - first, "request")}</span
  >`;
});

const label = computed(
  () =>
    `Requests as lanes over ${duration(span.value).join(" ")};` +
    " arrow keys go through requests and steps",
);

const Follow = view(
  () =>
    html`<button aria-pressed=${fixedEnd.value === null} onClick=${follow}>Follow</button>`,
);

const CompareButton = view(() => {
  store.beat.value;
  return html`<button disabled=${!canCompare()} onClick=${startComparing}>Compare</button>`;
});

const Lanes = view(
  () =>
    html`<section class="panel timeline">
      <div class="tools">
        <span class="buttons">
          <button onClick=${worstOfAll}>Who stuttered?</button>
          <${CompareButton} />
          <button onClick=${() => zoom(0.5)}>Zoom in</button>
          <button onClick=${() => zoom(2)}>Zoom out</button>
          <${Follow} />
        </span>
        <p class="legend">
          <span><i class="prefill"></i>prefill</span><span><i class="decode tick"></i>decode</span>
          <span><i class="waiting tick"></i>waits</span
          ><span><i class="alarm tick"></i>preempted</span>
        </p>
        <${Hovered} />
      </div>
      <div class="plot">
        <${Canvas}
          label=${label.value}
          focusable=${true}
          draw=${draw}
          bind=${listen(() => layout)}
        />
      </div>
    </section>`,
);

const Empty = () =>
  html`<section class="panel empty">
      <p>
        Nothing has run yet. Each request gets a lane here, and time goes to the right: a block is a
        piece of its prompt, a tick a token of its answer, a thin line waiting. Columns are steps of
        the engine, which end for all that share them at once, so a long block in one lane is a gap
        in all others.
      </p>
    </section>
    <${DemoOffer} />`;

const Content = view(() => {
  if (compared.value) return html`<${Compare} />`;
  return isEmpty.value && description.value?.kind === "live"
    ? html`<${Empty} />`
    : html`<${Lanes} />`;
});

export class Timeline extends Component {
  constructor() {
    super();
    const { span: seconds, end } = extra.value;
    if (Number(seconds) > 0) span.value = Number(seconds);
    if (Number.isFinite(Number(end ?? NaN))) fixedEnd.value = Number(end);
  }

  componentDidMount() {
    this.showChosen();
    this.followed = effect(readCompared); // also where a link leads here from this very page
    this.free = useKeys({
      w: () => (compared.value ? zoomCompared(0.7) : zoom(0.7)),
      s: () => (compared.value ? zoomCompared(1 / 0.7) : zoom(1 / 0.7)),
      a: () => (compared.value ? panCompared(-0.2) : pan(-span.value / 5)),
      d: () => (compared.value ? panCompared(0.2) : pan(span.value / 5)),
      c: () => (compared.value ? stopComparing() : startComparing()),
    });
  }

  /** Whoever comes from a request that ended before what is in view wants to see that. */
  showChosen() {
    const chosen = selected.value?.id && store.requests.get(selected.value.id);
    if (!chosen || extra.value.end !== undefined || extra.value.compare) return;
    if (chosen.finish === null || chosen.finish >= inView()[0]) return;
    const margin = 0.1 * (chosen.finish - chosen.arrival) + 0.01;
    show(chosen.arrival - margin, chosen.finish + margin);
  }

  componentWillUnmount() {
    this.followed();
    this.free();
    hovered.value = null;
    layout = null;
  }

  render() {
    return html`<${Content} />`;
  }
}
