// Doctor: what binds this server and which flag helps, proven by replaying its own steps.

import { html, signal, view } from "../../lib/html.js";
import { copy } from "../../lib/copy.js";
import { DemoWhereEmpty } from "../../demo/panel.js";
import { count, foreign, many, short, time } from "../../lib/format.js";
import { api, description, post, seesAll } from "../../lib/source.js";

const MOST = 4; // pieces of advice that are shown
const LEAST = 0.01; // of the time; smaller parts are not listed
const FAR = 1.5; // times what was recorded
const answer = signal(null);
const problem = signal("");
const busy = signal(false);

/** The server's own targets, if it has some. */
async function targets() {
  try {
    const shown = await (await api("/../targets")).json();
    return (shown.data ?? []).map((one) => one.target);
  } catch {
    return [];
  }
}

async function look() {
  busy.value = true;
  problem.value = "";
  try {
    const own = description.value.kind === "live" ? await targets() : [];
    const found = await post("v1/inspect/doctor", { targets: own });
    answer.value = { ...found, of: description.value.engine_id };
  } catch (error) {
    problem.value = error.message;
  }
  busy.value = false;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
/** As the page writes it. */
const said = (text, most) => foreign(text, most).replace(/(\d)%/g, "$1\u00a0%").replaceAll("`", "");
const percent = (share) => `${Math.round(100 * share)}\u00a0%`.replace("-", "\u2212");
const change = ({ figure, before, after }) => `${figure} ${time(before)} → ${time(after)}`;

const Effects = ({ proof }) => {
  const [main, ...others] = proof.effects;
  return html`<p>
      ${change(main)} (${time(main.low)} to ${time(main.high)})${others
        .map((one) => `, ${change(one)}`)
        .join("")}
    </p>
    ${proof.note && html`<p class="muted">${said(capital(proof.note), 400)}.</p>`}`;
};

const Advice = ({ found }) =>
  html`<section class="panel foresight">
    <h2>What helps</h2>
    ${found.advice.slice(0, MOST).map(
      (proof, at) =>
        html`<div key=${proof.change} class="advice">
          <p class="tools command">
            <b>${at ? "Or" : "Do"}</b>${
              proof.change.startsWith("--")
                ? html`<code>${proof.change}</code>
                    <button onClick=${() => copy(proof.change, "the flag")}>Copy</button>`
                : proof.change
            }
          </p>
          <${Effects} proof=${proof} />
        </div>`,
    )}
    ${found.look_at.map((where) => html`<p key=${where}>${said(capital(where), 400)}.</p>`)}
    ${
      !found.advice.length &&
      html`<p>
        ${found.refused.length ? "Nothing that was tried would help." : "Nothing was tried."}
      </p>`
    }
    ${
      found.refused.length > 0 &&
      html`<details>
        <summary>Tried, no advice: ${count(found.refused.length)}</summary>
        <dl class="facts plan-others">
          ${found.refused.map(
            (proof) =>
              html`<dt key=${proof.change}>${proof.change}</dt>
                <dd>${said(proof.verdict, 400)}</dd>`,
          )}
        </dl>
      </details>`
    }
  </section>`;

const Causes = ({ found }) =>
  html`<section class="panel foresight">
    <h2>Causes</h2>
    <p class="muted">
      Read off how long these steps took, by what was in them. How near steps of now come to the
      device's limits says Live.
    </p>
    ${found.causes.slice(0, MOST).map(
      (cause, at) =>
        html`<div key=${cause.cause}>
          <p>
            <b>${at ? (cause.is_floor ? "Otherwise" : "Also") : "First"}:</b> ${cause.title}${" "}
            <span class="muted">${percent(cause.share)} of the requests' time</span>
          </p>
          <ul class="muted">
            ${cause.evidence.map((line) => html`<li key=${line}>${said(line, 300)}</li>`)}
          </ul>
        </div>`,
    )}
    ${found.ttft_spike.map((line) => html`<p key=${line}>${said(capital(line), 400)}.</p>`)}
  </section>`;

const Time = ({ found }) => {
  const total = Object.values(found.time).reduce((sum, seconds) => sum + seconds, 1e-9);
  return html`<section class="panel whypanel">
    <h2>Where the requests' time went</h2>
    <ul class="waits">
      ${Object.entries(found.time)
        // Less than nothing: steps that were shorter than usual. All add up to 100 %.
        .filter(([, seconds]) => Math.abs(seconds) / total >= LEAST)
        .sort((one, other) => other[1] - one[1])
        .map(
          ([part, seconds]) =>
            html`<li key=${part}>
              <span>${seconds < 0 ? part.replace("slower", "faster") : part}</span>
              <span class="bar" aria-hidden="true"
                ><b
                  class="waiting"
                  style=${{ width: `${Math.max(0, Math.min(100, (100 * seconds) / total))}%` }}
                ></b
              ></span>
              <span class="num">${percent(seconds / total)}</span>
            </li>`,
        )}
    </ul>
  </section>`;
};

const valueOf = ({ target, value }) =>
  /^(ttft|tpot|e2el)/.test(target) ? time(value) : short(value);

const Sure = ({ found: { replay, windows, figures, targets: judged } }) =>
  html`<section class="panel foresight">
    <h2>How sure</h2>
    <p>
      ${many(windows[0].requests, "request")} in ${many(windows[0].steps, "step")} of${" "}
      ${time(windows[0].seconds)}.${" "}
      ${
        replay.requests
          ? `${count(replay.requests)} were replayed; step times fit within` +
            ` ${percent(replay.step_time_error)} (median). Unchanged, the replay has` +
            ` ${replay.figure} ${time(replay.replayed)}, the recording ${time(replay.recorded)}.`
          : "Nothing was replayed."
      }
    </p>
    <dl class="facts">
      ${Object.entries(figures).map(
        ([name, seconds]) =>
          html`<dt key=${name}>${name}</dt>
            <dd>${time(seconds)}</dd>`,
      )}
    </dl>
    ${judged.map(
      (one) =>
        html`<p key=${one.target} class=${one.missed ? "held" : ""}>
          Target ${one.target}: ${one.missed ? "missed" : "met"} (${valueOf(one)})
        </p>`,
    )}
  </section>`;

const lead = (found) => {
  const [cause] = found.causes;
  const [first] = found.advice;
  const helps = doubt(found) ? "What may help" : "What helps";
  const help = first ? ` ${helps}: ${first.change}.` : "";
  return cause ? `${capital(cause.title)}.${help}` : "No cause.";
};

/** Where the replay of what ran is far from what ran, its figures say little. */
const doubt = ({ replay: { requests, replayed, recorded } }) =>
  requests > 0 && recorded > 0 && Math.max(replayed / recorded, recorded / replayed) >= FAR;

const Doubt = ({ replay: { figure, replayed, recorded, step_time_error } }) =>
  html`<section class="panel foresight">
    <h2>Rely on the causes, not on the figures</h2>
    <p>
      With nothing changed, the replay has ${figure} ${time(replayed)}, the recording${" "}
      ${time(recorded)}. Causes are read off what ran; the figures under "What helps" are the
      replay's, for which a step lasts as long as steps of its size mostly did: half of these
      within ${percent(step_time_error)}. That is far off where few requests ran, or where steps
      are short and other programs take the processor. To know more:
    </p>
    <ul>
      <li>Look again after a minute or two of traffic of one kind.</li>
      <li>
        Record for longer, and replay all of it: start the server
        with${" "}<code>--record steps.jsonl</code>, then run${" "}
        <code>twostroke doctor steps.jsonl</code>.
      </li>
      <li>
        Or try it: start the server with the flag, send the same traffic, look again, and compare
        what was recorded then: it stands under "How sure".
      </li>
    </ul>
  </section>`;

const command = () =>
  description.value?.kind === "live"
    ? `twostroke doctor ${new URL("../", document.baseURI).href}`
    : "twostroke doctor steps.jsonl";

export const DoctorPage = view(() => {
  const found = answer.value?.of === description.value?.engine_id ? answer.value : null;
  if (!seesAll()) {
    return html`<p class="empty">
      A diagnosis replays the requests of all keys: an admin key shows it.
    </p>`;
  }
  const title = busy.value
    ? "Replaying the latest steps, with one flag changed after the other."
    : found
      ? lead(found)
      : "What binds this server, and which flag helps?";
  return html`<p class="lead" aria-live="polite">${title}</p>
    <p class="tools">
      <button disabled=${busy.value || !description.value} onClick=${look}>
        ${found ? "Look again" : "Look"}
      </button>
      <span class="muted"
        >at the latest 4,096 steps, in a process beside the server; nothing is changed</span
      >
    </p>
    ${problem.value && html`<p class="held" role="alert">${foreign(problem.value, 400)}</p>`}
    ${
      found
        ? html`${doubt(found) && html`<${Doubt} replay=${found.replay} />`}
            <div class="columns"><${Advice} found=${found} /><${Causes} found=${found} /></div>
            <div class="columns"><${Time} found=${found} /><${Sure} found=${found} /></div>`
        : html`<section class="panel empty">
              <p>
                It divides each second of each request by its cause, tries flags against the causes
                by replaying what was recorded, and names those that help, each with its effect. The
                same on the command line, over all steps:
              </p>
              <p class="tools command">
                <code>${command()}</code>
                <button onClick=${() => copy(command(), "the command")}>Copy</button>
              </p>
            </section>
            <${DemoWhereEmpty} />`
    }`;
});
