// Markdown as elements: marked reads it, Preact writes it. No text ever becomes HTML.

import { html, signal, view } from "../../lib/html.js";
import { copy } from "../../lib/copy.js";

const LONGEST = 200_000; // characters that are read as Markdown; more is shown as it came
const SAFE = ["http:", "https:", "mailto:"];
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const ENTITY = /&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,6}));/gi;

/** The library, once it is there; only this page loads it. */
const marked = signal(null);
let loading = false;

export async function loadMarkdown() {
  if (loading) return;
  loading = true;
  marked.value = await import("../../vendor/marked.esm.js");
}

/** A text with its entities as characters; unknown ones stay as they are. */
function decoded(text) {
  return text.replace(ENTITY, (whole, decimal, hexadecimal, name) => {
    if (name) return NAMED[name.toLowerCase()] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hexadecimal, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
}

/** An address that a link may lead to, or null. */
function safe(href) {
  try {
    const url = new URL(decoded(href));
    return SAFE.includes(url.protocol) ? url.href : null;
  } catch {
    return null; // it leads nowhere by itself
  }
}

const all = (tokens) => (tokens ?? []).map(element);

const Link = ({ href, children }) => {
  const address = safe(href);
  return address
    ? html`<a href=${address} target="_blank" rel="noopener noreferrer">${children}</a>`
    : html`<span>${children}</span>`;
};

const Code = ({ text, lang }) => {
  const language = /^[\w+#.-]{1,24}/.exec(lang ?? "")?.[0] ?? "";
  return html`<div class="code">
    <p>
      <span class="muted">${language || "text"}</span>
      <button class="quiet" onClick=${() => copy(text, "code")}>Copy</button>
    </p>
    <pre tabindex="0" aria-label=${`Code, ${language || "text"}`} role="region">${text}</pre>
  </div>`;
};

const Table = ({ token }) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
    <table>
      <thead>
        <tr>
          ${token.header.map(
            (cell) => html`<th class=${cell.align ?? ""}>${all(cell.tokens)}</th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${token.rows.map(
          (row) =>
            html`<tr>
              ${row.map((cell) => html`<td class=${cell.align ?? ""}>${all(cell.tokens)}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;

function List({ token }) {
  const items = token.items.map(
    (item) =>
      html`<li>
        ${item.task && html`<span>${item.checked ? "[x] " : "[ ] "}</span>`}${all(item.tokens)}
      </li>`,
  );
  const start = Number(token.start) || 1;
  return token.ordered
    ? html`<ol start=${start}>
        ${items}
      </ol>`
    : html`<ul>
        ${items}
      </ul>`;
}

/** What each kind of token becomes; a kind that is not here is its own source text. */
const ELEMENTS = {
  space: () => null,
  def: () => null,
  checkbox: () => null, // its item says it
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  code: (token) => html`<${Code} ...${token} />`,
  codespan: (token) => html`<code>${token.text}</code>`,
  heading: (token) =>
    html`<p class=${`h h${token.depth}`} role="heading" aria-level=${Math.min(6, token.depth + 2)}>
      ${all(token.tokens)}
    </p>`,
  paragraph: (token) => html`<p dir="auto">${all(token.tokens)}</p>`,
  blockquote: (token) => html`<blockquote>${all(token.tokens)}</blockquote>`,
  list: (token) => html`<${List} token=${token} />`,
  table: (token) => html`<${Table} token=${token} />`,
  strong: (token) => html`<strong>${all(token.tokens)}</strong>`,
  em: (token) => html`<em>${all(token.tokens)}</em>`,
  del: (token) => html`<del>${all(token.tokens)}</del>`,
  link: (token) => html`<${Link} href=${token.href}>${all(token.tokens)}<//>`,
  image: (token) => html`<${Link} href=${token.href}>${token.text || "picture"}<//>`,
  escape: (token) => token.text,
  text: (token) => (token.tokens ? all(token.tokens) : decoded(token.text)),
};

const element = (token) =>
  Object.hasOwn(ELEMENTS, token.type) ? ELEMENTS[token.type](token) : token.raw;

export const Markdown = view(({ text }) => {
  const library = marked.value;
  if (!library || text.length > LONGEST) return html`<p class="plain" dir="auto">${text}</p>`;
  return html`<div class="markdown">${all(library.lexer(text, { gfm: true, breaks: true }))}</div>`;
});
