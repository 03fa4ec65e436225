// Lines over a linear or a logarithmic scale: a legend, the values under the pointer, and a part
// drawn larger.

import { Component, html, signal, view } from "../../lib/html.js";
import { Canvas, niceStep } from "../../lib/canvas.js";

const MARGIN = { left: 52, right: 16, top: 8, bottom: 40 };
const BAND = 0.15; // opacity of what lies between the ends of an interval
const FEWEST_PIXELS = 6; // of a drag that means a part of the chart
const NARROW = 2.5; // decades below which a logarithmic scale also has marks at 2 and 5

/** Four digits at most, thousands as k. */
export function brief(value) {
  const size = Math.abs(value);
  const scaled = (factor, suffix) => Number((value / factor).toPrecision(4)) + suffix;
  return size >= 1e6 ? scaled(1e6, "M") : size >= 1e4 ? scaled(1e3, "k") : scaled(1, "");
}

/** What charts of one group share: the place under the pointer, and the part that is shown. */
export const newLook = () => ({ at: signal(null), range: signal(null) });

/** Of the values of all lines along x, the nearest one. */
function nearest(lines, at) {
  let found = null;
  for (const { x } of lines) {
    for (const value of x) {
      if (found === null || Math.abs(value - at) < Math.abs(found - at)) found = value;
    }
  }
  return found;
}

/** A line's value at `x`: that of its last point up to there. */
function valueAt(line, x) {
  const index = line.x.findLastIndex((value) => value <= x);
  return index < 0 ? null : line.y[index];
}

/** Both ends of x, of y, and the marks of y. */
function extentOf(chart, lines, part) {
  const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  const x = part ?? chart.xRange ?? [Math.min(0, ...xs), Math.max(...xs, -Infinity)];
  if (!(x[1] > x[0])) x[1] = x[0] + 1;
  const ys = lines.flatMap((line) =>
    [line.y, line.low, line.high].flatMap((column) =>
      (column ?? []).filter((_, index) => line.x[index] >= x[0] && line.x[index] <= x[1]),
    ),
  );
  return { x, ...(chart.log ? logarithmic(ys.filter((value) => value > 0)) : linear(ys)) };
}

function linear(values) {
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values) || 1;
  const step = niceStep(high - low, 5);
  const y = [Math.floor(low / step) * step, Math.ceil(high / step - 1e-9) * step];
  const count = Math.round((y[1] - y[0]) / step);
  return { y, marks: Array.from({ length: count + 1 }, (_, index) => y[0] + index * step) };
}

function logarithmic(values) {
  const low = Math.floor(4 * Math.log10(Math.min(...values) / 1.05)) / 4;
  const high = Math.ceil(4 * Math.log10(Math.max(...values) * 1.05)) / 4;
  if (!(high > low)) return { y: [1, 10], marks: [1, 10] };
  const marks = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const factor of high - low < NARROW ? [1, 2, 5] : [1]) marks.push(factor * 10 ** power);
  }
  const y = [10 ** low, 10 ** high];
  return { y, marks: marks.filter((mark) => mark >= y[0] && mark <= y[1]) };
}

/** Where values lie on a canvas of this size, and back along x. */
function layOut(chart, extent, width, height) {
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const [top, bottom] = [MARGIN.top, height - MARGIN.bottom];
  const scaled = chart.log ? (value) => Math.log10(Math.max(value, extent.y[0])) : Number;
  const [low, high] = extent.y.map(scaled);
  const span = extent.x[1] - extent.x[0];
  return {
    left,
    right,
    top,
    bottom,
    x: (value) => left + ((value - extent.x[0]) / span) * (right - left),
    y: (value) => bottom - ((scaled(value) - low) / (high - low)) * (bottom - top),
    valueAt: (pixel) => extent.x[0] + ((pixel - left) / (right - left)) * span,
  };
}

function stroke(context, ...points) {
  context.beginPath();
  points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
}

function drawAxes(context, chart, extent, at, palette) {
  context.font = `12px ${palette.font}`;
  context.lineWidth = 1;
  context.strokeStyle = palette.line;
  context.fillStyle = palette.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const mark of extent.marks) {
    stroke(context, [at.left, at.y(mark)], [at.right, at.y(mark)]);
    context.fillText(brief(mark), at.left - 8, at.y(mark));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  const step = niceStep(extent.x[1] - extent.x[0], (at.right - at.left) / 90);
  for (let mark = Math.ceil(extent.x[0] / step) * step; mark <= extent.x[1]; mark += step) {
    stroke(context, [at.x(mark), at.bottom], [at.x(mark), at.bottom + 4]);
    context.fillText(brief(mark), at.x(mark), at.bottom + 6);
  }
  context.fillText(chart.xLabel, (at.left + at.right) / 2, at.bottom + 22);
}

function drawBand(context, line, at) {
  context.beginPath();
  line.x.forEach((x, index) => context.lineTo(at.x(x), at.y(line.high[index])));
  for (let index = line.x.length - 1; index >= 0; index -= 1) {
    context.lineTo(at.x(line.x[index]), at.y(line.low[index]));
  }
  context.closePath();
  context.globalAlpha = BAND;
  context.fill();
  context.globalAlpha = 1;
}

