// The roofline: FLOPs a second over FLOPs a byte, both logarithmic. Roof, steps, the cost model.

import { html, signal, view } from "../lib/html.js";
import { select, selected } from "../lib/address.js";
import { Canvas } from "../lib/canvas.js";
import { count, many, short, time } from "../lib/format.js";
import { groups, kindOf, ownRoof, paths, points, roof, shown, sliders } from "./model_data.js";

const DRAWN = 300; // the latest steps
const FAINTEST = 0.12;
const MARGIN = { left: 64, right: 16, top: 12, bottom: 40 };
const NARROW = 480; // pixels of the plot below which labels are short
const REACH = 14; // pixels within which a click means a point
export const picked = signal(null);
let placed = []; // of the last drawing, for the pointer
const extent = { x: [Infinity, -Infinity], y: [Infinity, -Infinity], of: null };

const PREFIXES = ["", "k", "M", "G", "T", "P"];

/** `46.4 GFLOP/s`. */
export function rate(value, unit) {
  let size = value;
  let prefix = 0;
  while (size >= 1000 && prefix < PREFIXES.length - 1) {
    size /= 1000;
    prefix += 1;
  }
  return `${short(size)}\u00a0${PREFIXES[prefix]}${unit}`;
}

/** [FLOPs a byte, FLOP/s]; null where the time is not known. */
const place = (flops, bytes, seconds) => (seconds ? [flops / bytes, flops / seconds] : null);
const placeOf = (point) => place(point.flops, point.bytes, point.seconds);

/** Where the sliders' step lies on the path, interpolated between the batches that were asked. */
export function hollow() {
  const found = paths.value;
  if (!found) return null;
  const at = found.requests.indexOf(sliders.value.batch);
  if (at < 0) return null;
  return {
    requests: found.requests[at],
    context: found.context,
    flops: found.flops[at],
    bytes: found.bytes[at],
    seconds: found.seconds[at],
    binding: found.binding[at],
  };
}

/** The range of both axes, in decades; it only grows, so that nothing jumps. */
function measureExtent(ceilings) {
  const model = shown.value?.tower?.name;
  if (extent.of !== model) {
    Object.assign(extent, { of: model, x: [Infinity, -Infinity], y: [Infinity, -Infinity] });
  }
  const take = (axis, value) => {
    if (!(value > 0) || !Number.isFinite(value)) return;
    extent[axis][0] = Math.min(extent[axis][0], Math.floor(4 * Math.log10(value / 1.3)) / 4);
    extent[axis][1] = Math.max(extent[axis][1], Math.ceil(4 * Math.log10(value * 1.3)) / 4);
  };
  const takePoint = (spot) => {
    if (!spot) return;
    take("x", spot[0]);
    take("y", spot[1]);
  };
  for (const each of ceilings) {
    take("x", each.flops / each.bandwidth);
    take("y", each.flops);
  }
  const found = paths.value;
  if (found) {
    found.requests.forEach((_, at) => {
      takePoint(place(found.flops[at], found.bytes[at], found.seconds[at]));
      take("x", found.flops[at] / found.bytes[at]);
    });
    takePoint(placeOf(found.prefill));
  }
  for (const point of points.value.slice(-DRAWN)) takePoint(placeOf(point));
  for (const { found: group } of groups()) if (group) takePoint(placeOf(group));
  return extent.x[0] < extent.x[1] && extent.y[0] < extent.y[1];
}

function drawAxes(context, width, height, palette, x, y) {
  context.font = `12px ${palette.font}`;
  context.lineWidth = 1;
  const line = (from, to) => {
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
  };
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (let power = Math.ceil(extent.x[0]); power <= extent.x[1]; power += 1) {
    context.strokeStyle = palette.line;
    line([x(10 ** power), MARGIN.top], [x(10 ** power), bottom]);
    context.fillStyle = palette.muted;
    context.fillText(String(Number((10 ** power).toPrecision(1))), x(10 ** power), bottom + 6);
  }
  context.fillText("FLOPs for each byte moved", (MARGIN.left + right) / 2, bottom + 22);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let power = Math.ceil(extent.y[0]); power <= extent.y[1]; power += 1) {
    context.strokeStyle = palette.line;
    line([MARGIN.left, y(10 ** power)], [right, y(10 ** power)]);
    context.fillStyle = palette.muted;
    context.fillText(rate(10 ** power, "F/s"), MARGIN.left - 8, y(10 ** power));
  }
}

