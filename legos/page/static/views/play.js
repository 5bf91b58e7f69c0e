// One play: its dialogue or board, step by step, with its tokens and the plays beside it.

import { get } from "../api.js";
import { rewards } from "../chips.js";
import { h, show } from "../dom.js";
import { duration, number, percent, plural, signed } from "../format.js";
import { address, change, route } from "../route.js";
import { board } from "./boards.js";
import { available, COLOURS, legend, tokensOf, tokenSpans, tokenTip } from "./tokens.js";

export async function draw(root, run, parameters, { again, state, valid }) {
  const number_ = parameters.get("play");
  const place = `${run} ${number_}`;
  const known = state.place === place;
  if (again && known && state.whole && !state.play.waiting) return; // a stored play does not change
  if (!known) {
    const { values } = await get(`plays/${number_}`, { run });
    if (!valid()) return;
    Object.assign(state, { place, run, play: prepared(values), pieces: null, exact: null, whole: false });
    beside(state, place, root);
  } else if (state.play.waiting) { // the plays beside it were not all read yet
    const { values } = await get(`plays/${number_}`, { run });
    if (!valid()) return;
    state.play = prepared(values);
  }
  paint(root, state, parameters);
}

// The texts of tokens and the exact values come later, since a tokenizer and a game must be loaded.
async function beside(state, place, root) {
  const { number: own, run } = { number: state.play.number, run: state.run };
  const load = async (name) => {
    try {
      const { values } = await get(`plays/${own}/${name}`, { run });
      if (state.place !== place) return;
      if (name === "pieces") state.pieces = values;
      else state.exact = values;
    } catch (error) {
      if (name === "pieces") state.pieces = { turns: null, why: error.message };
    }
    const { view, parameters } = route(); // another view may have a play too
    if (state.place === place && view === "plays" && parameters.has("play")) paint(root, state, parameters);
  };
  await Promise.all([load("pieces"), load("exact")]);
  state.whole = true;
}

function prepared(play) {
  const all = [];
  const collect = (each) => {
    all.push(...each.turns);
    each.children.forEach(collect);
  };
  collect(play);
  play.all = all;
  play.versions = [...new Set(all.flatMap((turn) => turn.versions))].sort((a, b) => a - b);
  return play;
}

function paint(root, state, parameters) {
  const { play, pieces, exact } = state;
  state.tokens = Object.fromEntries(play.all.map((turn) => [turn.id, tokensOf(turn, pieces?.turns?.[turn.id])]));
  state.tip = (target) => {
    const [turn, index] = target.dataset.tip.split(" ").map(Number);
    return state.tokens[turn]?.[index] ? tokenTip(state.tokens[turn][index]) : "";
  };
  const values = available(Object.values(state.tokens).flat());
  const wanted = parameters.get("colour") ?? "logprob";
  state.by = values.includes(wanted) ? wanted : "none";
  const last = play.turns.length;
  state.at = Math.min(last, Math.max(1, Number(parameters.get("turn") ?? last))) || 0;
  state.last = last;
  show(
    root,
    head(state),
    h("div.play", {},
      h("section.dialogue", { "aria-label": "Play" },
        tools(state, values),
        pieces?.why ? h("div.small.muted", {}, pieces.why) : null,
        exact?.why && play.all.some((turn) => turn.choices.length) ? h("div.small.muted", {}, `no exact values: ${exact.why}`) : null,
        play.turns.slice(0, state.at).map((turn, index) => oneTurn(state, turn, index + 1 === state.at)),
        state.at === last ? ending(play) : null,
        state.at === last ? play.children.map((child, index) => spawned(state, child, index)) : null),
      h("aside", {}, seats(play), group(state), sameTask(state))),
  );
}

// All turns of a play, and how it ended, without what needs a tokenizer or a solved game.
export function dialogue(values, ended = true) {
  const play = prepared(values);
  const state = { play, tokens: Object.fromEntries(play.all.map((turn) => [turn.id, []])), by: "none" };
  return h("section.dialogue", { "aria-label": "Play" },
    play.turns.map((turn) => oneTurn(state, turn, false)), ended ? ending(play) : null, play.children.map((child, index) => spawned(state, child, index)));
}

const to = (changes) => address("plays", { ...Object.fromEntries(route().parameters), ...changes });

function head({ play, run }) {
  const facts = [play.step !== undefined ? `step ${play.step}` : null, play.evaluation ? "evaluation" : "training", play.arena, play.level];
  return h("div.head", {},
    h("a.back", { href: to({ play: null, turn: null }), title: "Back to the table (Esc)" }, "← Plays"),
    h("h1", {}, `Play ${play.number}`),
    h("span.muted", {}, `of ${run} · ${facts.filter(Boolean).join(" · ")}`),
    h("span.grow"),
    h("a.button", { href: to({ play: Math.max(1, play.number - 1), turn: null }), title: "Older play ([)" }, "‹"),
    h("a.button", { href: to({ play: play.number + 1, turn: null }), title: "Newer play (])" }, "›"));
}

