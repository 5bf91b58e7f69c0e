// One position of a game or one question of a text arena: what two checkpoints would do there, and
// how the play goes on with answers of a person and of checkpoints.

import { get, post } from "../api.js";
import { h, show } from "../dom.js";
import { percent, plural, signed } from "../format.js";
import { address, change, route } from "../route.js";
import { board } from "./boards.js";
import { chosenRun, runField } from "./one_run.js";
import { dialogue } from "./play.js";

export const title = "Positions";
const BASE = "base";
const SIDES = ["a", "b"];

export async function draw(root, parameters, { again, state, valid }) {
  if (again && state.values) return; // a position does not change by itself
  const { run, runs } = await chosenRun(root, parameters, valid);
  if (!run) return;
  state.listed ??= (await get("checkpoints")).values;
  if (!valid()) return;
  const given = (name) => parameters.get(name);
  const [a, b] = [given("a") ?? BASE, given("b") ?? run];
  const sample = given("sample") === null ? null : Number(given("sample"));
  const place = {
    run, sample, said: JSON.parse(given("said") ?? "[]"), seat: given("seat"), against: given("against") === "a" ? a : b,
    ...(given("play") ? { play: Number(given("play")), turn: Number(given("turn") ?? 1) } : { seed: Number(given("seed") ?? 0), arena: given("arena") }),
  };
  const key = JSON.stringify(place);
  if (state.key !== key) {
    state.stop?.abort();
    const stop = (state.stop = new AbortController());
    state.waiting = true; // what is shown is not to be answered any more
    if (place.seat !== null) document.getElementById("live").textContent = "waiting for the answer of the model…";
    const { values } = await post("positions", place, stop.signal);
    if (!valid()) return;
    if (values.said.length > place.said.length) { // the address holds what the model has answered
      place.said = values.said;
      history.replaceState(null, "", here({ said: JSON.stringify(values.said) }));
    }
    Object.assign(state, { key: JSON.stringify(place), values, draft: "", waiting: false });
  } else if (state.waiting) { // a step back to what is shown, before the answer came
    state.stop.abort();
    Object.assign(state, { stop: new AbortController(), waiting: false });
  }
  Object.assign(state, { place, runs, names: { a, b }, known: state.known ?? new Map() });
  paint(root, state);
  if (state.listed.model && state.values.question) for (const side of SIDES) ask(root, state, side);
}

const here = (changes) => address("positions", { ...Object.fromEntries(route().parameters), ...changes });
const go = (changes) => (location.hash = here(changes));
const keyOf = ({ values, place, names }, side) => JSON.stringify([names[side], values.question, place.sample]);

async function ask(root, state, side) {
  const key = keyOf(state, side);
  if (state.known.has(key)) return;
  state.known.set(key, null);
  const { role, ...question } = state.values.question;
  const { signal } = state.stop;
  try {
    const { values } = await post("answers", { ...question, checkpoint: state.names[side], sample: state.place.sample }, signal);
    state.known.set(key, values);
  } catch (error) {
    if (signal.aborted) return state.known.delete(key);
    state.known.set(key, { problem: error.message });
  }
  if (route().view === "positions" && root.querySelector(".beside")) paint(root, state);
}

function paint(root, state) {
  const { values, place, runs } = state;
  const { question, play } = values;
  show(root,
    h("div.head", {},
      h("h1", {}, "Positions"),
      runField("positions", place.run, runs),
      place.play
        ? h("a.back", { href: address("plays", { run: place.run, play: place.play, turn: place.turn }) }, `play ${place.play}, turn ${place.turn}`)
        : h("span.muted", {}, `a new play of ${values.arena}, seed ${place.seed}`),
      h("button", { id: "new", title: "Another start (n)", onclick: () => fresh(state) }, "Another start"),
      h("button", { id: "take-back", title: "Take back (←)", disabled: !earlier(place), onclick: () => go(earlier(place)) }, "Take back")),
    state.listed.model ? null : missing(state),
    fields(state),
    dialogue(play, !question),
    question ? h("article.turn.current", {}, asked(question), answers(state)) : null);
}

