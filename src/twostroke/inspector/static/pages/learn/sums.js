// Chapter "Sums": what fits on the back of an envelope, beside what the simulator says.

import { html, signal, view } from "../../lib/html.js";
import { bytes, count, short, time } from "../../lib/format.js";
import { Bars, Choice, experiment, Slider } from "./parts.js";
import { simulate } from "./server.js";

const MODELS = { "llama-3.2-1b": "1B", "llama-3.1-8b": "8B", "llama-3.1-70b": "70B" };
const GPUS = { l4: "L4", "a100-80gb-sxm": "A100", "h100-sxm": "H100", h200: "H200" };
const DEVICES = [1, 2, 4, 8];
const PROMPTS = [128, 512, 2048, 8192];
const ANSWERS = [16, 64, 256, 512];
const USERS = [1, 2, 4, 8, 16];
const PRICES = [0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 8, 12]; // dollars an hour; 0: the sheet's
const MOST_OF_MEMORY = 0.9; // what an engine leaves is for activations

const model = signal("llama-3.1-8b");
const gpu = signal("h100-sxm");
const devices = signal(1);
const prompt = signal(2048);
const output = signal(256);
const users = signal(16);
const price = signal(0);

async function ask() {
  const asked = { prompt: prompt.value, output: output.value };
  const device = { model: model.value, gpu: gpu.value, tp: devices.value };
  const spread = { ...device, tp: DEVICES.at(-1) }; // this many always hold it
  const small = await simulate({ ...spread, requests: [{ prompt: 1, output: 1 }] });
  const weights = spread.tp * small.device.weight_bytes;
  const { memory_bytes: memory, title } = small.device;
  const fits = weights / device.tp <= MOST_OF_MEMORY * memory;
  const about = { ...asked, tp: devices.value, users: users.value, title, weights, memory };
  if (!fits) return { ...about, one: null };
  const one = await simulate({ ...device, requests: [asked] });
  const many = await simulate({ ...device, requests: Array(users.value).fill(asked) });
  return { ...about, one, many };
}

const sumsTrial = experiment(ask);
const sumsAnswer = experiment(async () => {
  model.value = "llama-3.1-70b";
  devices.value = 1;
  await sumsTrial.start();
  const refused = sumsTrial.result.value;
  devices.value = 4;
  await sumsTrial.start();
  return { refused, found: sumsTrial.result.value };
});

const kvRoom = ({ device }) => device.num_blocks * device.block_size * device.kv_bytes_per_token;
/** Tokens a second of one answer at most: for each, every device reads its part of the weights. */
const ceiling = ({ one: { device } }) => device.memory_bandwidth / device.weight_bytes;
const perHour = ({ device }) => price.value || device.price_per_hour;

const Misfit = ({ found }) =>
  html`<p>
      <b>It does not fit.</b> The weights take ${bytes(found.weights)}; ${found.tp} x ${found.title}
      ${found.tp === 1 ? " has" : " have"} ${bytes(found.tp * found.memory)}, and activations and
      keys and values need room, too. More devices share the weights; so would fewer bits a weight.
    </p>
    <${Bars}
      label="Memory"
      head=${["memory", "bytes"]}
      rows=${[
        { name: "weights", shown: bytes(found.weights), parts: [["prefill", found.weights]] },
        {
          name: "devices",
          shown: bytes(found.tp * found.memory),
          parts: [["waiting", found.tp * found.memory]],
        },
      ]}
    />`;

function Sum({ name, sum, means }) {
  return html`<tr>
    <th scope="row">${name}</th>
    <td>
      ${sum}<span class="muted"> ${means}</span>
    </td>
  </tr>`;
}

