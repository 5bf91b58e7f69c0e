// The overview: a card for each run.

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { h, show } from "../dom.js";
import { ago, count, duration, LABELS, last, metric, number, plural, signed } from "../format.js";
import { address, change } from "../route.js";

export const title = "Overview";

export async function draw(root, parameters, { again, state, valid }) {
  const { values, text } = await get("runs");
  const stamp = text + parameters.toString();
  if (!valid() || (again && state.stamp === stamp)) return;
  state.stamp = stamp;
  const wanted = (parameters.get("filter") ?? "").toLowerCase();
  const chosen = parameters.getAll("run");
  const runs = values.runs.filter((run) =>
    `${run.name} ${run.arena} ${run.model} ${run.state}`.toLowerCase().includes(wanted),
  );
  const running = values.runs.filter((run) => run.state === "running").length;
  show(
    root,
    h("div.head", {},
      h("h1", {}, "Runs"),
      h("span.muted", {}, `${values.runs.length} in ${values.places.join(", ")}`,
        running ? `, ${running} running` : ""),
      h("span.grow"),
      h("input", {
        type: "search", id: "filter", placeholder: "Filter by name, arena, model", "aria-label": "Filter runs",
        value: parameters.get("filter") ?? "",
        oninput: (event) => change({ filter: event.target.value || null }),
      }),
      chosen.length
        ? h("a.button.primary", { href: address("curves", { run: chosen }) }, `Compare ${plural(chosen.length, "run")}`)
        : null),
    runs.length ? h("div.cards", {}, runs.map((run) => card(run, chosen))) : nothing(values),
  );
}

function nothing(values) {
  return h("div.empty", {},
    h("p", {}, values.runs.length ? "No run has this name, arena, model or state." : `No run in ${values.places.join(", ")} yet.`),
    values.runs.length ? null : h("p", {}, "Start one with ", h("code", {}, "uv run legos train"), "; it appears here."));
}

function card(run, chosen) {
  const figures = run.key.length ? run.key : [{ metric: "reward_mean", points: [], larger_is_better: true }];
  const toggle = (event) =>
    change({ run: event.target.checked ? [...chosen, run.name] : chosen.filter((name) => name !== run.name) });
  return h(`article.card.${run.state}`, { data: { run: run.name } },
    h("div.card-head", {},
      h("label.pick", { title: "Compare" },
        h("input", { type: "checkbox", id: `pick-${run.name}`, checked: chosen.includes(run.name), onchange: toggle, "aria-label": `Compare ${run.name}` })),
      h("a.name", { href: address("plays", { run: run.name }) }, run.name),
      h(`span.state.${run.state}`, {}, LABELS[run.state] ?? run.state)),
    h("div.muted.small.line", { title: run.model }, [last(run.arena), last(run.model), run.seed !== undefined ? `seed ${run.seed}` : null].filter(Boolean).join(" · ")),
    figures.slice(0, 2).map(figure),
    run.steps ? progress(run) : null,
    messages(run),
    h("div.links", {},
      h("a", { href: address("plays", { run: run.name }) }, "Plays"),
      h("a", { href: address("curves", { run: run.name }) }, "Curves"),
      h("a", { href: address("health", { run: run.name }) }, "Health"),
      h("span.grow"),
      h("span.muted.small", { title: "Newest change of its files" }, ago(run.changed_at))));
}

export function figure({ metric: name, points, larger_is_better: larger }) {
  const [first, end] = [points[0]?.[1], points.at(-1)?.[1]];
  const change = points.length > 1 ? end - first : null;
  const better = change === null || Math.abs(change) < 1e-9 ? "" : change > 0 === larger ? "good" : "bad";
  return h("div.figure", {},
    h("div", {},
      h("div.value", {}, number(end)),
      h("div.small.muted", {}, metric(name)),
      change === null ? null : h(`div.delta.small.${better}`, { title: `${number(first)} at step ${points[0][0]}` }, `${signed(change)} since step ${points[0][0]}`)),
    sparkline(points, { label: `${metric(name)}: ${number(first)} to ${number(end)}` }));
}

function progress(run) {
  const share = Math.min(1, run.step / run.steps);
  const facts = [
    `step ${number(run.step)} of ${number(run.steps)}`,
    run.eta_s ? `${duration(run.eta_s)} left` : run.seconds ? `took ${duration(run.seconds)}` : null,
    run.tokens ? `${count(run.tokens)} tokens` : null,
  ];
  return h("div.progress", {},
    h("div.track", { role: "progressbar", "aria-valuenow": Math.round(share * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `steps of ${run.name}` },
      h("div.done", { style: { width: `${share * 100}%` } })),
    h("div.small.muted", {}, facts.filter(Boolean).join(" · ")));
}

function messages(run) {
  const rows = [];
  if (run.failure) rows.push(h("div.message.error", {}, h("span", {}, run.failure)));
  for (const problem of run.problems) rows.push(h("div.message.warning", {}, h("span", {}, problem)));
  for (const alarm of run.alarms.slice(0, 2)) rows.push(h(`div.message.${alarm.level}`, { title: alarm.text }, h("span", {}, alarm.text)));
  const more = run.alarms.length - 2;
  if (more > 0 || run.past_alarms) {
    const text = [more > 0 ? `${plural(more, "more alarm")}` : null, run.past_alarms ? `${plural(run.past_alarms, "alarm")} in earlier steps` : null];
    rows.push(h("a.small", { href: address("health", { run: run.name }) }, text.filter(Boolean).join(", ")));
  }
  return rows;
}
