// Find a request by its id, tenant or labels: among those shown while one types, then everywhere.

import { html, signal, view } from "../lib/html.js";
import { filter, go, page, selectRequest } from "../lib/address.js";
import { count, foreign, shortId } from "../lib/format.js";
import { description, json, seek } from "../lib/source.js";
import { store } from "../lib/store.js";

const MOST = 8;
const SHOWN_ON = ["live", "timeline", "request", "kv", "speculation"]; // pages about a selection

const narrow = matchMedia("(max-width: 640px)"); // its field has no room for more words

/** What a search answered, or in `problem` why it could not; null before any. */
const found = signal(null);

export function closeFound() {
  found.value = null;
}

/** Go to the moment at which a request had ended, or to the latest one. */
function jump(request) {
  closeFound();
  filter.value = "";
  if (!store.requests.has(request.request_id)) seek(request.step);
  selectRequest(request.request_id);
  if (!SHOWN_ON.includes(page.value)) go("request");
}

async function search(event) {
  event.preventDefault();
  const text = filter.value.trim();
  if (!text) return;
  try {
    const answer = await json(`/find?${new URLSearchParams({ text, count: MOST })}`);
    if (filter.value.trim() !== text) return; // something else is wanted by now
    if (answer.requests.length === 1) jump(answer.requests[0]);
    else found.value = { text, ...answer };
  } catch (error) {
    found.value = { text, requests: [], left_out: 0, problem: error.message };
  }
}

const aboutRequest = ({ request_id: id, tenant, labels }) =>
  [shortId(id), tenant, ...Object.values(labels)]
    .filter(Boolean)
    .map((text) => foreign(text, 24))
    .join("  ");

const Found = view(() => {
  const answer = found.value;
  if (!answer) return null;
  const where = description.value?.kind === "live" ? "what the server remembers" : "the recording";
  const more = answer.left_out;
  const none = answer.problem ?? `No request in ${where} has ${foreign(answer.text, 40)}.`;
  return html`<section class="found" aria-label="Requests found">
    ${
      answer.requests.length
        ? html`<ul>
            ${answer.requests.map(
              (request) =>
                html`<li key=${request.request_id}>
                  <button class="link mono" onClick=${() => jump(request)}>
                    ${aboutRequest(request)}
                  </button>
                </li>`,
            )}
          </ul>`
        : html`<p role="status">${none}</p>`
    }
    ${more > 0 && html`<p class="muted">and ${count(more)} more: type more of it</p>`}
  </section>`;
});

export const Find = view(
  () =>
    html`<form class="finding" role="search" onSubmit=${search}>
      <label class="hidden" for="find">Find a request</label>
      <input
        id="find"
        class="find"
        type="search"
        maxlength="200"
        placeholder=${narrow.matches ? "Find" : "Find a request  /"}
        value=${filter.value}
        onInput=${(event) => {
          filter.value = event.target.value;
          closeFound();
        }}
      />
      <${Found} />
    </form>`,
);
