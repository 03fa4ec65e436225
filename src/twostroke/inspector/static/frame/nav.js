// The pages by name; those that find no room stand in a menu, Learn before the others.

import { Component, effect, html, signal, view } from "../lib/html.js";
import { page } from "../lib/address.js";

const MORE_WIDTH = 84; // pixels of the menu's button, at least: it names the page that is shown

const open = signal(false);
/** How many names find room. */
const room = signal(Infinity);

const Tab = view(
  ({ item, isHidden }) =>
    html`<a
      href=${`#/${item.name}`}
      class=${isHidden ? "no-room" : ""}
      aria-current=${page.value === item.name ? "page" : null}
      onClick=${(event) => {
        open.value = false;
        if (event.ctrlKey || event.metaKey || event.shiftKey) return; // it opens beside this one
        event.preventDefault();
        page.value = item.name;
      }}
      >${item.title}</a
    >`,
);

const inMenu = (items) =>
  items.slice(room.value).sort((one, other) => (other.name === "learn") - (one.name === "learn"));

const Menu = view(({ items }) => {
  const rest = inMenu(items);
  if (!rest.length) return null;
  const here = rest.find((item) => item.name === page.value);
  return html`<div class="more">
    <button
      class=${`quiet ${here ? "here" : ""}`}
      aria-expanded=${open.value ? "true" : "false"}
      onClick=${() => {
        open.value = !open.value;
      }}
    >
      ${here ? here.title : "More"}
    </button>
    ${
      open.value &&
      html`<div>${rest.map((item) => html`<${Tab} key=${item.name} item=${item} />`)}</div>`
    }
  </div>`;
});

const Tabs = view(({ items }) =>
  items.map(
    (item, at) => html`<${Tab} key=${item.name} item=${item} isHidden=${at >= room.value} />`,
  ),
);

export class Nav extends Component {
  componentDidMount() {
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.nav);
    addEventListener("pointerdown", closeElsewhere);
    addEventListener("keydown", closeByKey, true);
    // The name of the page that is shown is bold, and so it is wider.
    this.stop = effect(() => {
      page.value;
      setTimeout(() => this.measure());
    });
  }

  componentDidUpdate() {
    this.measure();
  }

  componentWillUnmount() {
    this.observer.disconnect();
    this.stop();
    removeEventListener("pointerdown", closeElsewhere);
    removeEventListener("keydown", closeByKey, true);
  }

  /** Names are in their places also where they are not shown: their widths stay known. */
  measure() {
    if (!this.tabs) return;
    const widths = [...this.tabs.children].map((tab) => tab.offsetWidth);
    const whole = this.nav.clientWidth;
    let used = 0;
    let fitting = 0;
    const menu = Math.max(MORE_WIDTH, this.nav.querySelector(".more")?.offsetWidth ?? 0);
    const all = widths.reduce((sum, width) => sum + width, 0);
    for (const width of widths) {
      used += width;
      if (used > whole - (all > whole ? menu : 0)) break;
      fitting += 1;
    }
    room.value = fitting === widths.length ? Infinity : fitting;
  }

  render({ items }) {
    return html`<nav
      aria-label="Pages"
      ref=${(nav) => {
        this.nav = nav;
      }}
    >
      <div
        class="tabs"
        ref=${(tabs) => {
          this.tabs = tabs;
        }}
      >
        <${Tabs} items=${items} />
      </div>
      <${Menu} items=${items} />
    </nav>`;
  }
}

function closeElsewhere({ target }) {
  if (!target.closest?.("nav .more")) open.value = false;
}

function closeByKey(event) {
  if (event.key !== "Escape" || !open.value) return;
  open.value = false;
  document.querySelector("nav .more button")?.focus();
  event.stopPropagation(); // what is selected stays so
}

/** The first thing that Tab reaches. */
export const Skip = () =>
  html`<a
    class="skip"
    href="#/"
    onClick=${(event) => {
      event.preventDefault();
      document.querySelector("main").focus();
    }}
    >Skip to the page</a
  >`;
