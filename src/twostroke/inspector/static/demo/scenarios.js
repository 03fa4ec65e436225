// What demo traffic is: four small stories, sized for the server that is open.
//
// A browser has only a few connections to one server, so a call carries many prompts: to the
// engine each of them is a request.

import { count } from "../lib/format.js";

const MOST_REQUESTS = 512;
const MOST_OF_A_CALL = 256;
const LONG_PROMPT = 6000; // tokens, at most
const SMALL_CACHE = 24_576; // tokens of KV cache that a demo may fill
const SMALL_LENGTH = 2048;

/** Made once a run: prompts as token ids, none of which was sent before. */
export function promptMaker(ids) {
  const any = () => ids[Math.floor(Math.random() * ids.length)];
  const start = [any(), any(), any(), any()]; // so that no earlier run is found in the cache
  let made = 0;
  return (length) => {
    made += 1;
    const own = [...start, any(), any(), ids[made % ids.length]];
    const rest = Array.from({ length }, (_, at) => ids[(at + 13 * made) % ids.length]);
    return [...own, ...rest].slice(0, length);
  };
}

const several = (number, make) => Array.from({ length: number }, make);

/** Calls of at most `MOST_OF_A_CALL` prompts. */
function calls(prompts, fields) {
  const made = [];
  for (let at = 0; at < prompts.length; at += MOST_OF_A_CALL) {
    made.push({ ...fields, prompts: prompts.slice(at, at + MOST_OF_A_CALL) });
  }
  return made;
}

/** Flags of a server whose cache a demo fills: it holds two requests of the greatest length. */
function smallServer(maxLength, bytesPerToken) {
  const length = Math.min(maxLength, SMALL_LENGTH);
  const memory = Math.ceil((2 * length * bytesPerToken) / 2 ** 20);
  return `--max-model-len ${length} --kv-cache-memory ${memory}MiB`;
}

/**
 * `plan(server, prompt)` gives waves of calls, one after the other; `after` are seconds from the
 * beginning of its wave. Or it gives `why` it would show nothing here.
 */
export const SCENARIOS = [
  {
    name: "long-prompt",
    title: "A long prompt amid chats",
    about: "Eight answers are being written when a long prompt comes, and all of them stutter.",
    look: ["#/timeline", "Timeline: who stuttered, and whose fault it was"],
    plan({ maxLength, capacity }, prompt) {
      const long = Math.min(LONG_PROMPT, maxLength - 16, Math.floor(capacity / 2));
      const output = Math.min(400, Math.floor(maxLength / 2));
      const chats = several(8, () => prompt(Math.min(40, Math.floor(maxLength / 4))));
      return {
        waves: [
          [
            ...calls(chats, { after: 0, output }),
            { after: 0.4, output: 8, prompts: [prompt(long)] },
          ],
        ],
      };
    },
  },
  {
    name: "shared-prefix",
    title: "A shared prefix",
    about: "Seven requests begin as one did before them: they find its blocks in the cache.",
    look: ["#/kv", "KV: the prefix tree, and what was found"],
    plan({ maxLength, capacity }, prompt) {
      const shared = prompt(Math.min(1200, Math.floor(maxLength / 2), Math.floor(capacity / 3)));
      const next = () => [...shared, ...prompt(Math.min(20, Math.floor(maxLength / 8)))];
      const output = Math.min(64, Math.floor(maxLength / 8));
      return {
        waves: [
          [{ after: 0, output, prompts: [next()] }],
          calls(several(7, next), { after: 0, output }),
        ],
      };
    },
  },
  {
    name: "kv-pressure",
    title: "KV pressure",
    about: "Sixteen answers grow until no KV block is free: the latest of them are preempted.",
    look: ["#/timeline", "Timeline: the red marks"],
    plan({ maxLength, maxRequests, capacity, bytesPerToken }, prompt) {
      if (capacity > SMALL_CACHE) {
        return {
          why:
            `This server's KV cache holds ${count(capacity)} tokens: a short demo does not fill` +
            ` it. Start one with less: ${smallServer(maxLength, bytesPerToken)}`,
        };
      }
      const number = Math.min(16, maxRequests);
      const length = Math.floor(Math.min(0.7 * maxLength, (0.7 * capacity) / number));
      const output = Math.floor(Math.min(maxLength - length, (0.8 * capacity) / number));
      const prompts = several(number, () => prompt(length));
      return { waves: [calls(prompts, { after: 0, output })] };
    },
  },
  {
    name: "overload",
    title: "An overload",
    about: "More requests come at once than may run: a queue, and why each of them waits.",
    look: ["#/live", "Live: the queue, its figures, and the reason"],
    plan({ maxLength, maxRequests }, prompt) {
      const number = Math.min(MOST_REQUESTS, Math.max(24, Math.ceil(2.5 * maxRequests)));
      const prompts = several(number, () => prompt(Math.min(24, Math.floor(maxLength / 4))));
      const output = Math.min(40, Math.floor(maxLength / 4));
      return { waves: [calls(prompts, { after: 0, output })] };
    },
  },
];

/** What a prompt is made of. */
export const TEXT =
  "A request waits in the queue until blocks for its prompt are free. Then its prompt is read," +
  " many tokens in one pass, which is limited by arithmetic. After that it writes one token in" +
  " each pass, and every pass reads all weights again, for one request as for sixteen. So a" +
  " server runs many requests in one pass, keeps what it has computed, and shares it where two of" +
  " them begin alike. A long prompt makes a pass long for all that share it. When no block is" +
  " free, the request that came last gives its own back, and computes its tokens again later on.";
