// A slider over given values, which need not be evenly spaced.

import { html } from "./html.js";

/** Powers of two and what lies halfway, from 16 to `most`, and that. */
export function lengths(most) {
  const values = [];
  for (let power = 16; power < most; power *= 2) {
    values.push(power);
    if (1.5 * power < most) values.push(1.5 * power);
  }
  return [...values, most];
}

/** `shown` is the value in words, which a screen reader says too. */
export const Slider = ({ name, values, value, set, shown }) => {
  const at = values.findIndex((each) => each >= value);
  return html`<label class="slider"
    ><span>${name}</span>
    <input
      type="range"
      min="0"
      max=${values.length - 1}
      value=${at < 0 ? values.length - 1 : at}
      aria-valuetext=${shown}
      onInput=${(event) => set(values[Number(event.target.value)])}
    />
    <span class="num">${shown}</span></label
  >`;
};