function missing({ listed, place }) {
  const { model, folder } = listed.runs.find((each) => each.run === place.run) ?? {};
  return h("div.notice.warning", {}, "No model is loaded, so nobody answers here but you. To load one: ",
    h("code", {}, `legos view ${folder ?? place.run} --model ${model ?? "MODEL"}`));
}

function fields(state) {
  const { listed, names, place, values } = state;
  const options = (name) => {
    const known = [BASE, ...listed.runs.flatMap((run) => [run.run, ...run.checkpoints.map((each) => each.name)])];
    return [
      h("option", { value: BASE }, "base model"),
      listed.runs.filter((run) => run.checkpoints.length).map((run) => h("optgroup", { label: run.run },
        h("option", { value: run.run }, `${run.run}, newest`),
        run.checkpoints.map((each) => h("option", { value: each.name }, `${run.run}, step ${each.step}`)))),
      known.includes(name) ? null : h("option", { value: name }, name),
    ];
  };
  const field = (label, id, value, choices, set) =>
    h("label.field", {}, label, h("select", { id, value, onchange: (event) => set(event.target.value) }, choices));
  const pairs = (items) => items.map(([value, text]) => h("option", { value }, text));
  return h("div.filters", {},
    SIDES.map((side) => field(side.toUpperCase(), side, names[side], options(names[side]), (name) => change({ [side]: name }))),
    field("answers", "sample", place.sample === null ? "" : "sampled", pairs([["", "most probable"], ["sampled", "sampled"]]), (text) => change({ sample: text ? 1 : null })),
    place.sample === null ? null : h("button", { id: "again", onclick: () => change({ sample: place.sample + 1 }) }, "Another sample"),
    values.arenas.length > 1 && !place.play ? field("arena", "arena", values.arena, pairs(values.arenas.map((name) => [name, name])), (arena) => change({ arena, said: null })) : null,
    field("you play", "seat", place.seat ?? "", pairs([["", "every seat"], ...values.roles.map((role) => [role, role])]), (seat) => change({ seat })),
    place.seat === null ? null : field("against", "against", route().parameters.get("against") ?? "b", pairs(SIDES.map((side) => [side, side.toUpperCase()])), (against) => change({ against })));
}

function asked({ role, messages }) {
  const last = messages.at(-1).content;
  const picture = board({ asked: last, move: null, role });
  const before = messages.slice(0, -1);
  return [
    before.length ? h("details.asked.system", {}, h("summary.small.muted", {}, plural(before.length, "message"), " before"), before.map((each) => h("div.text", {}, h("b", {}, `${each.role}: `), each.content))) : null,
    h("div.who", {}, h("b", {}, role), h("span.muted", {}, "is asked")),
    picture ? h("div.position", {}, picture, h("details.small.muted", {}, h("summary", {}, "as text"), h("div.text", {}, last))) : h("div.asked.text", {}, last),
  ];
}

const say = (state, text) => state.waiting || go({ said: JSON.stringify([...state.place.said, { role: state.values.question.role, text }]) });

function answers(state) {
  const { question } = state.values;
  const found = Object.fromEntries(SIDES.map((side) => [side, state.known.get(keyOf(state, side))]));
  const written = SIDES.some((side) => found[side]?.text !== undefined) || !question.choices.length;
  return h("div.beside", { "aria-live": "polite" },
    question.choices.length ? moves(state, found) : own(state),
    written && state.listed.model ? h("div.pair", {}, SIDES.map((side) => one(state, side, found[side]))) : null);
}

