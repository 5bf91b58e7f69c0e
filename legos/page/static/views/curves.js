// Metrics of several runs together, and the settings in which the runs differ.

import { get, plotly } from "../api.js";
import { h, show } from "../dom.js";
import { metric, number, plural } from "../format.js";
import { change } from "../route.js";

export const title = "Curves";
const MOST = 12; // charts at the same time; each more costs a moment
export const COLOURS = ["#e4572e", "#2f6fde", "#1b998b", "#a24bd3", "#c98a00", "#d6336c", "#5c677d", "#4d908e", "#8f5a2a"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

export async function draw(root, parameters, { again, state, valid }) {
  const { values } = await get("runs");
  const names = values.runs.map((run) => run.name).sort(); // so that a run keeps its colour
  const chosen = parameters.getAll("run").filter((name) => names.includes(name));
  const gone = parameters.getAll("run").filter((name) => !names.includes(name));
  if (!chosen.length) chosen.push(...names.slice(0, 3));
  if (!chosen.length) {
    if (valid()) show(root, h("div.empty", {}, h("p", {}, "No run, so no curve yet.")));
    return;
  }
  const { names: known, first } = (await get("metrics", { run: chosen })).values;
  const { matches, problem } = matching(known, first, parameters.get("filter"));
  const most = Number(parameters.get("most") ?? MOST);
  const drawn = matches.slice(0, most);
  const axis = parameters.get("axis") ?? "step";
  const [curves, settings, library] = await Promise.all([
    drawn.length ? get("curves", { run: chosen, name: drawn, axis }) : { values: { series: [] }, text: "" },
    get("settings", { run: chosen }),
    plotly(),
  ]);
  const stamp = [curves.text, settings.text, parameters, names, known].join();
  if (!valid() || (again && state.stamp === stamp)) return;
  state.stamp = stamp;
  if (state.root !== root) {
    Object.assign(state, { root, controls: h("div"), charts: h("div.charts"), below: h("div"), plots: new Map() });
    show(root, h("div.head", {}, h("h1", {}, "Curves")), state.controls, state.charts, state.below);
  }
  const colours = coloursOf(names);
  show(state.controls, controls(values.runs, chosen, colours, parameters, { matches, problem, gone }));
  charts(state, library, { drawn, series: curves.values.series, runs: values.runs, colours, parameters, axis });
  show(state.below,
    matches.length > most ? h("div.pages", {}, h("button", { id: "more", onclick: () => change({ most: most + MOST }) }, `${plural(matches.length - most, "more metric")}`)) : null,
    diff(settings.values));
}

export const coloursOf = (names) => Object.fromEntries(names.map((name, index) => [name, COLOURS[index % COLOURS.length]]));

function matching(known, first, filter) {
  if (!filter) return { matches: first };
  try {
    const rule = new RegExp(filter, "i");
    return { matches: known.filter((name) => rule.test(name)) };
  } catch {
    return { matches: [], problem: `${filter} is no regular expression` };
  }
}

function controls(runs, chosen, colours, parameters, { matches, problem, gone }) {
  const toggle = (name) => (event) =>
    change({ run: event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name), most: null });
  const several = new Set(runs.filter((run) => chosen.includes(run.name)).map((run) => run.family)).size < chosen.length;
  const smoothing = Number(parameters.get("smooth") ?? 0);
  return [
    gone.map((name) => h("div.notice.warning", {}, `The run ${name} is not there any more: it was moved or removed.`)),
    h("div.runs", {}, Object.keys(colours).map((name) =>
      h("label.run", {}, h("input", { type: "checkbox", id: `run-${name}`, checked: chosen.includes(name), onchange: toggle(name) }),
        h("span.swatch", { style: { background: colours[name] } }), name))),
    h("div.filters", {},
      h("label.field", {}, h("span", {}, "Metrics"),
        h("input.wide", { type: "search", id: "metrics", placeholder: "regular expression, such as ^eval/|entropy", value: parameters.get("filter") ?? "", oninput: (event) => change({ filter: event.target.value || null, most: null }) })),
      h("label.field", {}, h("span", {}, "Axis"),
        h("select", { id: "axis", value: parameters.get("axis") ?? "step", onchange: (event) => change({ axis: event.target.value }) },
          [["step", "steps"], ["tokens", "tokens"], ["minutes", "minutes"]].map(([value, label]) => h("option", { value }, label)))),
      h("label.field", {}, h("span", {}, `Smoothing ${smoothing ? number(smoothing) : "off"}`),
        h("input", { type: "range", id: "smooth", min: 0, max: 0.98, step: 0.02, value: smoothing, oninput: (event) => change({ smooth: Number(event.target.value) || null }) })),
      several ? h("label.check", { title: "Runs that differ in their seeds alone become their mean, with a band from the lowest to the highest" },
        h("input", { type: "checkbox", id: "bands", checked: parameters.get("bands") === "true", onchange: (event) => change({ bands: event.target.checked || null }) }), "bands over seeds") : null,
      h("span.muted.small", { role: "status" }, problem ?? plural(matches.length, "metric"))),
  ];
}

