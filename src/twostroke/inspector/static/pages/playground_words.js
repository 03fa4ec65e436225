// The playground in sentences, and tokens as something to look at.

import { count, foreign, many, short } from "../lib/format.js";

export const FILTERS = {
  model: "the model",
  structured_outputs: "form",
  thinking_token_budget: "thought budget",
  allowed_token_ids: "allowed tokens",
  banned_token_ids: "banned tokens",
  bad_words: "bad words",
  min_tokens: "least length",
  logit_bias: "logit bias",
  repetition_penalty: "repetition",
  presence_penalty: "presence",
  frequency_penalty: "frequency",
  temperature: "temperature",
  top_k: "top-k",
  top_p: "top-p",
  min_p: "min-p",
};

export const ABOUT = {
  temperature:
    "Divides all logits: below 1 the likely gets likelier, above 1 less so; at 0 the likeliest" +
    " token is always taken.",
  top_k: "Keeps the k likeliest tokens; 0 keeps all.",
  top_p: "Keeps the likeliest tokens until their probabilities add up to p.",
  min_p: "Drops tokens that are less likely than this share of the likeliest one.",
  repetition_penalty: "Makes tokens of the prompt and of the answer less likely, if above 1.",
  presence_penalty: "Is subtracted once from the logit of each token that the answer has.",
  frequency_penalty: "Is subtracted for each time that the answer has the token.",
};

/** A token with its spaces and line ends visible. */
export function named(text, most = 24) {
  if (text === "") return "(no text)";
  const marked = text.slice(0, 4 * most).replaceAll("\n", "↵").replaceAll("\t", "⇥");
  return foreign(marked.replaceAll(" ", "␣"), most);
}

/** A token in a sentence, where its spaces are between the quotes. */
export const quoted = (text) => `“${foreign(text.replaceAll("\n", "↵"), 24)}”`;

/** A probability in percent, without the sign, as short as it can be told from others. */
export function hundredths(share) {
  if (share === 0) return "0";
  if (share < 0.0001) return "<0.01";
  return share > 0.9995 ? "100" : short(100 * share);
}

export const percent = (share) => `${hundredths(share)}\u00a0%`;

/** How little the model expected a token, in bits. */
export const surprise = (logprob) => Math.max(0, -logprob / Math.LN2);

/** What is drawn, from how many, and how open the choice is. */
export function aboutShape(shape) {
  const first = shape.stages[0];
  const last = shape.stages[shape.stages.length - 1];
  const token = shape.tokens.find((one) => one.id === shape.token);
  const share = percent(token.probabilities[token.probabilities.length - 1]);
  const draw =
    shape.uniform === null
      ? `${quoted(token.text)} is taken: at temperature 0 the likeliest token always is.`
      : `${quoted(token.text)} is drawn: ${shape.uniform.toFixed(4)} falls into its ${share}.`;
  const left =
    last.num_tokens === 1
      ? "No other token is left"
      : `${count(last.num_tokens)} of ${many(first.num_tokens, "token")} are left`;
  const entropy = `${short(last.entropy)} bits of entropy (the model's: ${short(first.entropy)})`;
  return `${draw} ${left}, with ${entropy}.`;
}
