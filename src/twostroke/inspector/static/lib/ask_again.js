// Asks the server again and again for what no step of the feed says, while somebody looks.

/**
 * Ask now and every `everyMs`, one question at a time. `about` says what is asked: its `key`, and
 * whether an equal question has a new answer (`changes`); null where there is nothing to ask.
 * Returns `turn`, which asks at once, and `stop`.
 */
export function askAgain(everyMs, about, ask) {
  let busy = false;
  let answered = null;
  const turn = async () => {
    if (busy || document.hidden) return;
    const question = about();
    if (question === null || (question.key === answered && !question.changes)) return;
    busy = true;
    try {
      await ask(question);
      answered = question.key;
    } catch {
      // The feed notices a lost connection; what is shown stays as it was.
    } finally {
      busy = false;
    }
  };
  turn();
  const timer = setInterval(turn, everyMs);
  return { turn, stop: () => clearInterval(timer) };
}
