// The explanations behind "?": one is open at a time, lies within the window, and closes with
// Escape or a click elsewhere.

const MARGIN = 8; // pixels to the edges of the window
const OPEN = "details.how[open]";

function closeAll(but = null) {
  for (const details of document.querySelectorAll(OPEN)) {
    if (details !== but) details.open = false;
  }
}

/** Move an explanation sideways as far as an edge would cut it off. */
function place(text) {
  text.style.translate = "";
  const { left, right } = text.getBoundingClientRect();
  const most = document.documentElement.clientWidth - MARGIN;
  const shift = left < MARGIN ? MARGIN - left : Math.min(0, most - right);
  if (shift) text.style.translate = `${shift}px 0`;
}

export function listenForPopovers() {
  document.addEventListener(
    "toggle",
    ({ target }) => {
      if (!target.matches?.(OPEN)) return;
      closeAll(target);
      const text = target.querySelector("p");
      if (text) place(text);
    },
    true, // toggle does not bubble
  );
  document.addEventListener("pointerdown", ({ target }) => {
    closeAll(target.closest?.("details.how"));
  });
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || !document.querySelector(OPEN)) return;
      closeAll();
      event.stopPropagation(); // what is selected stays so
    },
    true,
  );
}
