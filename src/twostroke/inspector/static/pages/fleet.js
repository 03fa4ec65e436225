// Fleet: replicas behind a router, how full each was over time, and why requests went where.

import { Component, effect, html, view } from "../lib/html.js";
import { Figure } from "../lib/figure.js";
import { clock, count, foreign, many, short, time } from "../lib/format.js";
import { description, seesAll } from "../lib/source.js";
import { store } from "../lib/store.js";
import {
  chosenReplica,
  columnAt,
  facts,
  fleetOf,
  loadRoutes,
  ownStrips,
  replicaLink,
  routes,
  strips,
  trouble,
  watchFleet,
} from "./fleet_data.js";
import { LiveEngines, hasEngines, watchEngines } from "./fleet_live.js";
import { ROUTE_WORDS, Strips, busiestAt, routeColour } from "./fleet_strips.js";

const ROUTERS = {
  "round-robin": "a router that takes one after the other",
  "least-loaded": "a router that takes the least loaded one",
  "prefix-affinity": "a router that follows known prefixes",
  "kv-aware": "a router that follows what is cached",
  session: "a router that keeps sessions together",
  "kv-occupancy": "a router that takes the one with most free KV cache",
};
const ROUTES_MS = 300;
const EXAMPLE =
  "twostroke serve pilot --data-parallel-size 2\n" +
  "twostroke simulate llama-3.1-8b --replicas 4 --router prefix-affinity" +
  " --workload sessions --inspect";
const percent = (share) => `${short(100 * share)}\u00a0%`;

function lead(found, levels) {
  const number = found.replicas.length;
  const router = Object.hasOwn(ROUTERS, found.router)
    ? ROUTERS[found.router]
    : foreign(found.router);
  const who = `${many(number, "replica")} behind ${router}.`;
  if (found.ready < 1) return `${who} ${Math.floor(100 * found.ready)} % of their steps are read.`;
  const at = columnAt(levels, store.now);
  const busiest = busiestAt(levels);
  const loads = levels.replicas.map((level) => level.running[at] + level.waiting[at]);
  const all = loads.reduce((sum, load) => sum + load, 0);
  const moment = time(store.now - levels.begin);
  if (busiest < 0) return `${who} At ${moment} all are idle.`;
  return (
    `${who} At ${moment} the busiest, replica ${busiest}, has ${count(loads[busiest])} of` +
    ` ${many(all, "request")}: ${short((loads[busiest] * number) / all)} times its share.`
  );
}

const Level = (props) =>
  html`<${Figure} ...${props} label=${`${props.title} over the whole time: ${props.value}`} />`;

/** [share of the time, value], every fourth column. */
function pointsOf(values) {
  const points = [];
  for (let at = 0; at < values.length; at += 4) points.push([at / (values.length - 1), values[at]]);
  return points;
}

const totals = (levels, name) =>
  levels.imbalance.map((_, at) =>
    levels.replicas.reduce((sum, level) => sum + level[name][at], 0),
  );

const Figures = view(({ found, levels }) => {
  store.tick.value;
  const at = columnAt(levels, store.now);
  const running = totals(levels, "running");
  const waiting = totals(levels, "waiting");
  const sum = (name) => found.replicas.reduce((total, replica) => total + replica[name], 0);
  const prompts = sum("prompt_tokens");
  const requests = sum("requests");
  const spread = found.replicas.map((replica) => replica.requests);
  const known = prompts ? sum("prefix_tokens") / prompts : 0;
  return html`<div class="figures fleet-figures">
    <${Level}
      title="Imbalance"
      value=${found.imbalance === null ? "–" : found.imbalance.toFixed(2)}
      note=${`${levels.imbalance[at].toFixed(2)} at the moment; 1 is even`}
      points=${pointsOf(levels.imbalance).filter((point) => point[1] > 0)}
      top=${2}
      target=${1}
      colour="ink"
      how="Requests of the busiest replica, running and waiting, as a multiple of the mean of all,
        over the whole time. 1 is even; as many as there are replicas means that one does it all."
    />
    <${Level}
      title="Running now"
      value=${count(running[at])}
      note=${`of ${many(requests, "request")}`}
      points=${pointsOf(running)}
      colour="decode"
      how="Requests that hold blocks, of all replicas together."
    />
    <${Level}
      title="Waiting now"
      value=${count(waiting[at])}
      note=${`${count(Math.min(...spread))} to ${count(Math.max(...spread))} were sent to each` +
      (sum("refused") ? `, ${count(sum("refused"))} refused` : "")}
      points=${pointsOf(waiting)}
      top=${2}
      colour="alarm"
      how="Requests that wait at their replica for room, of all replicas together. Below, how many
        requests the replica with the fewest and the one with the most were sent over the whole
        time."
    />
    <${Level}
      title="Prompts known there"
      value=${percent(known)}
      note=${`${many(found.reasons.prefix ?? 0, "request")} followed a prefix`}
      points=${pointsOf(sharesOf(levels, "prefix"))}
      top=${1}
      colour="cached"
      how="Share of all prompt tokens that the router knew the chosen replica had got before, so
        that its prefix cache may have them. The line is the share of requests that followed a
        prefix."
    />
  </div>`;
});

/** Of the requests routed around each column, the share with a reason. */
function sharesOf(levels, reason) {
  const columns = levels.imbalance.length;
  const wide = Math.max(1, Math.round(columns / 48));
  const counts = Object.entries(levels.routed);
  return levels.imbalance.map((_, at) => {
    let all = 0;
    let those = 0;
    for (let near = Math.max(0, at - wide); near < Math.min(columns, at + wide); near += 1) {
      for (const [name, values] of counts) {
        all += values[near];
        if (name === reason) those += values[near];
      }
    }
    return all ? those / all : 0;
  });
}

