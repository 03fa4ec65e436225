// Three more sentences that are often heard, for chapter "Often heard".

import { html } from "../../lib/html.js";
import { count, foreign, short, time } from "../../lib/format.js";
import { Bars, experiment } from "./parts.js";
import { complete, simulate } from "./server.js";

const ANSWER = 300; // tokens
const HISTORY = 4000; // tokens of a conversation so far
const TURN = 64;
const ASKED = "A computer is";
const BESIDE = 7; // answers that are written beside the asked one

const streamTrial = experiment(async () => {
  const run = await simulate({ requests: [{ prompt: 500, output: ANSWER }] });
  return run.requests[0];
});

const rereadTrial = experiment(async () => {
  const turn = { prefix: HISTORY, group: 1, output: TURN };
  const run = await simulate({
    requests: [
      { ...turn, prompt: HISTORY },
      { ...turn, prompt: HISTORY + TURN, arrival: 5 },
    ],
  });
  const { request, prompt, new: fresh } = run.shares;
  const computed = request.reduce(
    (sum, number, at) => sum + (number === 1 ? prompt[at] + (prompt[at] ? 0 : fresh[at]) : 0),
    0,
  );
  return { first: run.requests[0], second: run.requests[1], computed };
});

const smartTrial = experiment(async () => {
  const ask = async () => {
    const began = performance.now();
    const answer = await complete({ prompt: ASKED, max_tokens: 24 });
    return { text: answer.choices[0].text, seconds: (performance.now() - began) / 1000 };
  };
  const alone = await ask();
  const others = Array.from({ length: BESIDE }, (_, at) =>
    complete({ prompt: `${at + 1}. Write about`, max_tokens: 64 }),
  );
  const crowd = await ask();
  await Promise.all(others);
  return { alone, crowd };
});

export const MORE_CLAIMS = [
  {
    id: "streaming",
    say: "“Streaming is a gimmick: the answer takes as long.”",
    trial: streamTrial,
    verdict: ({ ttft, finish, arrival, tpot }) => ({
      isTrue: ttft > 0.5 * (finish - arrival),
      text:
        `All ${ANSWER} tokens take ${time(finish - arrival)} either way. With streaming one reads` +
        ` after ${time(ttft)}, and then ${short(1 / tpot)} tokens a second come, more than` +
        " anybody reads. One can also stop early, and what is not written costs nothing.",
    }),
    show: ({ ttft, finish, arrival }) => html`<${Bars}
        label="When the first words can be read"
        head=${["the answer", "first words after"]}
        rows=${[
          { name: "streamed", shown: time(ttft), parts: [["prefill", ttft]] },
          {
            name: "whole",
            shown: time(finish - arrival),
            parts: [
              ["prefill", ttft],
              ["decode", finish - arrival - ttft],
            ],
          },
        ]}
      />
      <p class="muted">Simulated: Llama 3.1 8B on an H100, one request.</p>`,
  },
  {
    id: "rereads",
    say: "“For each turn the model reads the whole conversation anew.”",
    trial: rereadTrial,
    verdict: ({ first, second, computed }) => ({
      isTrue: second.cached < HISTORY / 2,
      text:
        `The client sends all of it, ${count(HISTORY + TURN)} tokens, but ${count(second.cached)}` +
        ` of them were in the prefix cache: the second turn computed ${count(computed)}, its` +
        ` answer included. Its first token came after ${time(second.ttft)}, that of the first` +
        ` turn after ${time(first.ttft)}.`,
    }),
    show: ({ first, second }) => html`<${Bars}
        label="Time to the first token by turn"
        head=${["turn", "first token after"]}
        rows=${[first, second].map(({ ttft }, at) => ({
          name: String(at + 1),
          shown: time(ttft),
          parts: [["prefill", ttft]],
        }))}
      />
      <p class="muted">Simulated with this server's scheduler: Llama 3.1 8B on an H100.</p>`,
  },
  {
    id: "smarter",
    say: "“A bigger GPU makes it smarter.”",
    needsModel: true,
    trial: smartTrial,
    verdict: ({ alone, crowd }) => ({
      isTrue: false,
      text:
        (alone.text === crowd.text
          ? "The same answer, token by token, alone and"
          : "Rounding made the answers differ, not their quality: alone and") +
        ` with ${BESIDE} others beside it, in ${time(alone.seconds)} and ${time(crowd.seconds)}.` +
        " What it says depends on weights, prompt and draw; the device only says how fast. A" +
        " bigger device can hold a bigger model, and that one may know more.",
    }),
    show: ({ alone, crowd }) => html`<${Bars}
        label="Time of the answer"
        head=${["the machine", "time of the answer"]}
        rows=${[
          ["alone", alone],
          ["shared", crowd],
        ].map(([name, { seconds }]) => ({
          name,
          shown: time(seconds),
          parts: [["decode", seconds]],
        }))}
      />
      <p>“${foreign(alone.text, 120)}”</p>
      <p>“${foreign(crowd.text, 120)}”</p>`,
  },
];