// Exponential moving average, corrected for its start at 0.
export function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, norm] = [0, 0];
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// A chart of each metric that is drawn; those that are drawn no more are removed.
export function charts(state, library, { drawn, series, runs, colours, parameters, axis }) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--muted").trim();
  const grid = style.getPropertyValue("--line").trim();
  const weight = Number(parameters.get("smooth") ?? 0);
  for (const [name, box] of state.plots) {
    if (!drawn.includes(name)) {
      library.purge(box.lastChild);
      box.remove();
      state.plots.delete(name);
    }
  }
  for (const name of drawn) {
    let box = state.plots.get(name);
    if (!box) {
      box = h("figure.chart", { data: { metric: name } }, h("figcaption", { title: name }, metric(name), name.startsWith("eval/") ? h("span.tag", {}, "evaluation") : null), h("div.plot"));
      state.plots.set(name, box);
    }
    state.charts.append(box); // in the order of the names
    const own = series.filter((each) => each.name === name);
    const traces = parameters.get("bands") === "true" ? banded(own, runs, colours, weight) : own.flatMap((each) => lines(each, colours[each.run], weight));
    library.react(box.lastChild, traces, {
      margin: { l: 48, r: 12, t: 6, b: 30 },
      height: 220,
      autosize: true,
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { namelength: -1, font: { size: 12 } },
      uirevision: axis,
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      font: { family: "system-ui, sans-serif", size: 11, color: ink },
      xaxis: { gridcolor: grid, zeroline: false, title: { text: axis, standoff: 4 }, rangemode: "tozero" },
      yaxis: { gridcolor: grid, zeroline: false, automargin: true },
    }, { displayModeBar: false, responsive: true });
  }
}

function lines(each, colour, weight) {
  const evaluated = each.name.startsWith("eval/");
  const line = { name: each.run, x: each.x, y: smoothed(each.y, evaluated ? 0 : weight), mode: evaluated ? "lines+markers" : "lines", line: { color: colour, width: 2 }, marker: { size: 6 } };
  if (!weight || evaluated) return [line];
  return [{ ...line, y: each.y, opacity: 0.25, hoverinfo: "skip", line: { color: colour, width: 1 } }, line];
}

// The value of a curve at a place that may lie between two of its points.
function between({ x, y }, place) {
  const after = x.findIndex((each) => each >= place);
  if (after < 1) return y[0];
  return y[after - 1] + ((place - x[after - 1]) / (x[after] - x[after - 1])) * (y[after] - y[after - 1]);
}

// Of runs that differ in their seeds alone, the mean and a band from the lowest to the highest.
function banded(series, runs, colours, weight) {
  const families = {};
  for (const each of series) (families[runs.find((run) => run.name === each.run)?.family ?? each.run] ??= []).push(each);
  return Object.values(families).flatMap((members, index) => {
    const colour = colours[members[0].run];
    if (members.length < 2) return lines(members[0], colour, weight);
    const evaluated = members[0].name.startsWith("eval/");
    const smooth = members.map((each) => ({ ...each, y: smoothed(each.y, evaluated ? 0 : weight) }));
    const from = Math.max(...smooth.map((each) => each.x[0]));
    const to = Math.min(...smooth.map((each) => each.x.at(-1)));
    const x = smooth[0].x.filter((place) => from <= place && place <= to);
    const found = x.map((place) => smooth.map((each) => between(each, place)));
    const at = (fold) => found.map(fold);
    const hidden = { x, mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip" };
    const name = members.map((each) => each.run).join(", ");
    return [
      { ...hidden, y: at((values) => Math.min(...values)) },
      { ...hidden, y: at((values) => Math.max(...values)), fill: "tonexty", fillcolor: `${colour}33` },
      { name, x, y: at((values) => values.reduce((a, b) => a + b, 0) / values.length), mode: evaluated ? "lines+markers" : "lines", line: { color: colour, width: 2, dash: DASHES[index % DASHES.length] } },
    ];
  });
}

export function diff({ runs, rows }, title) {
  const one = runs.length === 1;
  return h("section.panel", {},
    h("h2", {}, title ?? (one ? "Settings that are not defaults" : "Settings that differ")),
    rows.length
      ? h("div.scroll", {}, h("table.diff", {},
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name), row.values.map((value, index) => h("td", { title: row.sources[index] }, value)))))))
      : h("p.muted", {}, one ? "All settings are defaults." : "None: the runs have the same settings, seeds included."));
}
