// The opponents of a run: the rating over its steps, the members, and their scores as a heat map.

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { h, show, svg } from "../dom.js";
import { number, plural, signed } from "../format.js";
import { address } from "../route.js";
import { chosenRun, isNew, runField } from "./one_run.js";

export const title = "League";
const [WIDTH, HEIGHT, LEFT, UNDER] = [900, 220, 56, 26]; // of the chart of the rating

export async function draw(root, parameters, options) {
  const { run, runs } = await chosenRun(root, parameters, options.valid);
  if (!run) return;
  const { values, text } = await get("league", { run });
  if (!isNew(text + run + runs.join(), values, options)) return;
  show(
    root,
    h("div.head", {}, h("h1", {}, "League"), runField("league", run, runs)),
    values.leagues.length
      ? values.leagues.map((each) => arena(each, run, values))
      : h("div.empty", {}, values.problem ? h("p", {}, values.problem) : h("p", {}, "This run has no opponents: its policy plays itself alone. ",
          h("code", {}, "--play.opponents self=0.5 --play.opponents past=0.5"), " lets it meet its own past.")),
  );
}

function arena(league, run, { leagues, plays_kept: kept }) {
  const members = Object.entries(league.ratings);
  const shares = Object.entries(league.shares).map(([name, share]) => `${name} ${number(100 * share)} %`);
  return [
    leagues.length > 1 ? h("h2", {}, league.arena) : null,
    h("p.muted", {}, `opponents: ${shares.join(", ")}`),
    h("section.panel", {}, h("h2", {}, "Rating over the steps"), rating(league.elo),
      h("p.small.muted", {}, "Elo of the policy among the members it has met, with intervals of 95 %; 0 is a random player, where it is one of them, otherwise the oldest snapshot.")),
    h("div.columns", {},
      h("section.panel", {}, h("h2", {}, "Members"), members.length ? table(members) : h("p.muted", {}, "Nobody has met yet."),
        league.alone.length ? h("p.small.muted", {}, `met nobody yet: ${league.alone.join(", ")}`) : null),
      h("section.panel", {}, h("h2", {}, "Scores"), heat(members.map(([name]) => name), league, run),
        league.cycle.length ? h("p.small", {}, `Strongest cycle, of whom each beats the next: ${league.cycle.join(", ")}.`) : null,
        h("p.small.muted", {}, "Row against column: 1 is a win, 0.5 a draw. A cell opens the plays, by the steps that trained on them; those of people are in no run.",
          kept < 1 ? ` The run keeps the plays of ${number(100 * kept)} % of its tasks (loop.plays_kept), so a cell may open few or none.` : null))),
    h("section.panel", {}, h("h2", {}, "Guards"), guards(league.guards)),
    h("div.charts", {}, Object.entries(league.met).map(([name, { plays, score }]) =>
      h("figure.chart", {}, h("figcaption", {}, `score against ${name}`,
        h("span.muted.small", {}, ` ${number(score.at(-1)?.[1])} in ${plural(plays.at(-1)?.[1] ?? 0, "play")} of the newest step`)),
        sparkline(score, { height: 90, limit: 0.5, label: `score against ${name} over the steps` })))),
  ];
}

function rating(points) {
  if (points.length < 2) return h("p.muted", {}, "Fewer than two snapshots have met others.");
  const ends = points.flatMap(([, , low, high]) => [low, high]);
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = (step) => LEFT + ((step - first) / (last - first)) * (WIDTH - LEFT - 12);
  const y = (elo) => 8 + ((high - elo) / (high - low || 1)) * (HEIGHT - UNDER - 8);
  const at = (index) => points.map((each) => `${x(each[0]).toFixed(1)},${y(each[index]).toFixed(1)}`);
  return svg("svg.ratings", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `rating from ${number(points[0][1])} to ${number(points.at(-1)[1])} Elo` },
    [low, (low + high) / 2, high].map((elo) => [
      svg("line.grid", { x1: LEFT, x2: WIDTH, y1: y(elo), y2: y(elo) }),
      svg("text.axis", { x: LEFT - 6, y: y(elo) + 4, "text-anchor": "end" }, signed(Math.round(elo)))]),
    svg("polygon.area", { points: [...at(2), ...at(3).reverse()].join(" ") }),
    svg("polyline.line", { points: at(1).join(" ") }),
    points.map(([step, elo, from, to]) =>
      svg("circle.end", { cx: x(step), cy: y(elo), r: 3 }, svg("title", {}, `step ${step}: ${signed(Math.round(elo))} (${signed(Math.round(from))} to ${signed(Math.round(to))})`))),
    [first, last].map((step) => svg("text.axis", { x: x(step), y: HEIGHT - 6, "text-anchor": step === first ? "start" : "end" }, `step ${step}`)));
}

