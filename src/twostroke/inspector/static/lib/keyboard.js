// Keys that work on every page; a page adds its own while it is shown.

import { signal } from "./html.js";
import { go, page } from "./address.js";
import { stepBy, toggle, toNow } from "./source.js";

export const helpShown = signal(false);
let own = {};
let awaitsPage = false;

/** What `w a s d` do on this page. */
export function useKeys(keys) {
  own = keys;
  return () => {
    if (own === keys) own = {};
  };
}

export const COMMON = [
  ["g, then a letter", "go to a page"],
  ["/", "find a request; Enter searches all that is remembered"],
  ["space", "pause or go on"],
  [".", "one step on"],
  [",", "one step back"],
  ["f", "follow: to now"],
  ["w a s d", "zoom in, left, zoom out, right"],
  ["c", "in the timeline: compare with other settings, and back"],
  ["arrows", "in the timeline or the block map (tab leads there): select the next one"],
  ["e", "copy or save tables and figures, print"],
  ["n p", "in Learn: the next chapter, the one before"],
  ["esc", "close, deselect"],
  ["?", "this help"],
];

export function listen(pages, onEscape, onShare) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape") {
      if (field) field.blur();
      helpShown.value = false;
      onEscape();
      return;
    }
    if (field && !(field.type === "range" && event.key !== " ")) return;
    if (awaitsPage) {
      awaitsPage = false;
      const found = pages.find((candidate) => candidate.key === event.key.toLowerCase());
      if (found) go(found.name);
      return;
    }
    const action = {
      g: () => {
        awaitsPage = true;
      },
      "/": () => document.getElementById("find")?.focus(),
      "?": () => {
        helpShown.value = !helpShown.value;
      },
      ".": () => stepBy(1),
      ",": () => stepBy(-1),
      f: toNow,
      e: onShare,
      ...own,
    }[event.key];
    if (event.key === " " && !event.target.closest("button, a, summary")) {
      event.preventDefault();
      toggle();
    } else if (action) {
      event.preventDefault();
      action();
    }
  });
}

export const isPage = (name) => page.value === name;
