// The chapters in their order. They are loaded when the page is opened, not before.

import { chunking, batching } from "./sharing.js";
import { disaggregation, speculation } from "./faster.js";
import { paging, prefixes } from "./memory.js";
import { misconceptions } from "./misconceptions.js";
import { sampling } from "./sampling.js";
import { cache } from "./cache.js";
import { decode, prefill } from "./strokes.js";
import { sums } from "./sums.js";
import { symptoms } from "./symptoms.js";
import { tokens } from "./tokens.js";
import { watching } from "./watching.js";

export const CHAPTERS = [
  tokens,
  prefill,
  decode,
  cache,
  sampling,
  batching,
  chunking,
  paging,
  prefixes,
  speculation,
  disaggregation,
  watching,
  sums,
  symptoms,
  misconceptions,
];
