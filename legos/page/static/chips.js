// Rewards as coloured chips.

import { h } from "./dom.js";
import { signed } from "./format.js";

// Role -> reward; the role is shown where there are several.
export function rewards(values) {
  const several = Object.keys(values).length > 1;
  return Object.entries(values).map(([role, value]) =>
    h(`span.reward.${value > 0 ? "good" : value < 0 ? "bad" : "even"}`, { title: `reward of ${role}` }, several ? h("small", {}, role, " ") : null, signed(value)));
}
