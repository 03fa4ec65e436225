// What one request waited for, also after it has run.

import { html, view } from "../../lib/html.js";
import { selectRequest } from "../../lib/address.js";
import { reasonWord } from "../../lib/explain.js";
import { clock, shortId, time } from "../../lib/format.js";
import { description } from "../../lib/source.js";
import { store } from "../../lib/store.js";
import { waitsOf } from "../request_details.js";

const LEAST = 5e-5; // seconds; less is no wait

function rowsOf(waits, name) {
  return Object.entries(waits[name])
    .filter(([, seconds]) => seconds >= LEAST)
    .sort((one, other) => other[1] - one[1])
    .map(([reason, seconds]) => ({ when: name, reason, seconds }));
}

const WHEN = { queue: "before its first step", later: "between two steps" };

export const Waits = view(({ record }) => {
  store.beat.value;
  const waits = waitsOf(record);
  if (!waits) return null;
  const rows = [...rowsOf(waits, "queue"), ...rowsOf(waits, "later")];
  const sum = rows.reduce((total, row) => total + row.seconds, 0);
  const most = Math.max(...rows.map((row) => row.seconds), 1e-9);
  return html`<section class="panel whypanel">
    <h2>What it waited for <span class="muted num">${time(sum)}</span></h2>
    ${
      rows.length
        ? html`<ul class="waits">
            ${rows.map(
              ({ when, reason, seconds }) =>
                html`<li key=${`${when} ${reason}`}>
                  <span>${reasonWord(reason)}</span>
                  <span class="bar" aria-hidden="true"
                    ><b
                      class=${reason === "preempted" ? "alarm" : "waiting"}
                      style=${{ width: `${(100 * seconds) / most}%` }}
                    ></b
                  ></span>
                  <span class="num">${time(seconds)}</span>
                  <span class="muted">${WHEN[when]}</span>
                </li>`,
            )}
          </ul>`
        : html`<p class="muted">It never waited: each step gave it what it lacked, or a part.</p>`
    }
    ${waits.preemptions.map(
      (lost) =>
        html`<p key=${lost.time}>
          At ${clock(lost.time, description.value)} it lost its blocks
          ${
            lost.by
              ? html`${" to "}<button class="link mono" onClick=${() => selectRequest(lost.by)}>
                  ${shortId(lost.by)}</button
                >`
              : " to others"
          },
          ${
            lost.seconds === null
              ? "and waits since."
              : ` and ran again ${time(lost.seconds)} later.`
          }
        </p>`,
    )}
  </section>`;
});
