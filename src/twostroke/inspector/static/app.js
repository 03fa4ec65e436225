// The frame around all pages: navigation, drawer, time bar. A page is a file in pages/.

import { html, render, view } from "./lib/html.js";
import { extra, filter, keepAddress, page, readAddress, select, selected } from "./lib/address.js";
import { isDark, toggleTheme } from "./lib/canvas.js";
import { Told } from "./lib/copy.js";
import { Drawer } from "./lib/drawer.js";
import { foreign } from "./lib/format.js";
import { KEPT_PAGES, isKept } from "./lib/kept.js";
import { COMMON, helpShown, listen } from "./lib/keyboard.js";
import { listenForPopovers } from "./lib/popovers.js";
import { connection, description, playing, start, trouble, useKey } from "./lib/source.js";
import { DemoStrip } from "./demo/panel.js";
import { Find, closeFound } from "./frame/find.js";
import { Nav, Skip } from "./frame/nav.js";
import { Share, openShare } from "./lib/share/share.js";
import { TimeBar } from "./lib/timebar.js";
import { ChatPage } from "./pages/chat/chat.js";
import { Live } from "./pages/live.js";
import { Timeline } from "./pages/timeline.js";
import { RequestPage } from "./pages/request.js";
import { KvPage } from "./pages/kv.js";
import { PlaygroundPage } from "./pages/playground.js";
import { FleetPage } from "./pages/fleet.js";
import { SpeculationPage } from "./pages/speculation.js";
import { ModelPage } from "./pages/model.js";
import { DoctorPage } from "./pages/foresight/doctor.js";
import { PlanPage } from "./pages/foresight/plan.js";
import { ReportPage } from "./pages/report.js";
import { Learn } from "./pages/learn.js";

/** In the order of the navigation; `g` and `key` lead to a page. `kind` is what alone has it. */
const PAGES = [
  { name: "chat", title: "Chat", key: "c", content: ChatPage, kind: "live" },
  { name: "live", title: "Live", past: "Overview", key: "l", content: Live },
  { name: "timeline", title: "Timeline", key: "t", content: Timeline },
  { name: "request", title: "Request", key: "r", content: RequestPage },
  { name: "kv", title: "KV", key: "k", content: KvPage },
  { name: "model", title: "Model", key: "m", content: ModelPage },
  { name: "playground", title: "Next token", key: "p", content: PlaygroundPage },
  { name: "speculation", title: "Speculation", key: "s", content: SpeculationPage },
  { name: "fleet", title: "Fleet", key: "f", content: FleetPage },
  { name: "plan", title: "Plan", key: "n", content: PlanPage },
  { name: "doctor", title: "Doctor", key: "d", content: DoctorPage },
  { name: "report", title: "Report", key: "o", content: ReportPage, kind: "simulation" },
  { name: "learn", title: "Learn", key: "e", content: Learn },
];
const NAMES = isKept ? KEPT_PAGES : PAGES.map((item) => item.name);
/** Those that what is open has; a recording has nothing live. */
function offered() {
  const source = description.value?.kind;
  const isPast = source !== undefined && source !== "live";
  const has = ({ kind, name }) =>
    isKept ? KEPT_PAGES.includes(name) : kind === undefined || kind === source;
  return PAGES.filter(has).map((item) =>
    isPast && item.past ? { ...item, title: item.past } : item,
  );
}
const KINDS = { live: "live", recording: "recording", simulation: "simulation" };

const Source = view(() => {
  const found = description.value;
  const lost = connection.value === "lost";
  const past = found?.kind === "live" && !playing.value;
  const kind = past ? "paused" : KINDS[found?.kind];
  const word = lost ? "no connection" : found ? kind : "opening";
  const on = found?.kind === "live" && !past && !lost ? "on" : lost ? "off" : "";
  return html`<span class="state"
    ><i class=${`dot ${on}`}></i><span class="word">${word}</span></span
  >`;
});

