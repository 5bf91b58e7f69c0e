// Where time goes: engine, trainer and publications of the newest steps, and stored plays by the clock.

import { get } from "../api.js";
import { sparkline } from "../charts.js";
import { h, show, svg } from "../dom.js";
import { duration, metric, number, percent, plural } from "../format.js";
import { address, change } from "../route.js";
import { chosenRun, isNew, runField } from "./one_run.js";

export const title = "Timeline";
const WIDTH = 1200;
const LEFT = 96; // of the lanes
const LANE = 26;

export async function draw(root, parameters, options) {
  const { run, runs } = await chosenRun(root, parameters, options.valid);
  if (!run) return;
  const steps = parameters.get("steps") ?? "40";
  const { values, text } = await get("timeline", { run, steps });
  const stamp = text + run + steps + runs.join();
  if (!isNew(stamp, values, options)) return;
  show(
    root,
    h("div.head", {},
      h("h1", {}, "Timeline"),
      runField("timeline", run, runs),
      h("select", { id: "steps", "aria-label": "Steps", value: steps, onchange: (event) => change({ steps: event.target.value }) },
        ["10", "40", "150", "500"].map((each) => h("option", { value: each }, `newest ${each} steps`))),
      h("span.muted", {}, `of ${plural(values.total, "step")}`)),
    values.steps.length ? [lanes(values.steps), shares(values.steps)] : h("div.empty", {}, h("p", {}, "No step yet.")),
    values.plays.length ? plays(run, values.plays) : null,
    h("div.charts", {}, Object.entries(values.lines).map(([name, points]) =>
      h("figure.chart", {}, h("figcaption", {}, metric(name), h("span.muted.small", {}, ` ${number(points.at(-1)?.[1])} in the newest step`)),
        sparkline(points, { height: 90, label: metric(name) })))),
  );
}

function lanes(steps) {
  const total = steps.reduce((sum, each) => sum + each.seconds, 0) || 1;
  const scale = (WIDTH - LEFT - 10) / total;
  const names = ["steps", "engine", "trainer", "publication"];
  const row = (index) => 8 + index * (LANE + 8);
  let at = LEFT;
  const marks = steps.map((each) => {
    const [x, width] = [at, each.seconds * scale];
    at += width;
    const bar = (index, seconds, from, kind, text) =>
      svg(`rect.${kind}`, { x: x + from, y: row(index), width: Math.max(0.5, seconds * scale - 0.5), height: LANE, rx: 2 },
        svg("title", {}, `step ${each.step}: ${text}`));
    const trained = width - (each.trainer_s ?? 0) * scale; // the update ends the step
    return [
      bar(0, each.seconds, 0, "lane-step", `${number(each.seconds)} s`),
      width > 34 ? svg("text.axis", { x: x + 5, y: row(0) + 17 }, each.step) : null,
      each.engine_s === null ? null : bar(1, each.engine_s, 0, "lane-engine", `the engine computed for ${number(each.engine_s)} s`),
      each.trainer_s === null ? null : bar(2, each.trainer_s, trained, "lane-trainer", `the trainer worked for ${number(each.trainer_s)} s`),
      each.published
        ? svg("circle.lane-publish", { cx: x + width - 1, cy: row(3) + LANE / 2, r: Math.min(5, 2 + width / 8) }, svg("title", {}, `version ${each.version} after step ${each.step}`))
        : svg("text.lane-skip", { x: x + width - 4, y: row(3) + 17, "text-anchor": "end" }, "×", svg("title", {}, `step ${each.step} changed no weight`)),
    ];
  });
  return h("section.panel", {},
    h("h2", {}, "Where time goes"),
    h("p.small.muted", {}, `${duration(total)}; within a step, only the lengths of engine and trainer are known, not when they worked`),
    h("div.scroll", {}, svg("svg.lanes", { viewBox: `0 0 ${WIDTH} ${row(4)}`, role: "img", "aria-label": "time of engine and trainer in each step" },
      names.map((name, index) => svg("text.lane-name", { x: 4, y: row(index) + 17 }, name)), marks)));
}

function shares(steps) {
  const sum = (name) => steps.reduce((total, each) => total + each[name], 0);
  const total = sum("seconds") || 1;
  if (steps.some((each) => each.engine_s === null || each.trainer_s === null)) {
    return h("p.small", {}, "The time of the engine was not measured: players of other processes ask it.");
  }
  const both = Math.max(0, total - sum("engine_s") - sum("trainer_s"));
  return h("p.small", {}, `The engine computed in ${percent(sum("engine_s") / total)} of the time and the trainer worked in ${percent(sum("trainer_s") / total)}`,
    both > 0 ? `; in ${percent(both / total)} or more neither did.` : "; they work at the same time.");
}

// Stored plays as bars, each in the first lane that is free.
function plays(run, found) {
  const ordered = [...found].sort((a, b) => a.from - b.from);
  const [start, end] = [ordered[0].from, Math.max(...ordered.map((each) => each.to))];
  const scale = (WIDTH - LEFT - 10) / (end - start || 1);
  const free = [];
  const bars = ordered.map((each) => {
    const x = LEFT + (each.from - start) * scale;
    const width = Math.max(1.5, (each.to - each.from) * scale);
    let lane = free.findIndex((until) => until <= x);
    if (lane < 0) lane = free.length;
    free[lane] = x + width + 1;
    return { each, x, width, lane };
  });
  const height = Math.max(3, Math.min(10, 320 / free.length));
  return h("section.panel", {},
    h("h2", {}, "Stored plays by the clock"),
    h("p.small.muted", {}, `${plural(found.length, "play")} over ${duration(end - start)}; colours alternate with the step, evaluations are grey, failed and void plays red`),
    h("div.scroll", {}, svg("svg.lanes", { viewBox: `0 0 ${WIDTH} ${free.length * (height + 1) + 6}`, role: "group", "aria-label": "plays by the clock" },
      svg("text.lane-name", { x: 4, y: 12 }, "players"),
      bars.map(({ each, x, width, lane }) =>
        svg("a", { href: address("plays", { run, play: each.number }) },
          svg(`rect.${each.failure ? "lane-failed" : each.evaluation ? "lane-step" : each.step % 2 ? "lane-engine" : "lane-trainer"}`, { x, y: 2 + lane * (height + 1), width, height, rx: 1 },
            svg("title", {}, `play ${each.number}, step ${each.step}${each.evaluation ? ", evaluation" : ""}: ${number(each.to - each.from)} s${each.failure ? `, ${each.failure}` : ""}`)))))));
}