function table(members) {
  return h("table", {},
    h("thead", {}, h("tr", {}, ["member", "rating", "95 %", "plays"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, members.map(([name, one]) =>
      h("tr", {}, h("td", {}, name), h("td.num", {}, signed(Math.round(one.rating))),
        h("td.muted", {}, `${signed(Math.round(one.low))} to ${signed(Math.round(one.high))}`), h("td.num", {}, number(one.plays))))));
}

// What the newest snapshots are judged by; the names are those of the metrics, without the arena.
function guards(rows) {
  const found = Object.entries(rows);
  if (!found.length) return h("p.muted", {}, "No snapshot has been judged yet.");
  return h("table.guards", {},
    h("thead", {}, h("tr", {}, ["metric", "step", "value", "wrong if", "alarm"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, found.map(([name, { value, step, limit, below, alarm: level, members }]) =>
      h("tr", {}, h("td", {}, name), h("td.num", {}, number(step)),
        value === null ? h("td.muted", {}, "too few plays") : h("td.num", {}, number(value)),
        h("td.muted", {}, `${below ? "at most" : "at least"} ${number(limit)}`),
        h("td", {}, level ? h(`span.tag.${level}`, {}, level) : h("span.good", {}, "none"), members.length ? ` ${members.join(", ")}` : null)))));
}

// Rows and columns in the order of the ratings; a cell is the warmer the higher the score of its row.
// The plays of a pair are those of the policy against the older snapshot, in the steps after the newer
// one, up to that of the next. Two snapshots of one step have met as policies that both learn.
function heat(names, { arena: name, matrix, ratings }, run) {
  const cell = (mine, theirs) => {
    const found = matrix[mine]?.[theirs];
    if (!found) return h("td.none", {}, mine === theirs ? "" : "–");
    const share = Math.abs(found.score - 0.5) * 2;
    const colour = found.score >= 0.5 ? "--good" : "--bad";
    const counts = ["wins", "draws", "losses", "forfeits"].filter((each) => found[each] || each === "wins").map((each) => `${number(found[each])} ${each}`);
    const text = `${mine} against ${theirs}: score ${number(found.score)}, mean reward ${signed(found.reward)}, ${plural(found.plays, "play")} (${counts.join(", ")})`;
    const person = [mine, theirs].some((each) => each.startsWith("person:")); // whose plays are in no run
    const [older, newer] = [mine, theirs].sort((a, b) => (ratings[a].step ?? -1) - (ratings[b].step ?? -1));
    const { step, until } = ratings[newer];
    const apart = !person && step !== ratings[older].step;
    const plays = { run, arena: name, seat: older, kind: "training", step_min: step + 1, step_max: until };
    return h("td.num", { style: { background: `color-mix(in srgb, var(${colour}) ${Math.round(45 * share)}%, transparent)` } },
      apart
        ? h("a", { href: address("plays", plays), title: text, "aria-label": text }, found.score.toFixed(2))
        : h("span", { title: text }, found.score.toFixed(2)));
  };
  return h("div.wideable", {}, h("table.heat", {},
    h("thead", {}, h("tr", {}, h("td", {}), names.map((each, index) => h("th", { scope: "col", title: each, "aria-label": each }, index + 1)))),
    h("tbody", {}, names.map((mine, index) => h("tr", {}, h("th", { scope: "row" }, `${index + 1} ${mine}`), names.map((theirs) => cell(mine, theirs)))))));
}