function tools(state, values) {
  const { last, at, by } = state;
  const step = (turn) => () => change({ turn });
  return h("div.tools", {},
    h("div.steps", {},
      h("button", { id: "back", disabled: at <= 1, onclick: step(at - 1), title: "Step back (←)", "aria-label": "Step back" }, "←"),
      h("input", { id: "turn", type: "range", min: 1, max: Math.max(1, last), value: at || 1, disabled: last < 2, "aria-label": "Turn", oninput: (event) => change({ turn: event.target.value }) }),
      h("button", { id: "on", disabled: at >= last, onclick: step(at + 1), title: "Step forward (→)", "aria-label": "Step forward" }, "→"),
      h("span.muted.small", {}, last ? `turn ${at} of ${last}` : "no turn")),
    h("div.colours", { role: "radiogroup", "aria-label": "Colour tokens by" },
      values.map((name) => h("button.choice", { id: `by-${name}`, role: "radio", "aria-checked": String(name === by), onclick: () => change({ colour: name }) }, COLOURS[name].label))),
    legend(by));
}

function oneTurn(state, turn, current) {
  const { play, exact } = state;
  const picture = board(turn);
  const moves = exact?.turns?.[turn.id];
  const facts = [
    turn.tokens ?? turn.token_ids.length ? plural(turn.tokens ?? turn.token_ids.length, "token") : null,
    turn.answered_at > turn.asked_at ? `${number(turn.answered_at - turn.asked_at)} s` : null,
    turn.versions.length ? `version ${[...new Set(turn.versions)].join(", ")}` : null,
    turn.trained?.advantage !== undefined && turn.trained?.advantage !== null ? `advantage ${signed(turn.trained.advantage)}` : null,
    turn.finish_reason === "length" ? "cut at the token limit" : null,
  ];
  return h(`article.turn${current ? ".current" : ""}`, { data: { turn: turn.id } },
    turn.messages.slice(0, picture ? -1 : undefined).map(asked),
    h("div.told", {},
      h("div.who", {}, h("b", {}, turn.role),
        state.run && play.turns.includes(turn) ? h("a.small", { href: address("positions", { run: state.run, play: play.number, turn: play.turns.indexOf(turn) + 1 }), title: "Compare checkpoints here, and play on" }, "position") : null,
        turn.legal === false ? h("span.tag.bad", {}, "not legal") : null,
        turn.reward !== null && turn.reward !== undefined ? rewards({ [turn.role]: turn.reward }) : null,
        h("span.grow"),
        h("span.small.muted", {}, facts.filter(Boolean).join(" · "))),
      picture || moves ? h("div.position", {}, picture, moves ? exactMoves(turn, moves, exact.sampled[turn.id] ?? {}) : null) : null,
      answer(state, play, turn),
      picture ? h("details.small.muted", {}, h("summary", {}, "the position as text"), h("div.text", {}, turn.asked)) : null,
      turn.tool_calls.map(([name, given]) => h("pre.call", {}, `${name}(${given})`))));
}

function asked(message) {
  const text = h("div.text", {}, message.content);
  const start = message.content.slice(0, 90).split("\n")[0];
  return h(`div.asked.${message.role.replace(/\W/g, "")}`, {},
    message.content.length > 700 || message.role === "system"
      ? h("details", {}, h("summary", {}, h("span.muted.small", {}, message.role), ` ${start}…`), text)
      : [h("span.muted.small", {}, message.role === "user" ? "" : message.role), text]);
}

function answer(state, play, turn) {
  const tokens = state.tokens[turn.id];
  if (!tokens.length || (!state.pieces?.turns && !state.pieces?.why)) return h("div.said", {}, turn.said);
  const spans = h("div.said.tokens", {}, tokenSpans(tokens, state.by, play, turn.id));
  return state.pieces.turns ? spans : [h("div.said", {}, turn.said), h("details", {}, h("summary.small.muted", {}, "tokens by number"), spans)];
}

