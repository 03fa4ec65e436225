// Playground: what the next token is drawn from, and what each parameter makes of it.

import { Component, html, view } from "../lib/html.js";
import { Canvas } from "../lib/canvas.js";
import { copy } from "../lib/copy.js";
import { count, many, short } from "../lib/format.js";
import { address, description, hasKey } from "../lib/source.js";
import { Bars, rowsShown } from "./playground_bars.js";
import { drawCumulative } from "./playground_drawing.js";
import {
  OFF,
  SLIDERS,
  ask,
  asChat,
  back,
  body,
  change,
  changeAll,
  changeSeed,
  changeText,
  enter,
  forward,
  isBehind,
  leave,
  marked,
  node,
  params,
  problem,
  prompt,
  seed,
  shape,
  takeMarked,
  text,
} from "./playground_state.js";
import { Answer } from "./playground_answer.js";
import { ABOUT, FILTERS, aboutShape } from "./playground_words.js";

const HOW_MANY_SEEDS = 2 ** 31;

const How = ({ children }) =>
  html`<details class="how">
    <summary aria-label="What is this?"></summary>
    <p>${children}</p>
  </details>`;

const Prompt = view(
  () =>
    html`<section class="panel">
      <h2>
        <label for="prompt">Prompt</label>
        <span class="muted num"
          >${prompt.value ? many(prompt.value.ids.length, "token") : ""}</span
        >
      </h2>
      <textarea
        id="prompt"
        rows="3"
        spellcheck="false"
        value=${text.value}
        onInput=${(event) => changeText(event.target.value)}
      ></textarea>
      <label class="check"
        ><input
          type="checkbox"
          checked=${asChat.value}
          onChange=${(event) => changeText(text.value, event.target.checked)}
        />
        as a message of a chat</label
      >
    </section>`,
);

const Slider = ({ slider, value }) => {
  const { name, title, min, max, step, off } = slider;
  const shown = name === "top_k" && value === 0 ? "all" : String(Number(value.toFixed(3)));
  return html`<div class=${`knob ${value === off ? "off" : ""}`}>
    <label for=${name}>${title}</label>
    <output class="num" for=${name}>${shown}${value === off ? " (off)" : ""}</output>
    <input
      id=${name}
      type="range"
      min=${min}
      max=${max}
      step=${step}
      value=${value}
      onInput=${(event) => change(name, Number(event.target.value))}
    />
  </div>`;
};

const Parameters = view(
  () =>
    html`<section class="panel parameters">
      <h2>
        Parameters
        <${How}>
          ${SLIDERS.map(
            ({ name, title }) => html`<span key=${name}><b>${title}.</b> ${ABOUT[name]} </span>`,
          )}
        <//>
      </h2>
      ${SLIDERS.map(
        (slider) =>
          html`<${Slider}
            key=${slider.name}
            slider=${slider}
            value=${params.value[slider.name]}
          />`,
      )}
      <div class="knob">
        <label for="seed">Seed</label>
        <input
          id="seed"
          class="find num"
          type="number"
          step="1"
          value=${seed.value}
          onInput=${(event) => changeSeed(event.target.valueAsNumber)}
        />
      </div>
      <p class="tools">
        <button onClick=${() => changeSeed(Math.floor(Math.random() * HOW_MANY_SEEDS))}>
          Another seed
        </button>
        <button class="quiet" onClick=${() => changeAll(OFF)}>All off</button>
      </p>
    </section>`,
);

const Stages = view(() => {
  const stages = shape.value?.stages;
  if (!stages) return null;
  const most = Math.log2(1 + stages[0].num_tokens);
  return html`<section class="panel stages">
    <h2>
      What each filter leaves
      <${How}>
        From top to bottom in the order in which they work. Tokens are those that could still be
        drawn, on a logarithmic scale. Entropy says how open the choice is: with 1 bit it is that
        of a coin, with 0 there is none.
      <//>
    </h2>
    <table class="list">
      <colgroup>
        <col style=${{ width: "92px" }} />
        <col />
        <col style=${{ width: "64px" }} />
        <col style=${{ width: "64px" }} />
      </colgroup>
      <thead>
        <tr>
          <th>after</th>
          <th><span class="hidden">as a bar</span></th>
          <th class="n">tokens</th>
          <th class="n">bits</th>
        </tr>
      </thead>
      <tbody>
        ${stages.map(
          ({ name, num_tokens: tokens, entropy }) =>
            html`<tr key=${name}>
              <td>${FILTERS[name] ?? name}</td>
              <td>
                <span class="bar" aria-hidden="true"
                  ><i
                    class="decode"
                    style=${{ left: 0, width: `${(100 * Math.log2(1 + tokens)) / most}%` }}
                  ></i
                ></span>
              </td>
              <td class="n">${count(tokens)}</td>
              <td class="n">${short(entropy)}</td>
            </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
});

