// The report of the simulation that is open: the page that `--output-html` writes as a file.

import { html, signal, view } from "../lib/html.js";
import { description, json } from "../lib/source.js";
import { Report, opened } from "./report/report.js";

const report = signal(null);
const failure = signal("");
let askedFor = null;

async function ask() {
  const source = description.value?.engine_id;
  if (!source || askedFor === source) return;
  askedFor = source;
  try {
    report.value = opened(await json("/report"));
    failure.value = "";
  } catch (error) {
    askedFor = null;
    failure.value = error.message;
  }
}

export const ReportPage = view(() => {
  ask();
  if (report.value) return html`<${Report} ...${report.value} />`;
  return html`<p class="panel empty">
    ${failure.value ? `There is no report to show: ${failure.value}.` : "Opening the report."}
  </p>`;
});
