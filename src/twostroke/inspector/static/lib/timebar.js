// One time bar for all pages: going to another page keeps the moment.

import { html, view } from "./html.js";
import { clock, count } from "./format.js";
import { SPEEDS, description, playing, seek, speed, stepBy, toNow, toggle } from "./source.js";
import { store } from "./store.js";

let dragged = null;

export const TimeBar = view(() => {
  store.beat.value;
  const found = description.value;
  if (!found) return html`<footer></footer>`;
  const live = found.kind === "live";
  const step = store.lastStep;
  const last = Math.max(found.last_step, step);
  const first = live
    ? Math.max(
        found.first_step,
        Math.min(step, store.length ? store.steps.get("step", store.steps.first) : 0),
      )
    : found.first_step;
  return html`<footer aria-label="Time">
    <button onClick=${toggle}>${playing.value ? "Pause" : live ? "Go on" : "Play"}</button>
    <span class="num">step ${count(Math.max(0, step))}</span>
    <span class="num muted wide">${clock(store.now || found.first_time, found)}</span>
    <label class="hidden" for="moment">Moment, by step</label>
    <input
      id="moment"
      type="range"
      min=${first}
      max=${Math.max(first + 1, last)}
      value=${dragged ?? Math.max(first, step)}
      aria-valuetext=${`step ${Math.max(0, step)}`}
      onInput=${(event) => {
        dragged = Number(event.target.value);
        later(dragged);
      }}
      onChange=${(event) => {
        dragged = null;
        seek(Number(event.target.value));
      }}
    />
    <button class="wide" onClick=${() => stepBy(-1)}>Step back</button>
    <button class="wide" onClick=${() => stepBy(1)}>Step on</button>
    ${
      live
        ? html`<button disabled=${playing.value} onClick=${toNow}>To now</button>`
        : html` <label class="hidden" for="speed">Speed</label>
            <select
              id="speed"
              value=${speed.value}
              onChange=${(event) => {
                speed.value = Number(event.target.value);
              }}
            >
              ${SPEEDS.map((factor) =>
                html`<option key=${factor} value=${factor}>${factor} x</option>`)}
            </select>
            ${found.ready < 1
              ? html`<span class="muted wide">${Math.floor(100 * found.ready)} % read</span>`
              : null}`
    }
  </footer>`;
});

let timer = 0;

/** While it is dragged: no more often than the server answers. */
function later(step) {
  clearTimeout(timer);
  timer = setTimeout(() => seek(step), 80);
}