function drawCeilings(context, ceilings, isMeasured, palette, x, y) {
  const [low, high] = extent.x.map((power) => 10 ** power);
  const ridge = ceilings.flops / ceilings.bandwidth;
  context.strokeStyle = isMeasured ? palette.ink : palette.muted;
  context.lineWidth = isMeasured ? 1.5 : 1;
  context.setLineDash(isMeasured ? [] : [5, 4]);
  context.beginPath();
  context.moveTo(x(low), y(low * ceilings.bandwidth));
  context.lineTo(x(ridge), y(ceilings.flops));
  context.lineTo(x(high), y(ceilings.flops));
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

function labelCeilings(context, ceilings, word, palette, x, y) {
  const isNarrow = x(10 ** extent.x[1]) < NARROW;
  const named = (what, value) => (isNarrow ? value : `${word} ${what} ${value}`);
  const [low, high] = extent.x.map((power) => 10 ** power);
  const write = (text, left, top) => {
    context.strokeStyle = palette.panel;
    context.lineWidth = 3;
    context.strokeText(text, left, top);
    context.lineWidth = 1;
    context.fillStyle = palette.ink;
    context.fillText(text, left, top);
  };
  context.textBaseline = "bottom";
  context.textAlign = "right";
  const flops = named("arithmetic", rate(ceilings.flops, "FLOP/s"));
  write(flops, x(high) - 4, y(ceilings.flops) - 4);
  // Along the slope, at a place that is in view.
  const ridge = ceilings.flops / ceilings.bandwidth;
  const start = Math.max(low, 10 ** extent.y[0] / ceilings.bandwidth);
  const at = Math.sqrt(start * Math.min(ridge, high));
  const angle = Math.atan2(
    y(2 * at * ceilings.bandwidth) - y(at * ceilings.bandwidth),
    x(2 * at) - x(at),
  );
  context.save();
  context.translate(x(at), y(at * ceilings.bandwidth));
  context.rotate(angle);
  context.textAlign = "center";
  write(named("memory", rate(ceilings.bandwidth, "B/s")), 0, -4);
  context.restore();
}

function mark(context, kind, spot, size, colour, fill = true) {
  context.beginPath();
  if (kind === "prefill") context.rect(spot[0] - size, spot[1] - size, 2 * size, 2 * size);
  else if (kind === "mixed") {
    context.moveTo(spot[0], spot[1] - size - 1);
    context.lineTo(spot[0] + size + 1, spot[1]);
    context.lineTo(spot[0], spot[1] + size + 1);
    context.lineTo(spot[0] - size - 1, spot[1]);
    context.closePath();
  } else context.arc(spot[0], spot[1], size, 0, 7);
  if (fill) {
    context.fillStyle = colour;
    context.fill();
  } else {
    context.strokeStyle = colour;
    context.stroke();
  }
}

const hueOf = (kind, palette) =>
  kind === "prefill" ? palette.prefill : kind === "decode" ? palette.decode : palette.waiting;

function drawSteps(context, palette, at) {
  placed = [];
  const latest = points.value.slice(-DRAWN);
  latest.forEach((point, index) => {
    const where = placeOf(point);
    if (!where) return;
    const spot = at(where);
    const kind = kindOf(point);
    context.globalAlpha = FAINTEST + (1 - FAINTEST) * ((index + 1) / latest.length) ** 3;
    mark(context, kind, spot, 2.5, hueOf(kind, palette));
    placed.push({ point, spot });
  });
  context.globalAlpha = 1;
  const chosen = placed.find(({ point }) => point.step === picked.value?.step);
  for (const [item, colour] of [
    [placed[placed.length - 1], palette.ink],
    [chosen, palette.accent],
  ]) {
    if (!item) continue;
    context.lineWidth = 1.5;
    mark(context, "decode", item.spot, 6, colour, false);
    context.lineWidth = 1;
  }
}

function drawPaths(context, palette, at) {
  const found = paths.value;
  if (!found) return;
  context.strokeStyle = palette.decode;
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  context.beginPath();
  found.requests.forEach((_, index) => {
    const where = place(found.flops[index], found.bytes[index], found.seconds[index]);
    if (where) context.lineTo(...at(where));
  });
  context.stroke();
  context.setLineDash([]);
  const prompt = placeOf(found.prefill);
  context.lineWidth = 2;
  if (prompt) mark(context, "prefill", at(prompt), 6, palette.prefill, false);
  const step = hollow();
  const where = step && placeOf(step);
  if (where) mark(context, "decode", at(where), 7, palette.decode, false);
  context.lineWidth = 1;
}

function drawGroups(context, palette, at, right) {
  context.font = `600 12px ${palette.font}`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const { name, label, found } of groups()) {
    const where = found && placeOf(found);
    if (!where) continue;
    const spot = at(where);
    mark(context, name, spot, 5, hueOf(name, palette));
    context.lineWidth = 1.5;
    mark(context, name, spot, 5, palette.panel, false);
    context.lineWidth = 1;
    const fits = spot[0] + 9 + context.measureText(label).width < right;
    context.textAlign = fits ? "left" : "right";
    const left = spot[0] + (fits ? 9 : -9);
    context.strokeStyle = palette.panel;
    context.lineWidth = 4;
    context.strokeText(label, left, spot[1] + 8);
    context.lineWidth = 1;
    context.fillStyle = palette.ink;
    context.fillText(label, left, spot[1] + 8);
  }
}