const Header = view(() => {
  const found = description.value;
  const device = found?.configuration?.device;
  return html`<header>
    <div class="brand">
      <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
        <rect x="1" y="2" width="9" height="5" rx="1" fill="var(--prefill)" />
        <path d="M2 10v4M5 10v4M8 10v4M11 10v4M14 10v4" stroke="var(--decode)" stroke-width="1.6" />
      </svg>
      <h1>
        twostroke
        <span class="model"
          >${found ? foreign(found.name, 40) : ""}${
            device && html`<span class="wide"> on ${device}</span>`
          }</span
        >
      </h1>
    </div>
    <${Nav} items=${offered()} />
    <${Source} />
    <${Find} />
    <button class="quiet wide" onClick=${openShare}>Copy</button>
    <button
      class="quiet wide"
      onClick=${() => {
        helpShown.value = true;
      }}
    >
      Keys
    </button>
    <button class="quiet" onClick=${toggleTheme}>${isDark() ? "Light" : "Dark"}</button>
  </header>`;
});

const KeyForm = view(
  () =>
    html`<form
      class="panel"
      onSubmit=${(event) => {
        event.preventDefault();
        useKey(new FormData(event.target).get("key"));
      }}
    >
      <h2>This server asks for an API key</h2>
      <p class="empty">
        ${trouble.value}. An admin key shows all requests, any other key its own. It is kept until
        this tab is closed.
      </p>
      <p class="tools">
        <label for="key">Key</label>
        <input id="key" name="key" class="find" type="password" autocomplete="off" required />
        <button>Open</button>
      </p>
    </form>`,
);

const Lost = view(
  () =>
    connection.value === "lost" &&
    html`<p class="banner" role="alert">
      No connection to the server: ${trouble.value}. Trying again; what is shown is the last that
      came.
    </p>`,
);

const Help = view(
  () =>
    helpShown.value &&
    html`<dialog
      aria-label="Keys"
      ref=${(element) => {
        if (element && !element.open) element.showModal();
      }}
      onClose=${() => {
        helpShown.value = false;
      }}
    >
      <h2>Keys</h2>
      <table>
        <tbody>
          ${COMMON.map(
            ([key, what]) =>
              html`<tr key=${key}>
                <td><kbd>${key}</kbd></td>
                <td>${what}</td>
              </tr>`,
          )}
          ${offered().map(
            (item) =>
              html`<tr key=${item.name}>
                <td><kbd>g</kbd> <kbd>${item.key}</kbd></td>
                <td>${item.title}</td>
              </tr>`,
          )}
        </tbody>
      </table>
      <button
        onClick=${() => {
          helpShown.value = false;
        }}
      >
        Close
      </button>
    </dialog>`,
);

const Page = view(() => {
  if (connection.value === "key") return html`<${KeyForm} />`;
  const { content } = PAGES.find((item) => item.name === page.value) ?? PAGES[0];
  return html`<${content} key=${page.value} />`;
});

/** The page of a request says itself all that its drawer would. */
const hasDrawer = () =>
  selected.value && !(page.value === "request" && selected.value.kind === "request");

const App = view(
  () =>
    html`<div class="frame">
      <${Skip} /><${Header} />
      <main tabindex="-1"><${Lost} /><${DemoStrip} /><${Page} /></main>
      ${hasDrawer() ? html`<${Drawer} />` : null}
      <${TimeBar} />
      <${Help} /><${Share} /><${Told} />
    </div>`,
);

const step = readAddress(NAMES);
keepAddress(NAMES);
listenForPopovers();
listen(
  PAGES,
  () => {
    select(null);
    closeFound();
    filter.value = "";
    // A comparison is closed by its own button, and a conversation stays open.
    const { compare, from, to, chat } = extra.value;
    extra.value = { ...(chat && { chat }), ...(compare && { compare, from, to }) };
  },
  openShare,
);
document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
open(step);

function open(at) {
  if (at !== null) playing.value = false;
  start(at);
}