const Draw = view(() => {
  const found = shape.value;
  if (!found) return null;
  const { seed: number, position, uniform } = found;
  const label =
    uniform === null
      ? "The likeliest token has the whole bar"
      : `Cumulative distribution by token id with a needle at ${uniform.toFixed(4)}`;
  const source =
    uniform === null
      ? "no random number at temperature 0"
      : `seed ${number}, position ${count(position)}: ${uniform.toFixed(4)}`;
  return html`<section class="panel draw">
    <h2>
      The draw
      <span class="muted num">${source}</span>
      <${How}>
        All tokens that can be drawn, side by side in the order of the vocabulary, each as wide as
        it is likely. Seed and position give one number from 0 to 1, always the same one, and the
        token is drawn in whose share it falls. Hatched: tokens that are not listed above.
      <//>
    </h2>
    <div style=${{ height: "68px" }}>
      <${Canvas} name="fill" label=${label} draw=${drawCumulative(found)} />
    </div>
  </section>`;
});

function asCurl() {
  const auth = hasKey() ? ' -H "Authorization: Bearer $TWOSTROKE_API_KEY"' : "";
  const sent = JSON.stringify(body(node.value)).replaceAll("'", "'\\''");
  const type = '-H "Content-Type: application/json"';
  return `curl -s${auth} ${type} '${address("/distribution")}' -d '${sent}'`;
}

const Copies = view(
  () =>
    html`<p class="copies">
      <button class="quiet" disabled=${!prompt.value} onClick=${() => copy(asCurl(), "command")}>
        Copy as curl
      </button>
      <button
        class="quiet"
        disabled=${!shape.value}
        onClick=${() => {
          const { node: _, ...answer } = shape.value;
          copy(JSON.stringify(answer, null, 2), "JSON");
        }}
      >
        Copy as JSON
      </button>
    </p>`,
);

const Lead = view(() => {
  if (problem.value) {
    return html`<p class="banner" role="alert">
      ${problem.value}. <button onClick=${() => ask()}>Ask again</button>
    </p>`;
  }
  if (node.value.ends) {
    return html`<p class="lead drawn" aria-live="polite">
      The answer ends here: nothing is drawn after its end. Go back, and another token may go on.
    </p>`;
  }
  if (!shape.value) {
    const empty = !text.value && !asChat.value;
    const words = empty ? "Type a prompt: the model goes on from it." : "Asking";
    return html`<p class="lead drawn">${words}</p>`;
  }
  return html`<p class="lead drawn" aria-live="polite">${aboutShape(shape.value)}</p>`;
});

const Nothing = view(
  () =>
    html`<section class="panel empty">
      <p>
        This page asks the model itself what it would say next, so it needs a live one. This is
        a ${description.value.kind}: it has steps and times, but no model. Start a server and open
        its page:
      </p>
      <pre>twostroke serve</pre>
    </section>`,
);

/** Keys of this page, where no field and no button takes them. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const own = "input, textarea, select, dialog";
  if (event.target.closest?.(own)) return;
  if (event.key === "Enter" && event.target.closest?.("button, a, summary")) return;
  const rows = shape.value ? rowsShown(shape.value).map((token) => token.id) : [];
  const place = rows.indexOf(marked.value ?? shape.value?.token);
  const mark = (by) => {
    if (rows.length) marked.value = rows[Math.max(0, Math.min(rows.length - 1, place + by))];
  };
  const action = {
    Enter: takeMarked,
    ArrowLeft: back,
    ArrowRight: forward,
    ArrowUp: () => mark(-1),
    ArrowDown: () => mark(1),
  }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

class Live extends Component {
  componentDidMount() {
    addEventListener("keydown", onKey);
    addEventListener("hashchange", enter);
    enter();
  }

  componentWillUnmount() {
    removeEventListener("keydown", onKey);
    removeEventListener("hashchange", enter);
    leave();
  }

  render() {
    return html`<${Lead} />
      <div class="playground">
        <div><${Prompt} /><${Answer} /><${Stages} /></div>
        <div><${Bars} /><${Draw} /><${Copies} /></div>
        <div><${Parameters} /></div>
      </div>`;
  }
}

export const PlaygroundPage = view(() => {
  const found = description.value;
  if (!found) return html`<p class="empty">Opening</p>`;
  return found.kind === "live" ? html`<${Live} />` : html`<${Nothing} />`;
});
