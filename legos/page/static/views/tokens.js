// Tokens of an answer, each coloured by one of the numbers that are stored of it.

import { h } from "../dom.js";
import { number, signed } from "../format.js";

// Numbers of a token. `sampled` is the engine's log-probability, `trained` that of the trainer.
export function tokensOf(turn, pieces) {
  const trained = turn.trained;
  const known = (trained?.logprobs ?? []).length === turn.token_ids.length;
  return turn.token_ids.map((id, index) => {
    const sampled = turn.logprobs[index];
    const now = known ? trained.logprobs[index] : null;
    const gap = now === null || sampled === undefined ? null : now - sampled;
    return {
      id,
      text: pieces ? pieces[index] : null,
      version: turn.versions[index] ?? null,
      logprob: sampled ?? null,
      trained: now,
      gap,
      ratio: gap === null ? null : Math.exp(gap),
      advantage: trained?.advantage ?? null,
      entropy: trained?.entropies?.[index] ?? null,
      mask: maskOf(trained, index, known),
    };
  });
}

function maskOf(trained, index, known) {
  if (!trained) return null;
  if (trained.reason) return trained.reason;
  if (trained.masked?.includes(index)) return "masked";
  if (trained.clipped?.includes(index)) return "clipped";
  return known ? "trained" : null;
}

const mix = (colour, share) =>
  `color-mix(in oklab, var(--${colour}) ${Math.round(100 * Math.min(1, Math.max(0, share)))}%, transparent)`;
const diverging = (value, scale) => (value < 0 ? mix("cold", -value / scale) : mix("warm", value / scale));

// What tokens can be coloured by: how, the legend from left to right, and what it means.
export const COLOURS = {
  none: { label: "none" },
  version: {
    label: "version",
    colour: (token, play) => `color-mix(in oklab, hsl(${(play.versions.indexOf(token.version) * 67 + 205) % 360} 70% 55%) 38%, transparent)`,
    about: "adapter version that sampled the token",
  },
  logprob: {
    label: "log-probability",
    colour: (token) => mix("cold", -token.logprob / 5),
    legend: ["0", "−5"], scale: ["transparent", "var(--cold)"],
    about: "log-probability under the policy that sampled, in nats; strong: improbable",
  },
  ratio: {
    label: "ratio",
    colour: (token) => diverging(token.gap, 0.7),
    legend: ["0.5", "1", "2"], scale: ["var(--cold)", "transparent", "var(--warm)"],
    about: "probability before the update divided by that when it was sampled",
  },
  gap: {
    label: "gap",
    colour: (token) => mix("mark", Math.abs(token.gap) / 0.5),
    legend: ["0", "0.5"], scale: ["transparent", "var(--mark)"],
    about: "distance of the trainer's log-probability from the engine's, in nats",
  },
  advantage: {
    label: "advantage",
    colour: (token) => (token.advantage < 0 ? mix("bad", -token.advantage / 2) : mix("good", token.advantage / 2)),
    legend: ["−2", "0", "+2"], scale: ["var(--bad)", "transparent", "var(--good)"],
    about: "advantage of the token: positive ones were made more probable",
  },
  entropy: {
    label: "entropy",
    colour: (token) => mix("mark", token.entropy / 3),
    legend: ["0", "3"], scale: ["transparent", "var(--mark)"],
    about: "entropy of the policy at the token, in nats",
  },
  mask: {
    label: "mask",
    colour: (token) => ({ trained: mix("good", 0.35), clipped: mix("warm", 0.6), masked: mix("cold", 0.6) })[token.mask] ?? mix("muted", 0.5),
    about: "green: trained; orange: clipped; blue: dropped by a correction; grey: why the turn was left out",
  },
};

// Of which values a play has any.
export function available(tokens) {
  const has = (name) => tokens.some((token) => token[name] !== null && token[name] !== undefined);
  return Object.keys(COLOURS).filter((name) => name === "none" || has(name));
}

export function tokenSpans(tokens, by, play, turn) {
  const rule = COLOURS[by];
  return tokens.map((token, index) => {
    const text = token.text ?? `#${token.id} `;
    const known = rule.colour && token[by] !== null && token[by] !== undefined;
    return h(
      "span.token",
      { data: { tip: `${turn} ${index}`, mask: token.mask ?? "" }, style: known ? { backgroundColor: rule.colour(token, play) } : {} },
      text.includes("\n") ? text.replaceAll("\n", "⏎\n") : text,
    );
  });
}

export function tokenTip(token) {
  const shown = token.text === null ? "" : JSON.stringify(token.text);
  const rows = [
    ["token", `${token.id} ${shown}`],
    ["version", token.version],
    ["probability", token.logprob === null ? null : `${number(100 * Math.exp(token.logprob))} %`],
    ["log-probability", token.logprob === null ? null : number(token.logprob, 4)],
    ["… of the trainer", token.trained === null ? null : number(token.trained, 4)],
    ["ratio", token.ratio === null ? null : number(token.ratio, 4)],
    ["gap", token.gap === null ? null : signed(token.gap)],
    ["advantage", token.advantage === null ? null : signed(token.advantage)],
    ["entropy", token.entropy === null ? null : number(token.entropy)],
    ["update", token.mask],
  ];
  return h("dl", {}, rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function legend(by) {
  const rule = COLOURS[by];
  if (!rule.about) return null;
  return h("div.legend.small.muted", {},
    rule.scale ? [h("span", {}, rule.legend[0]), h("span.ramp", { style: { background: `linear-gradient(90deg, ${rule.scale.join(", ")})` } }), h("span", {}, rule.legend.at(-1))] : null,
    h("span", {}, rule.about));
}