function drawLine(context, chart, line, at, colour) {
  context.strokeStyle = colour;
  context.fillStyle = colour;
  if (line.low) drawBand(context, line, at);
  context.lineWidth = 1.75;
  context.lineJoin = "round";
  context.setLineDash(line.dashed ? [6, 4] : []);
  const points = line.x.flatMap((x, index) => {
    const held = chart.step && index ? [[at.x(x), at.y(line.y[index - 1])]] : [];
    return [...held, [at.x(x), at.y(line.y[index])]];
  });
  if (!line.loose) stroke(context, ...points);
  context.setLineDash([]);
  if (!chart.points) return;
  for (const point of points) dot(context, point, 3);
}

function dot(context, [x, y], radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fill();
}

/** The key of a line, which hides and shows it, with its value under the pointer. */
const Key = ({ line, shown, value, toggle }) =>
  html`<button class="link key" aria-pressed=${String(shown)} onClick=${toggle}>
    <svg viewBox="0 0 20 8" aria-hidden="true">
      <path
        d="M0 4H20"
        stroke=${`var(--${line.colour})`}
        stroke-width="3"
        stroke-dasharray=${line.dashed ? "6 3" : null}
      />
    </svg>
    ${line.name}<output>${value === null ? "" : brief(value)}</output>
  </button>`;

const Legend = view(({ chart, hidden, look }) => {
  const { at, range } = look;
  const moment = at.value === null ? null : nearest(chart.lines, at.value);
  const toggle = (index) => () => {
    const next = new Set(hidden.value);
    if (!next.delete(index)) next.add(index);
    hidden.value = next;
  };
  const unit = chart.xLabel.split(",")[0];
  return html`<p class="keys">
    ${chart.lines.map(
      (line, index) =>
        html`<${Key}
          key=${index}
          line=${line}
          shown=${!hidden.value.has(index)}
          value=${moment === null ? null : valueAt(line, moment)}
          toggle=${toggle(index)}
        />`,
    )}
    ${
      range.value &&
      html`<button
        onClick=${() => {
          range.value = null;
        }}
      >
        Show all
      </button>`
    }
    <output class="moment">${moment === null ? "" : `at ${brief(moment)} ${unit}`}</output>
  </p>`;
});

/**
 * A chart with `title`, `xLabel`, `yLabel` and `lines`: `name`, `x` ascending, `y`, a `colour` of
 * the page, maybe `dashed`, or `loose` (points that nothing joins), and `low` and `high` of a band
 * around it. `log` is of y; with `step` values hold until the next one; `points` marks each;
 * `xRange` is what is shown at first. Charts with the same `look` show the same place.
 */
export class LineChart extends Component {
  hidden = signal(new Set());
  dragged = signal(null); // [from, to] in pixels
  look = this.props.look ?? newLook();

  draw = (context, width, height, palette) => {
    const { chart } = this.props;
    const lines = chart.lines.filter((_, index) => !this.hidden.value.has(index));
    const extent = extentOf(chart, lines, this.look.range.value);
    const at = layOut(chart, extent, width, height);
    this.layout = at;
    drawAxes(context, chart, extent, at, palette);
    context.save();
    context.beginPath();
    context.rect(at.left - 4, at.top - 4, at.right - at.left + 8, at.bottom - at.top + 8);
    context.clip();
    for (const line of lines) drawLine(context, chart, line, at, palette[line.colour]);
    this.drawPointer(context, lines, at, palette);
    context.restore();
  };

  drawPointer(context, lines, at, palette) {
    const moment = this.look.at.value === null ? null : nearest(lines, this.look.at.value);
    context.lineWidth = 1;
    if (moment !== null) {
      context.strokeStyle = palette.muted;
      stroke(context, [at.x(moment), at.top], [at.x(moment), at.bottom]);
      for (const line of lines) {
        const value = valueAt(line, moment);
        context.fillStyle = palette[line.colour];
        if (value !== null) dot(context, [at.x(moment), at.y(value)], 3.5);
      }
    }
    if (!this.dragged.value) return;
    const [from, to] = this.dragged.value;
    context.globalAlpha = BAND;
    context.fillStyle = palette.accent;
    context.fillRect(from, at.top, to - from, at.bottom - at.top);
    context.globalAlpha = 1;
  }

  listen = (canvas) => {
    const { at, range } = this.look;
    let from = null;
    const within = (event) => {
      const pixel = event.clientX - canvas.getBoundingClientRect().left;
      return Math.max(this.layout.left, Math.min(this.layout.right, pixel));
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.layout) return;
      from = within(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.layout) return;
      const pixel = within(event);
      at.value = this.layout.valueAt(pixel);
      if (from !== null) this.dragged.value = [Math.min(from, pixel), Math.max(from, pixel)];
    });
    canvas.addEventListener("pointerup", () => {
      const part = this.dragged.value;
      if (part && part[1] - part[0] >= FEWEST_PIXELS) range.value = part.map(this.layout.valueAt);
      from = this.dragged.value = null;
    });
    canvas.addEventListener("pointercancel", () => {
      from = this.dragged.value = null;
    });
    canvas.addEventListener("pointerleave", () => {
      at.value = null;
    });
    canvas.addEventListener("dblclick", () => {
      range.value = null;
    });
  };

  render({ chart }) {
    const isNamed = chart.title.toLowerCase().endsWith(chart.yLabel);
    return html`<figure class="panel chart">
      <figcaption>
        ${chart.title}${isNamed ? "" : html` <span class="muted">${chart.yLabel}</span>`}
      </figcaption>
      <${Legend} chart=${chart} hidden=${this.hidden} look=${this.look} />
      <${Canvas}
        label=${`${chart.title}: ${chart.yLabel} over ${chart.xLabel}`}
        draw=${this.draw}
        bind=${this.listen}
      />
    </figure>`;
  }
}
