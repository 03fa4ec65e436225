// Markdown as elements: marked reads it, Preact writes it. No text ever becomes HTML.

import { html, signal, view } from "../../lib/html.js";
import { copy } from "../../lib/copy.js";

const LONGEST = 200_000; // characters that are read as Markdown; more is shown as it came
const DEEPEST = 32; // elements within each other
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

const cells = (row, tag, inner) =>
  row.map((cell) => html`<${tag} class=${cell.align ?? ""}>${inner(cell.tokens)}<//>`);

const table = (token, inner) =>
  html`<div class="scroll" tabindex="0" role="region" aria-label="Table">
    <table>
      <thead>
        <tr>
          ${cells(token.header, "th", inner)}
        </tr>
      </thead>
      <tbody>
        ${token.rows.map(
          (row) =>
            html`<tr>
              ${cells(row, "td", inner)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;

function list(token, inner) {
  const items = token.items.map((item) => {
    const box = item.task && html`<span>${item.checked ? "[x] " : "[ ] "}</span>`;
    return html`<li>${box}${inner(item.tokens)}</li>`;
  });
  const start = Number(token.start) || 1;
  return token.ordered
    ? html`<ol start=${start}>
        ${items}
      </ol>`
    : html`<ul>
        ${items}
      </ul>`;
}

const heading = (token, inner) =>
  html`<p class=${`h h${token.depth}`} role="heading" aria-level=${Math.min(6, token.depth + 2)}>
    ${inner(token.tokens)}
  </p>`;

/**
 * What each kind of token becomes, given what makes elements of those within; a kind that is not
 * here is its own source text.
 */
const ELEMENTS = {
  space: () => null,
  def: () => null,
  checkbox: () => null, // its item says it
  hr: () => html`<hr />`,
  br: () => html`<br />`,
  code: (token) => html`<${Code} ...${token} />`,
  codespan: (token) => html`<code>${token.text}</code>`,
  heading,
  paragraph: (token, inner) => html`<p dir="auto">${inner(token.tokens)}</p>`,
  blockquote: (token, inner) => html`<blockquote>${inner(token.tokens)}</blockquote>`,
  list,
  table,
  strong: (token, inner) => html`<strong>${inner(token.tokens)}</strong>`,
  em: (token, inner) => html`<em>${inner(token.tokens)}</em>`,
  del: (token, inner) => html`<del>${inner(token.tokens)}</del>`,
  link: (token, inner) => html`<${Link} href=${token.href}>${inner(token.tokens)}<//>`,
  image: (token) => html`<${Link} href=${token.href}>${token.text || "picture"}<//>`,
  escape: (token) => token.text,
  text: (token, inner) => (token.tokens ? inner(token.tokens) : decoded(token.text)),
};

function element(token, depth) {
  if (depth > DEEPEST || !Object.hasOwn(ELEMENTS, token.type)) return token.raw;
  const inner = (tokens) => (tokens ?? []).map((one) => element(one, depth + 1));
  return ELEMENTS[token.type](token, inner);
}

/** A text's elements; null where it is not to be read as Markdown. */
function elements(library, text) {
  if (!library || text.length > LONGEST) return null;
  try {
    return library.lexer(text, { gfm: true, breaks: true }).map((token) => element(token, 0));
  } catch {
    return null; // nested deeper than the library reads
  }
}

const Drawn = view(({ text }) => {
  const found = elements(marked.value, text);
  return found
    ? html`<div class="markdown">${found}</div>`
    : html`<p class="plain" dir="auto">${text}</p>`;
});

/** Read again where its text has changed, not whenever another answer has. */
export class Markdown extends Drawn {
  shouldComponentUpdate(props, state) {
    return props.text !== this.props.text || state !== this.state;
  }
}
