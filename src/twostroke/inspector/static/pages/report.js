// The report of the simulation that is open: the page that `--output-html` writes as a file.

import { askOnce } from "../lib/ask_once.js";
import { html, view } from "../lib/html.js";
import { Report, opened } from "./report/report.js";

const { answer: report, failure, ask } = askOnce("/report", opened);

export const ReportPage = view(() => {
  ask();
  if (report.value) return html`<${Report} ...${report.value} />`;
  return html`<p class="panel empty">
    ${failure.value ? `There is no report to show: ${failure.value}.` : "Opening the report."}
  </p>`;
});