const WHY = {
  turn: () => "it was the next one",
  least_loaded: ({ load, most_load: most }) =>
    `the fewest unfinished requests: ${count(load)}, the busiest has ${count(most)}`,
  least_full: () => "its KV cache and queue are the least full",
  prefix: ({ prefix_tokens: known, load, least_load: least }) =>
    `it got ${count(known)} of the prompt's tokens before` +
    (load > least ? `, though it has ${many(load, "request")} and another ${count(least)}` : ""),
  cached: ({ prefix_tokens: held }) => `its cache holds ${count(held)} of the prompt's tokens`,
  session: () => "the others of its session went there",
  no_session: () => "it names no session; this one has the fewest requests",
  no_prefix: ({ load }) =>
    `no replica got enough of its prompt before; this one has the fewest requests: ${count(load)}`,
  overloaded: ({ prefix_tokens: known, load }) =>
    `the one that got ${count(known)} of its prompt's tokens is overloaded; this one has the` +
    ` fewest requests: ${count(load)}`,
};

const whyRoute = (route) =>
  `${WHY[route.reason]?.(route) ?? foreign(route.reason)}` +
  `${route.refused ? "; it refused: the first token would come too late" : ""}`;

const RouteRow = ({ route, step }) =>
  html`<tr>
    <td class="muted">${clock(route.time, description.value)}</td>
    <td class="mono">
      ${step < 0
        ? foreign(route.request_id, 14)
        : html`<a
            href=${replicaLink(route.replica, "request", { request: route.request_id, at: step })}
            >${foreign(route.request_id, 14)}</a
          >`}
    </td>
    <td class="n">${route.replica}</td>
    <td class="n wide">${count(route.prompt_tokens)}</td>
    <td class="fleet-why">
      <span class=${`fleet-chip ${routeColour(route.reason)}`}></span
      >${ROUTE_WORDS[route.reason] ?? foreign(route.reason)}: ${whyRoute(route)}
    </td>
  </tr>`;

const Routes = view(() => {
  const found = facts.value;
  if (!found) return null;
  return html`<section class="panel">
    <h2>
      Where requests went
      <span class="muted">the latest at the moment, ${clock(store.now, description.value)}</span>
    </h2>
    <p class="tools">
      <label for="fleet-replica">Replica</label>
      <select
        id="fleet-replica"
        value=${chosenReplica.value}
        onChange=${(event) => {
          chosenReplica.value = event.target.value;
        }}
      >
        <option value="">all</option>
        ${found.replicas.map((_, number) => html`<option value=${number}>${number}</option>`)}
      </select>
      <span class="muted"
        >${Object.entries(found.reasons)
          .sort((one, other) => other[1] - one[1])
          .map(([reason, number]) => `${count(number)} ${ROUTE_WORDS[reason] ?? foreign(reason)}`)
          .join(", ")}
        ${" "}in all</span
      >
    </p>
    ${routes.value.length
      ? html`<table class="list fleet-routes">
          <thead>
            <tr>
              <th>time</th>
              <th>request</th>
              <th class="n">to</th>
              <th class="n wide">prompt</th>
              <th>why there</th>
            </tr>
          </thead>
          <tbody>
            ${routes.value.map(
              (row) => html`<${RouteRow} key=${row.route.request_id} ...${row} />`,
            )}
          </tbody>
        </table>`
      : html`<p class="empty">
          No request was routed before this moment. Play, or move the time on.
        </p>`}
  </section>`;
});

const Single = view(() => {
  store.tick.value;
  const live = description.value?.kind === "live";
  const levels = seesAll() ? ownStrips() : null;
  return html`<p class="lead">
      One replica: ${live ? "this server answers every request itself" : "this run had no router"},
      so there is nothing to route and nothing to balance.
    </p>
    ${levels
      ? html`<${Strips} levels=${levels} />`
      : html`<section class="panel empty">
          <p>
            ${seesAll()
              ? "No step has run yet."
              : "How full the engine is, is shown to admin keys only."}
          </p>
        </section>`}
    <section class="panel empty">
      <p>To see several behind a router, serve or simulate them:</p>
      <pre>${EXAMPLE}</pre>
    </section>`;
});

const Several = view(() => {
  store.tick.value;
  const found = facts.value;
  const levels = strips.value;
  if (!found || !levels) {
    return html`<p class="lead">${trouble.value ? foreign(trouble.value, 200) : "Opening."}</p>`;
  }
  return html`<p class="lead">${lead(found, levels)}</p>
    <${Figures} found=${found} levels=${levels} />
    <${Strips} levels=${levels} />
    <${Routes} />`;
});

const Content = view(() => {
  if (!description.value) return html`<p class="lead">Opening.</p>`;
  if (fleetOf()) return html`<${Several} />`;
  return hasEngines() ? html`<${LiveEngines} />` : html`<${Single} />`;
});

export class FleetPage extends Component {
  componentDidMount() {
    this.end = watchFleet();
    this.endLive = watchEngines();
    let timer = 0;
    // While it plays: a few times a second.
    this.stop = effect(() => {
      store.tick.value;
      chosenReplica.value;
      timer ||= setTimeout(() => {
        timer = 0;
        loadRoutes();
      }, ROUTES_MS);
    });
  }

  componentWillUnmount() {
    this.end();
    this.endLive();
    this.stop();
  }

  render() {
    return html`<${Content} />`;
  }
}
