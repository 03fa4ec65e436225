// Draws what a canvas's pen draws, as SVG: the part of its interface that our figures use.

const BASELINES = { middle: "central", top: "text-before-edge", bottom: "text-after-edge" };
const ANCHORS = { right: "end", end: "end", center: "middle" };
const NEW = {
  fillStyle: "#000",
  strokeStyle: "#000",
  lineWidth: 1,
  globalAlpha: 1,
  font: "10px sans-serif",
  textAlign: "left",
  textBaseline: "alphabetic",
  lineJoin: "miter",
  lineCap: "butt",
  dash: [],
  clip_: "",
  transform: "",
};

const round = (value) => Math.round(value * 100) / 100;
const escaped = (text) =>
  String(text).replace(
    /[<>&"\u0000-\u0008\u000b\u000c\u000e-\u001f]/g,
    (letter) => ({ "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" })[letter] ?? "\ufffd",
  );

export class SvgPen {
  /** `measure` is a canvas's pen, which knows how wide texts are. */
  constructor(width, height, measure) {
    this.width = width;
    this.height = height;
    this.measure = measure;
    this.parts = [];
    this.clips = [];
    this.saved = [];
    this.path = "";
    Object.assign(this, structuredClone(NEW));
  }

  /** The document; `background` fills it. */
  text(background) {
    const size = `width="${round(this.width)}" height="${round(this.height)}"`;
    const box = `viewBox="0 0 ${round(this.width)} ${round(this.height)}"`;
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${box}>` +
      `<defs>${this.clips.join("")}</defs>` +
      `<rect width="100%" height="100%" fill="${escaped(background)}"/>` +
      `${this.parts.join("\n")}</svg>\n`
    );
  }

  save() {
    this.saved.push(Object.fromEntries(Object.keys(NEW).map((name) => [name, this[name]])));
  }

  restore() {
    Object.assign(this, this.saved.pop() ?? {});
  }

  setTransform() {
    this.transform = "";
  }

  translate(x, y) {
    this.transform += `translate(${round(x)} ${round(y)})`;
  }

  rotate(angle) {
    this.transform += `rotate(${round((angle * 180) / Math.PI)})`;
  }

  scale(x, y) {
    this.transform += `scale(${x} ${y})`;
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  getLineDash() {
    return this.dash;
  }

  clearRect() {}

  measureText(text) {
    this.measure.font = this.font;
    return this.measure.measureText(text);
  }

  // ---- paths -----------------------------------------------------------------------------------

  beginPath() {
    this.path = "";
  }

  closePath() {
    this.path += "Z";
  }

  moveTo(x, y) {
    this.path += `M${round(x)} ${round(y)}`;
  }

  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${round(x)} ${round(y)}`;
  }

  quadraticCurveTo(...at) {
    this.path += `Q${at.map(round).join(" ")}`;
  }

  bezierCurveTo(...at) {
    this.path += `C${at.map(round).join(" ")}`;
  }

  rect(x, y, width, height) {
    const [w, h] = [round(width), round(height)];
    this.path += `M${round(x)} ${round(y)}h${w}v${h}h${-w}Z`;
  }

  roundRect(x, y, width, height) {
    this.rect(x, y, width, height);
  }

  arc(x, y, radius, from, to) {
    const end = Math.min(to, from + 2 * Math.PI - 0.001);
    const at = (angle) =>
      `${round(x + radius * Math.cos(angle))} ${round(y + radius * Math.sin(angle))}`;
    const large = end - from > Math.PI ? 1 : 0;
    const go = this.path ? "L" : "M";
    this.path += `${go}${at(from)}A${round(radius)} ${round(radius)} 0 ${large} 1 ${at(end)}`;
  }

  clip() {
    const id = `c${this.clips.length}`;
    const inside = this.clip_ ? ` clip-path="url(#${this.clip_})"` : "";
    this.clips.push(`<clipPath id="${id}"><path${inside} d="${this.path}"/></clipPath>`);
    this.clip_ = id;
  }

  fill() {
    this.add("path", { d: this.path, fill: this.fillStyle });
  }

  stroke() {
    this.add("path", { d: this.path, fill: "none", ...this.line() });
  }

  // ---- boxes and texts -------------------------------------------------------------------------

  fillRect(x, y, width, height) {
    if (!(width && height)) return;
    const left = width < 0 ? x + width : x;
    const top = height < 0 ? y + height : y;
    const size = { width: round(Math.abs(width)), height: round(Math.abs(height)) };
    this.add("rect", { x: round(left), y: round(top), ...size, fill: this.fillStyle });
  }

  strokeRect(x, y, width, height) {
    const size = { width: round(Math.max(0, width)), height: round(Math.max(0, height)) };
    this.add("rect", { x: round(x), y: round(y), ...size, fill: "none", ...this.line() });
  }

  fillText(text, x, y, most) {
    const squeezed =
      most !== undefined && this.measureText(text).width > most
        ? { textLength: round(Math.max(1, most)), lengthAdjust: "spacingAndGlyphs" }
        : {};
    const attributes = {
      x: round(x),
      y: round(y),
      fill: this.fillStyle,
      style: `font:${this.font}`,
      "text-anchor": ANCHORS[this.textAlign] ?? "start",
      "dominant-baseline": BASELINES[this.textBaseline] ?? "auto",
      "xml:space": "preserve",
      ...squeezed,
    };
    this.add("text", attributes, escaped(text));
  }

  line() {
    const dash = this.dash.length ? { "stroke-dasharray": this.dash.join(" ") } : {};
    return {
      stroke: this.strokeStyle,
      "stroke-width": this.lineWidth,
      "stroke-linejoin": this.lineJoin,
      "stroke-linecap": this.lineCap,
      ...dash,
    };
  }

  add(name, attributes, content = "") {
    const all = { ...attributes };
    if (this.globalAlpha < 1) all.opacity = round(this.globalAlpha);
    if (this.clip_) all["clip-path"] = `url(#${this.clip_})`;
    if (this.transform) all.transform = this.transform;
    const words = Object.entries(all).map(([key, value]) => ` ${key}="${escaped(value)}"`);
    this.parts.push(`<${name}${words.join("")}>${content}</${name}>`);
  }
}