// The value of each move under optimal play, what was played, and how probable it was: of other moves in the plays of the step.
function exactMoves(turn, moves, sampled) {
  const best = Math.max(...moves.map((each) => each.value));
  const low = Math.min(...moves.map((each) => each.value), 0);
  const range = Math.max(best, 0) - low || 1;
  const probability = turn.logprobs.length ? Math.exp(turn.logprobs.reduce((a, b) => a + b, 0)) : null;
  const chance = (share) => (share === null || share === undefined ? "" : percent(share));
  const lost = best - (moves.find((each) => each.move === turn.move)?.value ?? best);
  return h("div.exact", {},
    h("table.exact", {},
      h("thead", {}, h("tr", {}, ["move", "value", "", "optimal", "model"].map((each) => (each ? h("th", { scope: "col" }, each) : h("td"))))),
      h("tbody", {}, moves.map((each) =>
        h("tr", { class: each.move === turn.move ? "chosen" : null },
          h("td", {}, each.move),
          h("td.num", {}, signed(each.value)),
          h("td", {}, h(`span.bar.${each.value >= best - 1e-6 ? "good" : "even"}`, { style: { width: `${6 + 74 * ((each.value - low) / range)}px` } })),
          h("td.num", {}, percent(each.optimal)),
          h("td.num", each.move === turn.move ? {} : { title: "mean of the plays of this step that made this move" },
            chance(each.move === turn.move ? probability : sampled[each.move])))))),
    turn.move && moves.some((each) => each.move === turn.move)
      ? h(`div.small.${lost > 1e-6 ? "bad" : "good"}`, {}, lost > 1e-6 ? `gives away ${number(lost)}` : "optimal")
      : null);
}

function ending(play) {
  const parts = Object.entries(play.reward_parts).flatMap(([role, each]) => Object.entries(each).map(([name, value]) => `${role} ${name} ${number(value)}`));
  return h("div.ending", {},
    play.error ? h("div.message.error", {}, h("pre", {}, play.error.trim())) : play.void ? h("b", {}, "void") : [h("b", {}, "Rewards "), rewards(play.returns)],
    parts.length ? h("div.small.muted", {}, parts.join(" · ")) : null,
    play.notes.map((note) => h("div.small", {}, note)),
    Object.entries(play.metrics).map(([name, value]) => h("span.tag", {}, `${name} ${number(value)}`)));
}

function spawned(state, child, index) {
  return h("details.spawned", {}, h("summary", {}, `Spawned play ${index + 1}: ${child.arena}, ${child.task} `, rewards(child.returns)),
    child.turns.map((turn) => oneTurn(state, turn, false)), ending(child), child.children.map((each, at) => spawned(state, each, at)));
}

function seats(play) {
  const time = play.all.length ? Math.max(...play.all.map((turn) => turn.answered_at)) - Math.min(...play.all.map((turn) => turn.asked_at)) : 0;
  return h("section.panel", {}, h("h2", {}, "Seats"),
    h("table", {}, h("tbody", {}, play.seats.map((seat) =>
      h("tr", {}, h("th", { scope: "row" }, seat.role),
        h("td", {}, seat.seat, h("span.muted.small", {}, seat.versions.length ? ` version ${seat.versions.join(", ")}` : "", seat.policy ? "" : ", not trained")),
        h("td.num", {}, seat.role in play.returns ? rewards({ [seat.role]: play.returns[seat.role] }) : null))))),
    h("div.small.muted", {}, [`task ${play.task}`, time > 0 ? `took ${duration(time)}` : null].filter(Boolean).join(" · ")),
    h("div.small.muted", {}, `seed ${play.play_seed}`));
}

function group({ play, run }) {
  if (play.group.length < 2) return null;
  return h("section.panel", {}, h("h2", {}, "The same task in this step"),
    h("p.small.muted", {}, "plays that are stored of its group, with rewards and advantages"),
    h("div.group", {}, play.group.map((row) =>
      h(`a.sibling${row.number === play.number ? ".current" : ""}`, { href: to({ run, play: row.number, turn: null }) },
        h("span.said.cut", {}, row.answer || row.failure || "–"),
        h("span", {}, rewards(row.rewards)),
        h("span.small.muted", {}, Object.entries(row.advantages).filter(([, value]) => value !== null).map(([role, value]) => `A ${Object.keys(row.advantages).length > 1 ? `${role} ` : ""}${signed(value)}`).join(", "))))));
}

function sameTask({ play, run }) {
  if (!play.same_task.length) return null;
  return h("section.panel", {}, h("h2", {}, "The same task at other steps"),
    h("table", {}, h("tbody", {}, play.same_task.map((row) =>
      h("tr", {}, h("td.num", {}, h("a", { href: to({ run, play: row.number, turn: null }) }, `step ${row.step ?? "–"}`), row.evaluation ? h("span.tag", {}, "eval") : null),
        h("td.cut.said", { title: row.answer }, row.answer || row.failure), h("td.num", {}, rewards(row.rewards)))))));
}

export function key(event, state) {
  const { at, last, play } = state;
  if (!play) return false;
  if (event.key === "ArrowRight" && at < last) change({ turn: at + 1 });
  else if (event.key === "ArrowLeft" && at > 1) change({ turn: at - 1 });
  else if (event.key === "[" && play.number > 1) location.hash = to({ play: play.number - 1, turn: null });
  else if (event.key === "]") location.hash = to({ play: play.number + 1, turn: null });
  else if (event.key === "Escape") location.hash = to({ play: null, turn: null });
  else if (event.key === "c") {
    const names = available(Object.values(state.tokens).flat());
    change({ colour: names[(names.indexOf(state.by) + 1) % names.length] });
  } else return false;
  return true;
}
