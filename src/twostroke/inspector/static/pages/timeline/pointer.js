// Pointer and arrow keys on the lanes.

import { select, selected, selectRequest } from "../../lib/address.js";
import { playing } from "../../lib/source.js";
import { store } from "../../lib/store.js";
import { recordAt } from "./lanes.js";
import { fixedEnd, hovered, pan, span, zoom } from "./view.js";

/** Listen on a canvas; `layout()` is that of its last drawing, or null. */
export function listen(layout) {
  return (canvas) => {
    let dragging = null;
    canvas.addEventListener("keydown", (event) => walk(event, layout()));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const { at } = hit(event, layout());
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY))
          pan((event.deltaX / canvas.clientWidth) * span.value);
        else zoom(1.0015 ** event.deltaY, fixedEnd.value === null && playing.value ? null : at);
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      dragging = { x: event.clientX, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!layout()) return;
      if (dragging) {
        const moved = event.clientX - dragging.x;
        if (Math.abs(moved) > 3 || dragging.moved) {
          dragging.moved = true;
          dragging.x = event.clientX;
          pan((-moved / (canvas.clientWidth - layout().left)) * span.value);
        }
      } else {
        const { row } = hit(event, layout());
        hovered.value = row >= 0 ? row : null;
      }
    });
    canvas.addEventListener("pointerleave", () => {
      hovered.value = null;
    });
    canvas.addEventListener("pointerup", (event) => {
      const clicked = dragging && !dragging.moved;
      dragging = null;
      if (clicked && layout()) choose(hit(event, layout()), layout());
    });
  };
}

function choose({ record, row, px, at }, layout) {
  if (px < layout.left) {
    if (record) selectRequest(record.id); // its name was clicked
    return;
  }
  if (row < 0 && layout.seekTo) {
    // Only the overview knows this moment: load its steps.
    layout.seekTo(at);
    if (record) selectRequest(record.id);
    return;
  }
  if (record && (row < 0 || !inStep(record, row))) selectRequest(record.id);
  else if (record && selected.value?.id !== record.id) selectRequest(record.id);
  else if (row >= 0) select({ kind: "step", step: store.steps.get("step", row) });
}

function hit(event, layout) {
  if (!layout) return {};
  const box = event.currentTarget.getBoundingClientRect();
  const px = event.clientX - box.left;
  const py = event.clientY - box.top;
  const at =
    layout.begin +
    ((px - layout.left) / (layout.width - layout.left)) * (layout.end - layout.begin);
  const lane = Math.floor((py - layout.top) / layout.lanes.height);
  const inside = py >= layout.top && py < layout.bottom;
  const record = inside
    ? recordAt(layout.lanes, lane, Math.max(at, layout.begin)) // also left of it, at the names
    : undefined;
  const row = store.length ? store.rowAt(at) : -1;
  const found = row >= 0 && at >= store.steps.get("time", row) && at <= store.endOf(row);
  return { px, at, record, row: found ? row : -1 };
}

/** Up and down: the request above or below; left and right: the step before or after. */
function walk(event, layout) {
  const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const on = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!layout || !(down || on)) return;
  event.preventDefault();
  if (down) {
    const { records } = layout.lanes;
    const at = records.findIndex((record) => record.id === selected.value?.id);
    const next = at < 0 ? 0 : Math.max(0, Math.min(records.length - 1, at + down));
    if (records[next]) selectRequest(records[next].id);
  } else if (store.length) {
    const chosen = selected.value?.kind === "step" ? store.rowOfStep(selected.value.step) : -1;
    const from = chosen < 0 ? store.rowAt(layout.end) - on : chosen;
    const row = Math.max(store.steps.first, Math.min(store.lastRow, from + on));
    select({ kind: "step", step: store.steps.get("step", row) });
  }
}

function inStep(record, row) {
  const [first, end] = store.sharesOf(row);
  for (let share = first; share < end; share += 1) {
    if (store.shares.get("request", share) === record.number) return true;
  }
  return false;
}
