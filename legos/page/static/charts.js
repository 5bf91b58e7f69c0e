// Small charts as SVG: sparklines, and strips of steps.

import { svg } from "./dom.js";
import { number } from "./format.js";

// A line through [step, value] pairs, with its area and its newest point.
export function sparkline(points, { width = 280, height = 56, limit = null, label = "" } = {}) {
  const finite = points.filter((each) => Number.isFinite(each[1]));
  const chart = svg("svg.spark", {
    viewBox: `0 0 ${width} ${height}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  if (!finite.length) return chart;
  const xs = finite.map((each) => each[0]);
  const ys = finite.map((each) => each[1]).concat(limit === null ? [] : [limit]);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (high - low < 1e-12) [low, high] = [low - 1, high + 1];
  const x = (value) => (right > left ? ((value - left) / (right - left)) * (width - 8) + 2 : width - 6);
  const y = (value) => height - 5 - ((value - low) / (high - low)) * (height - 10);
  const line = finite.map((each) => `${x(each[0]).toFixed(1)},${y(each[1]).toFixed(1)}`);
  if (finite.length > 1) {
    chart.append(
      svg("polygon.area", {
        points: `${x(left)},${height} ${line.join(" ")} ${x(xs.at(-1))},${height}`,
      }),
      svg("polyline.line", { points: line.join(" "), "vector-effect": "non-scaling-stroke" }),
    );
  }
  if (limit !== null) {
    chart.append(svg("line.limit", { x1: 0, x2: width, y1: y(limit), y2: y(limit) }));
  }
  const end = finite.at(-1);
  chart.append(svg("path.end", { d: `M${x(end[0])} ${y(end[1])}h0.01`, "vector-effect": "non-scaling-stroke" }));
  chart.append(svg("title", {}, `${number(finite[0][1])} → ${number(end[1])}`));
  return chart;
}

// The steps of a run as a strip, on which ranges of steps are marked.
export function strip(spans, { first = 0, end, level }) {
  const width = Math.max(1, end - first);
  return svg(
    `svg.strip.${level}`,
    { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": `steps ${spans.map((each) => (each[0] === each[1] ? each[0] : each.join(" to "))).join(", ")}` },
    svg("rect.back", { x: 0, y: 0, width: 1000, height: 10, rx: 2 }),
    spans.map(([from, to]) =>
      svg(
        "rect.mark",
        {
          x: ((from - first - 1) / width) * 1000,
          y: 0,
          width: Math.max(3, ((to - from + 1) / width) * 1000),
          height: 10,
        },
        svg("title", {}, from === to ? `step ${from}` : `steps ${from} to ${to}`),
      ),
    ),
  );
}
