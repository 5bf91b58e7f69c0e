// A report of runs as one document, from the values in its file.

import { rewards } from "./chips.js";
import { sparkline } from "./charts.js";
import { h, show } from "./dom.js";
import { count, duration, LABELS, last, metric, number, plural, signed } from "./format.js";
import { charts, coloursOf, diff } from "./views/curves.js";
import { figure } from "./views/overview.js";
import { dialogue } from "./views/play.js";

const values = JSON.parse(document.getElementById("values").textContent);
const several = values.runs.length > 1;
const colours = coloursOf(values.runs.map((run) => run.name));
const plots = h("div.charts");

show(document.getElementById("main"),
  h("div.head", {},
    h("h1", {}, values.runs.map((run) => run.name).join(", ")),
    h("span.muted", {}, `report of ${new Date(1000 * values.made_at).toLocaleString()}, legos ${values.version}`)),
  h("div.cards", {}, values.runs.map(summary)),
  evaluations(),
  h("h2", {}, "Curves"),
  several ? h("div.runs", {}, values.runs.map((run) => h("span.run", {}, h("span.swatch", { style: { background: colours[run.name] } }), run.name)),
    h("span.muted.small", {}, "Runs that differ in their seeds alone are drawn as their mean, between the lowest and the highest.")) : null,
  plots,
  values.runs.map(plays),
  diff(values.settings, "Settings that are not defaults"),
  values.runs.map(repeat));

if (window.Plotly) {
  charts({ charts: plots, plots: new Map() }, window.Plotly,
    { drawn: values.names, series: values.series, runs: values.runs, colours, parameters: new URLSearchParams({ bands: "true" }), axis: "step" });
} else {
  show(plots, values.names.map((name) => h("figure.chart", { data: { metric: name } }, h("figcaption", {}, metric(name)),
    values.series.filter((each) => each.name === name).map((each) => [
      h("div.small.muted", {}, several ? `${each.run}: ` : "", `${number(each.y[0])} at step ${each.x[0]}, ${number(each.y.at(-1))} at step ${each.x.at(-1)}`),
      sparkline(each.x.map((x, index) => [x, each.y[index]]), { label: `${metric(name)} of ${each.run}` }),
    ]))));
}

function summary(run) {
  const facts = [
    `step ${number(run.step)}${run.steps ? ` of ${number(run.steps)}` : ""}`,
    run.seconds ? `took ${duration(run.seconds)}` : null,
    run.tokens ? `${count(run.tokens)} tokens sampled` : null,
    run.forked_from ? `forked from ${run.forked_from}` : null,
  ];
  return h("article.card", { data: { run: run.name } },
    h("div.card-head", {}, h("span.name", {}, run.name), h(`span.state.${run.state}`, {}, LABELS[run.state] ?? run.state)),
    h("div.muted.small", {}, [last(run.arena), run.model, run.seed !== undefined ? `seed ${run.seed}` : null].filter(Boolean).join(" · ")),
    run.key.map(figure),
    h("div.small.muted", {}, facts.filter(Boolean).join(" · ")),
    run.failure ? h("div.notice.error", {}, run.failure) : null,
    run.missing.map((text) => h("div.notice.warning", {}, text)),
    run.history.map((alarm) => h(`div.message.${alarm.level}`, {}, h("b", {}, `${plural(alarm.count, "step")}: `), alarm.text)));
}

function evaluations() {
  const { columns, larger_is_better: better } = values.evaluations;
  if (!columns.length) return null;
  const names = [...new Set(columns.flatMap((each) => Object.keys(each.figures)))];
  const cell = (found) => (found ? [number(found[0]), found[1] < found[2] ? h("span.small.muted", {}, ` ${number(found[1])} to ${number(found[2])}`) : null] : "–");
  const steps = (each, at) => (each.steps[0].join() === each.steps[1].join() && at ? "–" : `step ${each.steps[at].join(", ")}`);
  return h("section.panel", {}, h("h2", {}, "Evaluations before and after"),
    h("div.scroll", {}, h("table.evaluations", {},
      h("thead", {},
        several ? h("tr", {}, h("td"), columns.map((each) => h("th", { scope: "colgroup", colspan: 3 }, each.runs.join(", "), each.runs.length > 1 ? `: mean of ${each.runs.length}` : ""))) : null,
        h("tr", {}, h("td"), columns.map((each) => [h("th", { scope: "col" }, steps(each, 0)), h("th", { scope: "col" }, steps(each, 1)), h("th", { scope: "col" }, "change")]))),
      h("tbody", {}, names.map((name) => h("tr", {}, h("th", { scope: "row" }, metric(name)), columns.map((each) => {
        const [before, after] = each.figures[name] ?? [];
        const change = before && after ? after[0] - before[0] : null;
        const kind = !change || !(name in better) ? "" : change > 0 === better[name] ? ".good" : ".bad";
        return [h("td", {}, cell(before)), h("td", {}, cell(after)), h(`td${kind}`, {}, change === null ? "" : signed(change))];
      })))))));
}

function plays(run) {
  const found = values.plays[run.name] ?? [];
  if (!found.length) return null;
  return h("section", { data: { plays: run.name } }, h("h2", {}, several ? `Plays of ${run.name}` : "Plays"),
    found.map(({ why, plays: among, play }, index) => h("details.panel", { open: index === 0 },
      h("summary", {}, h("b", {}, `step ${play.step ?? "–"}: ${why}`), h("span.muted.small", {}, ` among ${among} ${play.evaluation ? "of the evaluation" : "stored"}, ${play.arena}, task ${play.task}, play ${play.number} `), rewards(play.returns)),
      dialogue(play))));
}

function repeat(run) {
  return h("section.panel", {}, h("h2", {}, several ? `Repeat ${run.name}` : "Repeat it"),
    h("p.small.muted", {}, "Train again with the same settings, evaluate its newest adapter, and continue it. Runs repeat bit for bit with --deterministic alone."),
    h("pre.commands", {}, run.commands.join("\n")),
    run.config ? h("details", {}, h("summary", {}, "config.toml"), h("pre", {}, run.config)) : null);
}
