// What goes with every request of a conversation: system prompt, parameters, tools.

import { html, view } from "../../lib/html.js";
import { copy } from "../../lib/copy.js";
import { address, hasKey } from "../../lib/source.js";
import { changes, current, pathOf, save, touch } from "./conversations.js";
import { PATH, bodyFor, models, toolsOf } from "./sending.js";

/** Fields of the request; empty ones are left to the server. */
const FIELDS = [
  ["temperature", "Temperature", "any"],
  ["top_p", "Top-p", "any"],
  ["top_k", "Top-k", "1"],
  ["min_p", "Min-p", "any"],
  ["max_tokens", "Most tokens", "1"],
  ["seed", "Seed", "1"],
  ["presence_penalty", "Presence", "any"],
  ["frequency_penalty", "Frequency", "any"],
  ["repetition_penalty", "Repetition", "any"],
];
const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather in a city now.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
      },
    },
  },
];

function set(name, value) {
  const chat = current.value;
  chat.settings = { ...chat.settings, [name]: value };
  touch();
  save(chat, false);
}

function setValue(name, value) {
  const { [name]: _, ...rest } = current.value.settings.values;
  set("values", value === "" || value === undefined ? rest : { ...rest, [name]: value });
}

const numberFrom = ({ value }) => (value.trim() === "" ? "" : Number(value));

/** What is wrong with the text of the tools; empty where nothing is. */
function wrongTools(text) {
  try {
    toolsOf(text);
    return "";
  } catch (error) {
    return error.message;
  }
}

const Model = view(() => {
  const { model } = current.value.settings.values;
  if (models.value.length < 2) return null;
  return html`<label class="field"
    ><span>Model</span>
    <select value=${model ?? ""} onChange=${(event) => setValue("model", event.target.value)}>
      <option value="">the server's first</option>
      ${models.value.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label
  >`;
});

/** The next request as a command. */
function curl() {
  const chat = current.value;
  const path = pathOf(chat);
  const asks = path.findLastIndex((node) => node.role !== "assistant");
  const body = JSON.stringify(bodyFor(chat, path.slice(0, asks + 1)));
  const url = new URL(address(`/../../${PATH}`)).href;
  const key = hasKey() ? ' -H "Authorization: Bearer $TWOSTROKE_API_KEY"' : "";
  const data = body.replaceAll("'", "\\u0027");
  return `curl -N ${url}${key} -H 'Content-Type: application/json' -d '${data}'`;
}

export const Settings = view(() => {
  changes.value;
  const { system, tools, thoughts, fit, values } = current.value.settings;
  const problem = wrongTools(tools);
  return html`<section class="settings panel" aria-label="Settings">
    <h2>Settings</h2>
    <label class="tall"
      ><span>System prompt</span>
      <textarea
        rows="4"
        dir="auto"
        value=${system}
        placeholder="None"
        onInput=${(event) => set("system", event.target.value)}
      ></textarea>
    </label>
    <${Model} />
    ${FIELDS.map(
      ([name, title, step]) =>
        html`<label key=${name} class="field"
          ><span>${title}</span>
          <input
            type="number"
            step=${step}
            value=${values[name] ?? ""}
            placeholder="default"
            onInput=${(event) => setValue(name, numberFrom(event.target))}
        /></label>`,
    )}
    <label class="field"
      ><span>Thoughts</span>
      <select value=${thoughts} onChange=${(event) => set("thoughts", event.target.value)}>
        <option value="">default</option>
        <option value="on">on</option>
        <option value="off">off</option>
      </select></label
    >
    <label class="check"
      ><input
        type="checkbox"
        checked=${fit}
        onChange=${(event) => set("fit", event.target.checked)}
      />
      leave out the oldest turns where not all fit</label
    >
    <label class="tall"
      ><span>Tools (JSON)</span>
      <textarea
        rows="3"
        class="mono"
        spellcheck="false"
        value=${tools}
        placeholder="None"
        onInput=${(event) => set("tools", event.target.value)}
      ></textarea>
    </label>
    ${problem && html`<p class="held" role="alert">${problem}</p>`}
    <p class="acts">
      ${
        !tools.trim() &&
        html`<button class="quiet" onClick=${() => set("tools", JSON.stringify(EXAMPLE, null, 2))}>
          An example
        </button>`
      }
      ${
        current.value.nodes.length > 0 &&
        html`<button
          class="quiet"
          disabled=${problem !== ""}
          onClick=${() => copy(curl(), "command")}
        >
          Copy as curl
        </button>`
      }
    </p>
  </section>`;
});
