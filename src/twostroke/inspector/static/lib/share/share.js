// Copy and save what a page shows: its tables as TSV, its figures as PNG or SVG.

import { html, signal, view } from "../html.js";
import { page } from "../address.js";
import { colours, figures } from "../canvas.js";
import { copy, tell } from "../copy.js";
import { SvgPen } from "./svg_pen.js";

/** What can be copied, while the dialog is open; null while it is closed. */
const offered = signal(null);

export function openShare() {
  const tables = [...document.querySelectorAll("main table, aside table")].map((table) => ({
    kind: "table",
    name: nameOf(table),
    table,
  }));
  const drawn = figures()
    .filter((figure) => figure.box?.width && !figure.element.closest("table"))
    .map((figure) => ({ kind: "figure", name: figure.props.label, figure }));
  offered.value = [...drawn, ...tables];
}

/** Its own label, or the heading of its panel. */
function nameOf(table) {
  const above = table.closest(".panel, aside")?.querySelector("h2");
  return table.getAttribute("aria-label") ?? (heading(above) || "Table");
}

const words = (element) => element?.textContent.replace(/\s+/g, " ").trim();
/** What stands in a heading, but for the explanation behind its question mark. */
const heading = (element) =>
  [...(element?.childNodes ?? [])]
    .filter((part) => part.nodeName !== "DETAILS")
    .map(words)
    .filter(Boolean)
    .join(", ");

/** Rows of cells, as spreadsheets paste them. */
export function tsv(table) {
  return [...table.rows]
    .map((row) => [...row.cells].map((cell) => plain(words(cell))).join("\t"))
    .join("\n");
}

/** No cell may begin a formula: a label comes from outside. */
const plain = (text) => (/^[=+@]|^-\D/.test(text) ? `'${text}` : text);

/** A figure as the text of an SVG file. */
export function svg(figure) {
  const { width, height } = figure.box;
  const pen = new SvgPen(width, height, document.createElement("canvas").getContext("2d"));
  const palette = colours();
  figure.props.draw(pen, width, height, palette);
  return pen.text(palette.panel);
}

/** A figure as a PNG of the screen's sharpness, on the panel's colour. */
function png({ element }) {
  const whole = document.createElement("canvas");
  whole.width = element.width;
  whole.height = element.height;
  const pen = whole.getContext("2d");
  pen.fillStyle = colours().panel;
  pen.fillRect(0, 0, whole.width, whole.height);
  pen.drawImage(element, 0, 0);
  return new Promise((resolve) => whole.toBlob(resolve, "image/png"));
}

async function copyPng(figure) {
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": png(figure) })]);
    tell("figure copied");
  } catch {
    tell("the browser does not let this page copy pictures: save it");
  }
}

function save(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `twostroke-${page.value}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const saveText = (text, type, ending) => save(new Blob([text], { type }), ending);

const FigureButtons = ({ figure }) =>
  html`<button onClick=${() => copyPng(figure)}>Copy PNG</button>
    <button onClick=${async () => save(await png(figure), "png")}>Save PNG</button>
    <button onClick=${() => saveText(svg(figure), "image/svg+xml", "svg")}>Save SVG</button>`;

const TableButtons = ({ table }) =>
  html`<button onClick=${() => copy(tsv(table), "table")}>Copy TSV</button>
    <button onClick=${() => saveText(tsv(table), "text/tab-separated-values", "tsv")}>
      Save TSV
    </button>`;

export const Share = view(() => {
  const items = offered.value;
  if (!items) return null;
  return html`<dialog
    aria-label="Copy and save"
    ref=${(element) => {
      if (element && !element.open) element.showModal();
    }}
    onClose=${() => {
      offered.value = null;
    }}
  >
    <h2>Copy and save</h2>
    ${
      items.length
        ? html`<ul class="share">
            ${items.map(
              (item, index) =>
                html`<li key=${index}>
                  <span>${item.name}</span>
                  ${item.kind === "figure"
                    ? html`<${FigureButtons} figure=${item.figure} />`
                    : html`<${TableButtons} table=${item.table} />`}
                </li>`,
            )}
          </ul>`
        : html`<p class="empty">This page shows no table and no figure now.</p>`
    }
    <p class="tools">
      <button onClick=${() => print()}>Print the page</button>
      <button
        onClick=${() => {
          offered.value = null;
        }}
      >
        Close
      </button>
    </p>
  </dialog>`;
});