const Result = ({ found }) => {
  const [request] = found.one.requests;
  const { device } = found.one;
  const took = request.finish - request.arrival;
  const most = ceiling(found);
  const conversation = (found.prompt + found.output) * device.kv_bytes_per_token;
  const room = kvRoom(found.one);
  const all = found.many.requests;
  const seconds = Math.max(...all.map((each) => each.finish));
  const speed = (found.users * found.output) / seconds;
  const cost = ((perHour(found.one) * found.tp) / 3600 / speed) * 1e6;
  return html`<table class="learn-sums">
      <tbody>
        <${Sum}
          name="An answer"
          sum=${`${time(request.ttft)} + ${count(found.output - 1)} x ${time(request.tpot)}` +
          ` = ${time(request.ttft + (found.output - 1) * request.tpot)}`}
          means=${`TTFT + n x TPOT; simulated ${time(took)}`}
        />
        <${Sum}
          name="At most"
          sum=${`${short(device.memory_bandwidth / 1e12)} TB/s` +
          ` (${bytes(device.memory_bandwidth)}/s) : ${bytes(device.weight_bytes)}` +
          ` = ${short(most)} tokens/s`}
          means=${`bandwidth over weights, of each device; simulated ${short(1 / request.tpot)},` +
          ` which is ${short(100 / request.tpot / most)} % of it`}
        />
        <${Sum}
          name="Memory"
          sum=${`${bytes(device.weight_bytes)} of weights, ${bytes(room)} for keys and values`}
          means=${`${short((100 * room) / device.memory_bytes)} % of each device; a conversation` +
          ` takes ${bytes(conversation)}, so ${count(Math.floor(room / conversation))} fit`}
        />
        <${Sum}
          name="Money"
          sum=${`$${perHour(found.one)} x ${found.tp} an hour : ${short(speed)} tokens/s` +
          ` = $${short(cost)}`}
          means=${`for a million output tokens with ${found.users} at once, if always so busy`}
        />
      </tbody>
    </table>
    <${Bars}
      label="Memory by use"
      head=${["memory", "bytes"]}
      rows=${[
        {
          name: "weights",
          shown: bytes(device.weight_bytes),
          parts: [["prefill", device.weight_bytes]],
        },
        { name: "KV cache", shown: bytes(room), parts: [["cached", room]] },
        {
          name: "one conversation",
          shown: bytes(conversation),
          parts: [["decode", conversation]],
        },
      ]}
    />
    <p class="muted">
      Simulated with this server's scheduler: ${MODELS[model.value]} on ${found.tp} x
      ${" "}${device.title}. The price is that of its sheet, until you set yours.
    </p>`;
};

const SumsFigure = view(() => {
  const found = sumsTrial.result.value;
  const failed = sumsTrial.error.value;
  const slider = (name, setting, values, shown) =>
    html`<${Slider}
      name=${name}
      value=${setting.value}
      values=${values}
      shown=${shown}
      set=${(value) => {
        setting.value = value;
        sumsTrial.later();
      }}
    />`;
  const choice = (name, setting, options) =>
    html`<${Choice}
      name=${name}
      value=${setting.value}
      options=${Object.entries(options)}
      set=${(value) => {
        setting.value = value;
        sumsTrial.start();
      }}
    />`;
  return html`${choice("model", model, MODELS)}${choice("device", gpu, GPUS)}
    ${slider("devices", devices, DEVICES)}
    ${slider("prompt", prompt, PROMPTS, `${count(prompt.value)} tokens`)}
    ${slider("answer", output, ANSWERS, `${count(output.value)} tokens`)}
    ${slider("at once", users, USERS)}
    <${Slider}
      name="a device an hour"
      value=${price.value}
      values=${PRICES}
      shown=${price.value ? `$${price.value}` : "by its sheet"}
      set=${(value) => {
        price.value = value;
      }}
    />
    ${!failed && found && html`<${found.one ? Result : Misfit} found=${found} />`}`;
});

export const sums = {
  id: "sums",
  title: "Sums",
  lead: "Four sums tell most of it before anything runs.",
  trial: sumsTrial,
  Figure: SumsFigure,
  Text: view(
    () =>
      html`<p>
          <b>An answer</b> takes TTFT, and then a TPOT for each further token. <b>At most</b> a
          device writes its bandwidth over the bytes of the weights in tokens a second, for one
          answer: each token reads all weights once. <b>Memory</b> that the weights leave is for
          keys and values: it says how many conversations fit. <b>Money</b> is the price of an hour
          over the tokens of an hour.
        </p>
        <p>
          Tensor parallelism puts a part of each layer on each device. They share the weights and
          the reading of them, and exchange results twice a layer: twice the devices are less than
          twice as fast.
        </p>`,
  ),
  predict: {
    ask: "Llama 3.1 8B takes 15 GiB; an H100 reads 3.35 TB a second. How many tokens a second can" +
      " one answer have at most?",
    choices: ["About 20", "About 200", "About 2,000"],
  },
  outcome(found) {
    const most = ceiling(found);
    return {
      right: most < 60 ? 0 : most < 600 ? 1 : 2,
      say:
        `${short(most)}: bandwidth over weights. The simulation gives` +
        ` ${short(1 / found.one.requests[0].tpot)}; caches, launches and drawing take the rest.`,
    };
  },
  question: "What if the weights are larger than a device?",
  answer: sumsAnswer,
  show: () => sumsAnswer.start(),
  reply: ({ refused, found }) =>
    (refused.one
      ? "One device holds it. "
      : `The 70B does not fit on one: ${bytes(refused.weights)} of weights for` +
        ` ${bytes(refused.memory)}. `) +
    (found.one
      ? `Four devices write ${short(1 / found.one.requests[0].tpot)} tokens a second, and have` +
        ` ${bytes(kvRoom(found.one))} left on each for keys and values.`
      : ""),
};