function draw(context, width, height, palette) {
  const sheet = shown.value?.ceilings;
  const own = ownRoof();
  if (!measureExtent([sheet, own].filter(Boolean))) return;
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const scale = ([low, high], from, to) => (value) =>
    from + ((Math.log10(value) - low) / (high - low)) * (to - from);
  const x = scale(extent.x, MARGIN.left, right);
  const y = scale(extent.y, bottom, MARGIN.top);
  const at = ([intensity, speed]) => [x(intensity), y(speed)];
  drawAxes(context, width, height, palette, x, y);
  context.save();
  context.beginPath();
  context.rect(MARGIN.left, MARGIN.top - 8, right - MARGIN.left, bottom - MARGIN.top + 8);
  context.clip();
  if (sheet) drawCeilings(context, sheet, false, palette, x, y);
  if (own) drawCeilings(context, own, true, palette, x, y);
  if (own) labelCeilings(context, own, "measured", palette, x, y);
  else if (sheet) labelCeilings(context, sheet, "sheet:", palette, x, y);
  drawSteps(context, palette, at);
  drawPaths(context, palette, at);
  drawGroups(context, palette, at, right);
  context.restore();
}

function pickPoint(canvas) {
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const from = [event.clientX - box.left, event.clientY - box.top];
    const near = placed
      .map((item) => [Math.hypot(item.spot[0] - from[0], item.spot[1] - from[1]), item.point])
      .filter(([distance]) => distance <= REACH)
      .sort((one, other) => one[0] - other[0])[0];
    pick(near?.[1] ?? null);
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !placed.length) return;
    event.preventDefault();
    const at = placed.findIndex(({ point }) => point.step === picked.value?.step);
    const next = at < 0 ? placed.length - 1 : Math.max(0, Math.min(placed.length - 1, at + by));
    pick(placed[next].point);
  });
}

function pick(point) {
  picked.value = point;
  if (point) select({ kind: "step", step: point.step });
  else if (selected.value?.kind === "step") select(null);
}

/** A step in a sentence. */
export function aboutPoint(point) {
  const kind = kindOf(point);
  const tokens = many(point.prompt, "prompt token");
  const requests = `${many(point.requests, "request")}`;
  const each = point.requests ? ` over ${many(point.context / point.requests, "token")} each` : "";
  const what =
    kind === "prefill"
      ? `prefill of ${tokens}`
      : kind === "decode"
        ? `decode of ${requests}${each}`
        : `decode of ${requests} and prefill of ${tokens}`;
  const speed = rate(point.flops / point.seconds, "FLOP/s");
  return (
    `Step ${count(point.step)}, ${what}: ${rate(point.flops, "FLOP")} and` +
    ` ${rate(point.bytes, "B")} in ${time(point.seconds)}, that is` +
    ` ${short(point.flops / point.bytes)} FLOPs a byte, ${speed}` +
    ` and ${rate(point.bytes / point.seconds, "B/s")}.` +
    (point.estimate ? ` The cost model says ${time(point.estimate)}.` : "")
  );
}

/** `below` is what stands between the plot and its legend. */
export const Roofline = view(({ below }) => {
  const ceilings = roof();
  const own = ownRoof() !== null || !shown.value.measured;
  const number = ceilings?.devices > 1 ? `${ceilings.devices} x ` : "";
  const device = ceilings && `${own ? "" : "by the sheet of "}${number}${ceilings.device}`;
  const kind = shown.value.measured ? "measured" : "simulated";
  const latest = points.value[points.value.length - 1];
  return html`<section class="panel roofline">
    <h2>
      Roofline
      <span class="muted num">${ceilings ? device : "without a roof"}</span>
      <details class="how">
        <summary aria-label="What is this?"></summary>
        <p>
          A step is a dot: to the right the more it computes for each byte that it moves, upwards
          the more it computes a second. Nothing gets above the roof: on its slope memory is the
          limit, on its flat part arithmetic. FLOPs and bytes are counted from the model's shapes,
          as the cost model does; the time is the whole step's, with sampling and scheduling. A
          model that fits into the processor's cache can pass the slope, which is main memory's. The
          dotted line is decode from 1 to 256 requests by the cost model; the hollow dot and the
          hollow square are where the sliders stand. Select a dot to read about its step; arrow keys
          go through them.
        </p>
      </details>
    </h2>
    <div class="plot">
      <${Canvas}
        name="fill"
        label=${`Roofline with ${count(Math.min(DRAWN, points.value.length))} ${kind} steps; the` +
        ` table below has its figures; arrow keys go through the steps`}
        focusable=${true}
        draw=${draw}
        bind=${pickPoint}
      />
    </div>
    ${below}
    <p class="legend">
      <span><i class="prefill"></i>prefill</span>
      <span><i class="decode round"></i>decode</span>
      <span><i class="waiting diamond"></i>both in one step</span>
      <span><i class="hollow"></i>cost model, by the sliders</span>
      <span>with a number: median at so many requests</span>
      <span>older steps fade; the latest has a ring</span>
    </p>
    ${
      picked.value
        ? html`<p class="said" aria-live="polite">${aboutPoint(picked.value)}</p>`
        : latest
          ? html`<p class="said">${aboutPoint(latest)}</p>`
          : html`<p class="said muted">
              No steps yet. Send a request, and each of its steps becomes a dot.
            </p>`
    }
  </section>`;
});
