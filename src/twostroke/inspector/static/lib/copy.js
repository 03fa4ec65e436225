// What is shown, as something to use elsewhere.

import { html, signal, view } from "./html.js";
import { address, hasKey } from "./source.js";

const told = signal("");

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    tell(`${what} copied`);
  } catch {
    tell("the browser does not let this page copy");
  }
}

/** Say something for two seconds. */
export function tell(words) {
  told.value = words;
  setTimeout(() => {
    told.value = "";
  }, 2000);
}

/** The command that fetches what is shown; with a `body` it posts that. */
export function curl(path, body) {
  const key = hasKey() ? ' -H "Authorization: Bearer $TWOSTROKE_API_KEY"' : "";
  const sent = body
    ? ` -H 'Content-Type: application/json' -d '${JSON.stringify(body).replaceAll("'", "\\u0027")}'`
    : "";
  return `curl -s${key}${sent} '${address(path).replaceAll("'", "%27")}'`;
}

export const CopyButtons = view(
  ({ path, body, value }) =>
    html`<p class="copies">
      <button class="quiet" onClick=${() => copy(curl(path, body), "command")}>
        Copy as curl
      </button>
      <button class="quiet" onClick=${() => copy(JSON.stringify(value(), null, 2), "JSON")}>
        Copy as JSON
      </button>
    </p>`,
);

export const Told = view(() => html`<p class="told" role="status">${told.value}</p>`);
