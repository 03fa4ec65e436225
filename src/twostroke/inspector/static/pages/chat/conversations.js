// Conversations: trees of messages, kept in this browser, one entry of its storage each.
//
// A message that is edited, and an answer that is asked for again, become a sibling; `leaf` is the
// end of the branch that is shown.

import { signal } from "../../lib/html.js";
import { foreign } from "../../lib/format.js";

const PREFIX = "twostroke-chat:";
const MOST_KEPT = 100; // conversations
const MOST_STORED = 2_000_000; // characters of one of them, of the five million or so there are
const SAVE_MS = 500; // while an answer comes
const SILENT_MS = 10_000; // after which nothing writes an answer that another tab began
const TITLE = 60; // letters
const FULL = "This browser had no room left:";
export const NO_SETTINGS = { system: "", tools: "", thoughts: "", fit: true, values: {} };

const makeId = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

export const makeChat = (settings = NO_SETTINGS) => ({
  id: makeId(),
  changed: Date.now(),
  settings: structuredClone(settings),
  nodes: [],
  leaf: null,
});

/** All that are kept, the latest first; the one that is open may be new and not among them. */
export const chats = signal([]);
export const current = signal(makeChat());
/** Counts what changed inside a conversation; drawings read it. */
export const changes = signal(0);
export const trouble = signal("");

export const touch = () => {
  changes.value += 1;
};

// ---- the tree ----------------------------------------------------------------------------------

export const nodeOf = (chat, id) => chat.nodes.find((node) => node.id === id) ?? null;

/** The messages from the first one to a node, by default to the end of the branch shown. */
export function pathOf(chat, end = chat.leaf) {
  const path = [];
  for (let node = nodeOf(chat, end); node; node = nodeOf(chat, node.parent)) path.unshift(node);
  return path;
}

export const siblings = (chat, node) => chat.nodes.filter((one) => one.parent === node.parent);

/** Append a message behind another one, and show it. */
export function append(chat, parent, fields) {
  const node = { id: makeId(), parent, ...fields };
  chat.nodes.push(node);
  chat.leaf = node.id;
  chat.changed = Date.now();
  list(chat);
  touch();
  save(chat);
  return node;
}

/** Show the branch through a node: down to the latest message behind it. */
export function showBranch(chat, node) {
  let end = node;
  for (;;) {
    const next = chat.nodes.findLast((one) => one.parent === end.id);
    if (!next) break;
    end = next;
  }
  chat.leaf = end.id;
  touch();
  save(chat);
}

export function titleOf(chat) {
  const first = chat.nodes.find((node) => node.role === "user");
  return foreign(first?.content?.trim() || first?.documents?.[0]?.title || "New chat", TITLE);
}

// ---- what is kept ------------------------------------------------------------------------------

const timers = new Map(); // conversation's id -> its next save

function list(chat) {
  chats.value = [chat, ...chats.value.filter((one) => one.id !== chat.id)];
}

/** Whether an answer of it is being written, by this tab. */
const isBusy = (chat) =>
  chat.nodes.some((node) => node.role === "assistant" && node.finish === undefined);

/** Keep a conversation, unless it was deleted: at once, or with what else changes soon. */
export function save(chat, atOnce = true) {
  if (!chats.value.some((one) => one.id === chat.id)) return;
  if (!atOnce) {
    if (!timers.has(chat.id))
      timers.set(
        chat.id,
        setTimeout(() => save(chat), SAVE_MS),
      );
    return;
  }
  clearTimeout(timers.get(chat.id));
  timers.delete(chat.id);
  for (const old of chats.value.slice(MOST_KEPT).filter(canGo)) remove(old);
  const text = JSON.stringify({ ...chat, saved: Date.now() });
  if (text.length > MOST_STORED) {
    trouble.value = "The conversation is too long for this browser to keep: copy what matters.";
    return;
  }
  let lost = "";
  while (!store(chat.id, text)) {
    const oldest = chats.value.findLast((one) => one.id !== chat.id && canGo(one) && isKept(one));
    if (!oldest) {
      trouble.value = "This browser has no room for it: the conversation is lost with this tab.";
      return;
    }
    lost = `${FULL} the oldest conversation, ${titleOf(oldest)}, was deleted.`;
    remove(oldest);
  }
  if (lost || !trouble.value.startsWith(FULL)) trouble.value = lost;
}

/** Whether it may make room for others: neither open nor being written. */
const canGo = (chat) => chat.id !== current.value.id && !isBusy(chat);

/** Whether it takes room: where a browser keeps nothing, deleting what is listed gives none. */
function isKept(chat) {
  try {
    return localStorage.getItem(PREFIX + chat.id) !== null;
  } catch {
    return false;
  }
}

function store(id, text) {
  try {
    localStorage.setItem(PREFIX + id, text);
    return true;
  } catch {
    return false; // it is full, or the browser allows none
  }
}

export function remove(chat) {
  clearTimeout(timers.get(chat.id));
  timers.delete(chat.id);
  try {
    localStorage.removeItem(PREFIX + chat.id);
  } catch {
    // The browser allows no storage: nothing was kept.
  }
  chats.value = chats.value.filter((one) => one.id !== chat.id);
  if (current.value.id === chat.id) current.value = makeChat(chat.settings);
}

/**
 * A kept conversation, or null where the text is none; another version may have written it.
 * An answer without an end is written by another tab, if it was saved a moment ago.
 */
function read(text) {
  try {
    const chat = JSON.parse(text);
    const whole =
      typeof chat.id === "string" &&
      Number.isFinite(chat.changed) &&
      Array.isArray(chat.nodes) &&
      chat.nodes.every(
        (node) => typeof node.id === "string" && typeof (node.content ?? "") === "string",
      );
    if (!whole) return null;
    const end = Date.now() - (chat.saved ?? 0) < SILENT_MS ? "elsewhere" : "left";
    for (const node of chat.nodes) {
      if (node.role !== "assistant") continue;
      node.finish ??= end;
      // That tab may have been closed: what it saves next says otherwise.
      if (node.finish === "elsewhere") setTimeout(() => silent(node), SILENT_MS);
    }
    return { ...chat, settings: { ...NO_SETTINGS, ...chat.settings } };
  } catch {
    return null;
  }
}

function silent(node) {
  node.finish = "left";
  touch();
}

/** Add what another tab said to a conversation in which this one is being answered. */
function merge(chat, other) {
  for (const node of other.nodes) {
    const own = nodeOf(chat, node.id);
    if (!own) chat.nodes.push(node);
    else if (own.finish !== undefined) Object.assign(own, node);
  }
  touch();
}

/** Read what is kept, once; another tab's changes come as they are made. */
export function openStorage() {
  const found = [];
  try {
    for (let index = 0; index < localStorage.length; index += 1) {
      const name = localStorage.key(index);
      const chat = name.startsWith(PREFIX) ? read(localStorage.getItem(name)) : null;
      if (chat) found.push(chat);
    }
  } catch {
    trouble.value = "This browser keeps nothing: conversations are lost with this tab.";
  }
  chats.value = found.sort((one, other) => other.changed - one.changed);
  addEventListener("storage", ({ key, newValue }) => {
    if (!key?.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length);
    const own = chats.value.find((one) => one.id === id);
    const rest = chats.value.filter((one) => one.id !== id);
    const chat = newValue === null ? null : read(newValue);
    if (own && chat && isBusy(own)) {
      merge(own, chat);
      return;
    }
    chats.value = chat ? [chat, ...rest] : rest;
    if (chat && current.value.id === id) current.value = chat;
  });
}
