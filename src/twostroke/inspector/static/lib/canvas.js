// Canvas for what is dense: one animation frame a drawing, sharp on any screen, in our colours.

import { Component, effect, html, signal } from "./html.js";

const NAMES = [
  "bg",
  "panel",
  "line",
  "ink",
  "muted",
  "prefill",
  "decode",
  "cached",
  "waiting",
  "alarm",
  "plum",
  "accent",
  "faint",
];

/** A mailed page may be opened where the browser keeps nothing for it. */
function storage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/** `light`, `dark` or empty, which follows the system. */
export const theme = signal(storage()?.getItem("twostroke-theme") ?? "");
const themed = signal(0); // rises when colours change
export const still = matchMedia("(prefers-reduced-motion: reduce)");

let cache = null;

export function colours() {
  themed.value;
  if (!cache) {
    const style = getComputedStyle(document.documentElement);
    cache = Object.fromEntries(
      NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
    cache.font = style.getPropertyValue("--sans").trim();
    cache.mono = style.getPropertyValue("--mono").trim();
  }
  return cache;
}

function recolour() {
  cache = null;
  themed.value += 1;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  storage()?.setItem("twostroke-theme", theme.value);
  queueMicrotask(recolour);
});

export function isDark() {
  themed.value;
  return theme.value ? theme.value === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme() {
  theme.value = isDark() ? "light" : "dark";
}

const mounted = new Set();

/** The canvases on the page, in its order: each has `element`, `box`, and `props`. */
export function figures() {
  return [...mounted].sort((one, other) =>
    one.element.compareDocumentPosition(other.element) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1,
  );
}

// Paper is light. Both handlers run before the browser goes on, so they draw at once.
function redraw(shown) {
  if (shown) document.documentElement.dataset.theme = shown;
  else delete document.documentElement.dataset.theme;
  recolour();
  for (const figure of mounted) figure.paint();
}
addEventListener("beforeprint", () => redraw("light"));
addEventListener("afterprint", () => redraw(theme.value));

/**
 * A canvas that fills its box. `draw(context, width, height, colours)` runs once a frame at most,
 * whenever a signal that it read has changed. `label` says in words what is drawn.
 */
export class Canvas extends Component {
  componentDidMount() {
    this.pen = this.element.getContext("2d");
    mounted.add(this);
    // The box is told, never asked for: that would lay out the page anew in each frame.
    this.observer = new ResizeObserver(([entry]) => {
      this.box = entry.contentRect;
      this.schedule();
    });
    this.observer.observe(this.element);
    this.props.bind?.(this.element);
  }

  componentDidUpdate() {
    this.schedule();
  }

  componentWillUnmount() {
    mounted.delete(this);
    this.stop?.();
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  schedule() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    if (!this.box?.width || !this.box.height) return;
    const { width, height } = this.box;
    const scale = Math.min(devicePixelRatio || 1, 3);
    if (this.element.width !== Math.round(width * scale)) this.element.width = width * scale;
    if (this.element.height !== Math.round(height * scale)) this.element.height = height * scale;
    this.stop?.();
    let first = true;
    this.stop = effect(() => {
      if (first) {
        this.pen.setTransform(scale, 0, 0, scale, 0, 0);
        this.pen.clearRect(0, 0, width, height);
        this.props.draw(this.pen, width, height, colours());
        first = false;
      } else {
        this.schedule();
      }
    });
  }

  render({ label, name = "", focusable = false }) {
    const focus = focusable ? { tabIndex: 0 } : {};
    return html`<canvas
      class=${name}
      role="img"
      aria-label=${label}
      ...${focus}
      ref=${(element) => {
        this.element = element ?? this.element;
      }}
    ></canvas>`;
  }
}

/** Round steps for an axis: about `count` of them over `span`. */
export function niceStep(span, count) {
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= raw);
  return factor * power;
}

const CLOCK_STEPS = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];

/** The same for seconds, of which clocks have sixty to a minute. */
export function niceSeconds(span, count) {
  const raw = span / Math.max(1, count);
  const onClock = raw > 5 && CLOCK_STEPS.find((candidate) => candidate >= raw);
  return onClock || niceStep(span, count);
}

/** Diagonal lines, for what is unused. */
export function hatch(context, x, y, width, height, colour, gap = 6) {
  if (width <= 0 || height <= 0) return;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - height; at < x + width; at += gap) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/** A line that ends in a dot; `points` are [x share, value], ascending; `target` is dashed. */
export function sparkline(context, width, height, points, { colour, target, top, line, muted }) {
  const most = Math.max(top ?? 0, target ?? 0, ...points.map((point) => point[1])) || 1;
  const y = (value) => height - 2 - (value / most) * (height - 5);
  context.strokeStyle = line;
  context.beginPath();
  context.moveTo(0, height - 1.5);
  context.lineTo(width, height - 1.5);
  context.stroke();
  if (target !== undefined) {
    context.setLineDash([3, 3]);
    context.strokeStyle = muted;
    context.beginPath();
    context.moveTo(0, y(target));
    context.lineTo(width, y(target));
    context.stroke();
    context.setLineDash([]);
  }
  if (!points.length) return;
  context.beginPath();
  points.forEach(([x, value], index) => {
    if (index) context.lineTo(x * (width - 4), y(value));
    else context.moveTo(x * (width - 4), y(value));
  });
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  const [x, value] = points[points.length - 1];
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x * (width - 4), y(value), 2, 0, 7);
  context.fill();
  context.lineWidth = 1;
}
