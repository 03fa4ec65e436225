// A report as a file of its own: the page around it, over the JSON that the file holds.

import { html, render, view } from "../../lib/html.js";
import { isDark, toggleTheme } from "../../lib/canvas.js";
import { Report, opened } from "./report.js";
import { titleOf } from "./words.js";

const report = opened(JSON.parse(document.getElementById("report").textContent));

const Page = view(
  () =>
    html`<header class="mailed">
        <div class="brand">
          <h1>twostroke <span class="model">report of a simulation</span></h1>
        </div>
        <button class="quiet" onClick=${toggleTheme}>${isDark() ? "Light" : "Dark"}</button>
      </header>
      <main><${Report} ...${report} /></main>`,
);

document.title = titleOf(report.runs);
document.getElementById("app").replaceChildren();
render(html`<${Page} />`, document.getElementById("app"));
