// A figure with its name, what it means, and how it was: the tiles of several pages.

import { html } from "./html.js";
import { Canvas, sparkline } from "./canvas.js";

/** `label` is what the sparkline is called, for those who cannot see it. */
export const Figure = (props) => {
  const { title, value, unit, note, label, points, colour, how, missed, top, target } = props;
  return html`<section class=${missed ? "panel figure missed" : "panel figure"}>
    <h2>
      ${title}
      <details class="how">
        <summary aria-label=${`What is ${title}?`}></summary>
        <p>${how}</p>
      </details>
    </h2>
    <p class="value">${value}${unit === undefined ? null : html`<span>${unit}</span>`}</p>
    <${Canvas}
      label=${label}
      draw=${(context, width, height, palette) =>
        sparkline(context, width, height, points, {
          colour: palette[colour],
          line: palette.line,
          muted: palette.muted,
          top,
          target,
        })}
    />
    <p class="aside">${note}</p>
  </section>`;
};
