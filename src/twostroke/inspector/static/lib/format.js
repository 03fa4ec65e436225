// Numbers as people read them: three digits, a unit, the same width.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Thousands with commas. */
export const count = (value) => NUMBER.format(Math.round(value));

/** "1 token", "2 tokens". */
export const many = (number, one, several = `${one}s`) =>
  `${count(number)} ${Math.round(number) === 1 ? one : several}`;

/** Three significant digits. */
export function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 99.95) return count(value);
  return value.toFixed(size >= 9.995 ? 1 : size === 0 ? 0 : 2);
}

/** A duration as [number, unit]. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return ["–", ""];
  const size = Math.abs(seconds);
  if (!size) return ["0", "s"];
  if (size < 0.0009995) return [short(seconds * 1e6), "µs"];
  if (size < 0.9995) return [short(seconds * 1e3), "ms"];
  if (size < 120) return [short(seconds), "s"];
  if (size < 7200) return [short(seconds / 60), "min"];
  return [short(seconds / 3600), "h"];
}

export const time = (seconds) => duration(seconds).join("\u00a0").trim();

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${short(size)}\u00a0${units[unit]}`;
}

/** A moment: wall-clock time where the origin is known, else the time since the recording began. */
export function clock(seconds, description, digits = 3) {
  if (!description) return "";
  if (description.clock_origin) {
    const parted = 10 ** Math.max(0, digits - 3); // of a millisecond
    const whole = Math.floor((description.clock_origin + seconds) * 1000 * parted);
    const moment = new Date(whole / parted);
    const two = (value) => String(value).padStart(2, "0");
    const parts = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(two);
    const rest = String(whole % (1000 * parted)).padStart(Math.max(3, digits), "0");
    return parts.join(":") + (digits ? `.${rest.slice(0, digits)}` : "");
  }
  const since = Math.max(0, seconds - description.first_time);
  const minutes = Math.floor(since / 60);
  const rest = (since - 60 * minutes).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return `${minutes}:${rest}`;
}

// Letters that change the direction of what follows, and controls: shown as a replacement.
const UNSAFE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text from outside: bounded, and without what would change the text around it. */
export function foreign(text, most = 64) {
  const clean = String(text)
    .slice(0, 4 * most)
    .replace(UNSAFE, "\ufffd");
  const letters = [...clean];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : clean;
}

/** The part of a request's id that tells it from others: the last of its hexadecimal digits. */
export function shortId(id) {
  const match = /^(?:chatcmpl|cmpl|msg|resp|embd|rerank|score)[-_](.+)$/.exec(id);
  if (!match) return foreign(id, 14);
  const sample = /^(.*?)((?:[#-]\d+)?)$/.exec(match[1]);
  return foreign(sample[1].slice(0, 6) + sample[2], 14);
}

/** Of ascending values, interpolated; null without any. */
export function percentile(ordered, share) {
  if (!ordered.length) return null;
  const position = (ordered.length - 1) * share;
  const below = Math.floor(position);
  const above = Math.min(below + 1, ordered.length - 1);
  return ordered[below] + (ordered[above] - ordered[below]) * (position - below);
}