function moves(state, found) {
  const { values, names, listed } = state;
  const sides = listed.model ? SIDES : [];
  const exact = Object.fromEntries((values.exact ?? []).map((each) => [each.move, each]));
  const best = Math.max(...Object.values(exact).map((each) => each.value));
  const share = (value) => [h("span.bar.good", { style: { width: `${90 * value}px` } }), ` ${percent(value)}`];
  const cell = (side, move) => (found[side]?.problem ? "–" : found[side] ? share(found[side].moves[move] ?? 0) : "…");
  const row = (move) => h("tr", {},
    h("td", {}, h("button", { id: `move-${move}`, data: { move }, title: "Play this move (Enter)", onclick: () => say(state, move) }, move)),
    sides.map((side) => h("td.share", {}, cell(side, move))),
    exact[move] ? h("td.share", {}, share(exact[move].optimal)) : null,
    exact[move] ? h(`td.num.${exact[move].value >= best - 1e-6 ? "good" : "bad"}`, {}, signed(exact[move].value)) : null);
  const heads = ["move", ...sides.map((side) => `${side.toUpperCase()}: ${names[side]}`), ...(values.exact ? ["optimal", "value"] : [])];
  const illegal = sides.some((side) => found[side]?.illegal >= 5e-4);
  return [
    sides.filter((side) => found[side]?.problem).map((side) => h("div.message.error", { role: "alert" }, `${side.toUpperCase()}: ${found[side].problem}`)),
    h("div.scroll", {}, h("table.moves", {},
      h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, values.question.choices.map(row)),
      illegal ? h("tfoot.small.muted", {}, h("tr", {}, h("td", {}, "not legal"), sides.map((side) => h("td", { title: "the moves have their shares among legal ones" }, found[side]?.moves ? percent(found[side].illegal) : "")))) : null)),
  ];
}

// What the person answers.
function own(state) {
  const field = h("textarea", { id: "answer", rows: 3, "aria-label": `Answer as ${state.values.question.role}`, placeholder: `answer as ${state.values.question.role}`, value: state.draft,
    oninput: (event) => (state.draft = event.target.value),
    onkeydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && say(state, event.target.value) });
  return h("div.own", {}, field, h("button.primary", { id: "say", title: "Ctrl+Enter", onclick: () => say(state, field.value) }, "Answer"));
}

function one(state, side, found) {
  return h("div.told", { data: { side } },
    h("div.who", {}, h("b", {}, side.toUpperCase()), state.names[side], h("span.grow"),
      found?.text === undefined ? null : h("span.small.muted", {}, plural(found.tokens, "token"), found.cut ? ", cut at the token limit" : "")),
    !found ? h("span.muted", {}, "answering…") : found.problem ? h("div.message.error", { role: "alert" }, found.problem) : [
      found.thinking ? h("details.small.muted", {}, h("summary", {}, "thinking"), h("div.text", {}, found.thinking)) : null,
      h("div.said", {}, found.text || "(nothing)"),
      h("button.small", { id: `use-${side}`, onclick: () => say(state, found.whole) }, "Play on with this answer"),
    ]);
}

const fresh = ({ place }) => go({ seed: (place.seed ?? 0) + 1, play: null, turn: null, said: null });

// The address before the newest answer of the person; null: there is none.
function earlier({ said, seat, play, turn }) {
  const last = said.findLastIndex((each) => seat === null || each.role === seat);
  if (last >= 0) return { said: last ? JSON.stringify(said.slice(0, last)) : null };
  return play && turn > 1 && !said.length ? { turn: turn - 1 } : null;
}

export function key(event, state) {
  const buttons = [...document.querySelectorAll("[data-move]")];
  const at = buttons.indexOf(document.activeElement);
  if (event.key === "j" && buttons.length) buttons[Math.min(at + 1, buttons.length - 1)].focus();
  else if (event.key === "k" && buttons.length) buttons[Math.max(at - 1, 0)].focus();
  else if (event.key === "ArrowLeft" && state.place && earlier(state.place)) go(earlier(state.place));
  else if (event.key === "n" && state.place) fresh(state);
  else return false;
  return true;
}
