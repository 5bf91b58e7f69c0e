// What the policy does in the same positions, and answers to the same tasks, over the steps.

import { get } from "../api.js";
import { rewards } from "../chips.js";
import { h, show, svg } from "../dom.js";
import { number, plural } from "../format.js";
import { address } from "../route.js";
import { board } from "./boards.js";
import { COLOURS } from "./curves.js";
import { chosenRun, isNew, runField } from "./one_run.js";

export const title = "Policy";

export async function draw(root, parameters, options) {
  const { run, runs } = await chosenRun(root, parameters, options.valid);
  if (!run) return;
  const { values, text } = await get("policy", { run });
  const stamp = text + run + runs.join();
  if (!isNew(stamp, values, options)) return;
  const { positions, tasks } = values;
  show(
    root,
    h("div.head", {},
      h("h1", {}, "Policy"),
      runField("policy", run, runs),
      h("span.muted", {}, "from the plays that are stored")),
    positions.length
      ? [h("p.muted", {}, "The probability of each move in the positions that were played most, when it was sampled. Dashed: an optimal policy."),
         h("div.positions", {}, positions.map(position))]
      : null,
    tasks.length ? h("div.tasks", {}, tasks.map((task) => answers(run, task))) : null,
    positions.length || tasks.length ? null : h("div.empty", {}, h("p", {}, values.waiting ? "Reading…" : "No position or task was stored at two steps.")),
  );
}

function position(each) {
  const moves = [...new Set([...(each.optimal ?? []).map((one) => one.move), ...Object.keys(each.moves)])];
  const colour = (move) => COLOURS[moves.indexOf(move) % COLOURS.length];
  return h("figure.chart", {},
    h("figcaption", {}, each.role, h("span.muted.small", {}, ` ${plural(each.num_moves, "move")}`)),
    board({ ...each, move: null }) ?? h("pre.small", {}, each.asked),
    lines(each, moves, colour),
    h("div.key.small", {}, moves.map((move) => h("span", {}, h("i", { style: { background: colour(move) } }), `${move} `, latest(each, move)))));
}

// The newest probability of a move, and its step where others were sampled later.
function latest({ moves: found }, move) {
  const newest = Math.max(...Object.values(found).flat().map((each) => each[0]));
  const [step, value] = found[move]?.at(-1) ?? [];
  if (step === undefined) return h("b", {}, "–");
  const shown = `${number(Math.round(100 * value))} %`;
  return step === newest ? h("b", {}, shown) : h("span.muted", {}, `${shown} in step ${step}`);
}

// The probability of each move over the steps, from 0 to 1.
function lines({ moves: found, optimal, asked }, moves, colour) {
  const [width, height] = [360, 120];
  const steps = Object.values(found).flat().map((each) => each[0]);
  const [left, right] = [Math.min(...steps), Math.max(...steps)];
  const x = (step) => 26 + (right > left ? (step - left) / (right - left) : 0.5) * (width - 36);
  const y = (value) => 8 + (1 - value) * (height - 28);
  return svg("svg.probabilities", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `probabilities of moves at ${asked.split("\n")[0]}` },
    [0, 0.5, 1].map((value) => [svg("line.grid", { x1: 26, x2: width - 10, y1: y(value), y2: y(value) }), svg("text.axis", { x: 20, y: y(value) + 4, "text-anchor": "end" }, value)]),
    svg("text.axis", { x: 26, y: height - 4 }, `step ${left}`),
    right > left ? svg("text.axis", { x: width - 10, y: height - 4, "text-anchor": "end" }, `step ${right}`) : null,
    (optimal ?? []).map((one) => svg("line.optimal", { x1: 26, x2: width - 10, y1: y(one.optimal), y2: y(one.optimal), stroke: colour(one.move) })),
    moves.map((move) => {
      const points = found[move] ?? [];
      return [
        svg("polyline.curve", { points: points.map((each) => `${x(each[0])},${y(each[1])}`).join(" "), stroke: colour(move) }),
        points.map((each) => svg("circle", { cx: x(each[0]), cy: y(each[1]), r: 2.5, fill: colour(move) }, svg("title", {}, `${move}: ${number(100 * each[1])} % in step ${each[0]}`))),
      ];
    }));
}

function answers(run, task) {
  return h("section.panel", {},
    h("h2", {}, task.asked || task.task),
    h("table", {}, h("tbody", {}, task.answers.map((row) =>
      h("tr", {},
        h("td.num", {}, h("a", { href: address("plays", { run, play: row.number }) }, `step ${row.step}`)),
        h("td.said", {}, row.answer),
        h("td.num", {}, rewards(row.rewards)))))));
}
