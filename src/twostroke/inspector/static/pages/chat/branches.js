// Which of several versions of a message is shown, and its neighbours.

import { html, view } from "../../lib/html.js";
import { changes, current, showBranch, siblings } from "./conversations.js";

export const Branches = view(({ node, what }) => {
  changes.value;
  const all = siblings(current.value, node);
  if (all.length < 2) return null;
  const at = all.indexOf(node);
  const lead = (index, words, label) =>
    html`<button
      class="quiet"
      aria-label=${label}
      disabled=${!all[index]}
      onClick=${() => showBranch(current.value, all[index])}
    >
      ${words}
    </button>`;
  return html`<span class="versions"
    >${lead(at - 1, "‹", `The ${what} before`)}<span class="num">${at + 1} of ${all.length}</span
    >${lead(at + 1, "›", `The next ${what}`)}</span
  >`;
});
