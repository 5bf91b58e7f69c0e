// What the views of one run share: which run is shown, the field that chooses it, and when to draw.

import { get } from "../api.js";
import { h, show } from "../dom.js";
import { address } from "../route.js";

// The chosen run, or else the first, and the names of all; where there is none, the view says so.
export async function chosenRun(root, parameters, valid, none = "No run yet.") {
  const runs = (await get("names")).values.names;
  const run = parameters.get("run") ?? runs[0];
  if (!run && valid()) show(root, h("div.empty", {}, h("p", {}, none)));
  return { run, runs };
}

export function runField(view, run, runs) {
  const open = (event) => (location.hash = address(view, { run: event.target.value }));
  return h("select", { id: "run", "aria-label": "Run", value: run, onchange: open },
    runs.map((name) => h("option", { value: name }, name)));
}

// Whether to draw values: the view is still shown, and they differ from what it shows. While plays
// wait to be read, the view asks again soon.
export function isNew(stamp, { waiting }, { again, state, valid }) {
  if (!valid()) return false;
  if (waiting) setTimeout(() => window.dispatchEvent(new Event("hashchange")), 30);
  if (again && state.stamp === stamp) return false;
  state.stamp = stamp;
  return true;
}
