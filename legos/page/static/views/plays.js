// The plays of a run: a table with search, or one of them.

import { get } from "../api.js";
import { rewards } from "../chips.js";
import { h, show } from "../dom.js";
import { count, number, plural } from "../format.js";
import { address, change, route } from "../route.js";
import { chosenRun, isNew, runField } from "./one_run.js";
import * as play from "./play.js";

export const title = "Plays";
const PAGE = 50;
const FILTERS = ["text", "arena", "task", "role", "seat", "kind", "failed", "reward_min", "reward_max", "step_min", "step_max", "sort", "descending"];

export async function draw(root, parameters, options) {
  const { run, runs } = await chosenRun(root, parameters, options.valid, "No run, so no play yet.");
  if (!run) return;
  const mode = parameters.has("play") ? "play" : "table";
  if (options.state.mode !== mode) Object.assign(options.state, { mode, root: null, stamp: null });
  if (mode === "play") await play.draw(root, run, parameters, options);
  else await table(root, run, runs, parameters, options);
}

export function key(event, state) {
  return state.mode === "play" ? play.key(event, state) : tableKey(event);
}

async function table(root, run, runs, parameters, options) {
  const { state } = options;
  const query = Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name)]));
  const offset = Number(parameters.get("offset") ?? 0);
  const { values, text } = await get("plays", { run, ...query, offset, limit: PAGE });
  const stamp = text + parameters.toString() + runs.join();
  if (!isNew(stamp, values, options)) return;
  const page = state.root === root && state.run === run ? state.parts : frame(root, run, runs, parameters, state);
  page.fill(values, parameters, offset);
}

// What stays while somebody types: the controls. Only the rows are drawn again.
function frame(root, run, runs, parameters, state) {
  const rows = h("div");
  const facts = h("span.muted", { role: "status" });
  const choices = { arena: h("select"), role: h("select"), seat: h("select") };
  const set = (name) => (event) => change({ [name]: event.target.value || null, offset: null });
  const field = (name, label, attributes) =>
    h("label.field", {}, h("span", {}, label),
      h("input", { id: `f-${name}`, value: parameters.get(name) ?? "", oninput: set(name), ...attributes }));
  const select = (name, label, options) =>
    h("label.field", {}, h("span", {}, label),
      h("select", { id: `f-${name}`, value: parameters.get(name) ?? "", onchange: set(name) },
        options.map(([value, shown]) => h("option", { value }, shown))));
  const filters = h("div.filters", {});
  show(
    root,
    h("div.head", {},
      h("h1", {}, "Plays"),
      runField("plays", run, runs),
      facts,
      h("span.grow"),
      h("input.wide", { type: "search", id: "search", placeholder: "Search questions and answers  ( / )", "aria-label": "Search", value: parameters.get("text") ?? "", oninput: set("text") })),
    filters,
    rows,
  );
  const parts = {
    fill(values, now, offset) {
      facts.textContent = `${plural(values.total, "play")}${values.waiting ? `, ${count(values.waiting)} still to be read` : ""}`;
      const named = JSON.stringify([values.arenas, values.roles, values.seats]);
      if (parts.named !== named) {
        parts.named = named;
        const any = ["", "any"];
        const list = (each) => [any, ...each.map((name) => [name, name])];
        show(
          filters,
          select("kind", "Played for", [any, ["training", "training"], ["evaluation", "evaluation"]]),
          values.arenas.length > 1 ? select("arena", "Arena", list(values.arenas)) : null,
          values.roles.length > 1 ? select("role", "Reward of", list(values.roles)) : null,
          values.seats.length > 1 ? select("seat", "Seat", list(values.seats)) : null,
          field("reward_min", "Reward from", { type: "number", step: "any" }),
          field("reward_max", "to", { type: "number", step: "any" }),
          field("step_min", "Step from", { type: "number", min: 0 }),
          field("step_max", "to", { type: "number", min: 0 }),
          h("label.check", {}, h("input", { type: "checkbox", id: "f-failed", checked: now.get("failed") === "true", onchange: (event) => change({ failed: event.target.checked || null, offset: null }) }), "failed or void"),
          h("a.small", { id: "clear", href: address("plays", { run }) }, "clear all"),
        );
      }
      document.getElementById("clear").hidden = !FILTERS.some((name) => now.get(name));
      for (const name of FILTERS) showFilter(name, now.get(name));
      show(rows, problems(values), values.rows.length ? rowsOf(run, values, now, offset) : none(values, now));
    },
  };
  Object.assign(state, { root, run, parts });
  return parts;
}

// A field as the address has it, unless somebody types into it.
function showFilter(name, value) {
  const field = document.getElementById(name === "text" ? "search" : `f-${name}`);
  if (!field || field === document.activeElement) return;
  if (field.type === "checkbox") field.checked = value === "true";
  else field.value = value ?? "";
}

function problems(values) {
  const damaged = values.damaged.length
    ? [`${plural(values.damaged.length, "line")} of episodes.jsonl cannot be read (${values.damaged.slice(0, 5).join(", ")}${values.damaged.length > 5 ? ", …" : ""}) and ${values.damaged.length === 1 ? "is" : "are"} left out`]
    : [];
  return [...values.problems, ...damaged].map((text) => h("div.notice.warning", {}, text));
}

function none(values, now) {
  const filtered = FILTERS.some((name) => now.get(name));
  return h("div.empty", {}, h("p", {}, values.waiting ? "Reading…" : filtered ? "No play is like this." : "No play is stored yet. A run stores plays of each step and evaluation."));
}

const COLUMNS = [["number", "Play"], [null, "Step"], [null, "Asked"], [null, "Answer"], ["reward", "Reward"], ["turns", "Turns"], ["tokens", "Tokens"]];

function rowsOf(run, values, now, offset) {
  const sort = now.get("sort") ?? "number";
  const descending = now.get("descending") !== "false";
  const heads = COLUMNS.map(([name, label]) =>
    h("th", { scope: "col", "aria-sort": name === sort ? (descending ? "descending" : "ascending") : null, class: label === "Step" || ["turns", "tokens", "number"].includes(name) ? "num" : null },
      name
        ? h("button.sort", { onclick: () => change({ sort: name, descending: name === sort && descending ? "false" : null, offset: null }) }, label, name === sort ? (descending ? " ↓" : " ↑") : "")
        : label));
  return [
    h("div.scroll", {},
      h("table.plays", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, values.rows.map((row) => oneRow(run, row))))),
    pages(values.total, offset),
  ];
}

function oneRow(run, row) {
  const { parameters } = route();
  const place = address("plays", { ...Object.fromEntries(parameters), run, play: row.number });
  return h("tr", { id: `play-${row.number}`, tabindex: 0, data: { play: row.number }, onclick: () => (location.hash = place) },
    h("td.num", {}, h("a", { href: place, tabindex: -1 }, row.number)),
    h("td.num", {}, row.step ?? "", row.evaluation ? h("span.tag", { title: "played by an evaluation" }, "eval") : null),
    h("td.cut", { title: row.asked }, row.asked || row.task),
    h("td.cut.said", { title: row.answer }, row.failure ? h("span.tag.bad", {}, row.failure) : null, row.answer),
    h("td", {}, rewards(row.rewards)),
    h("td.num", {}, row.turns),
    h("td.num", {}, number(row.tokens)));
}

function pages(total, offset) {
  if (total <= PAGE) return null;
  const go = (to) => () => change({ offset: to || null });
  return h("div.pages", {},
    h("button", { disabled: offset === 0, onclick: go(Math.max(0, offset - PAGE)) }, "← before"),
    h("span.muted", {}, `${number(offset + 1)} to ${number(Math.min(total, offset + PAGE))} of ${number(total)}`),
    h("button", { disabled: offset + PAGE >= total, onclick: go(offset + PAGE) }, "after →"));
}

function tableKey(event) {
  const rows = [...document.querySelectorAll("table.plays tbody tr")];
  const at = rows.indexOf(document.activeElement);
  if (event.key === "j" || event.key === "ArrowDown") rows[Math.min(at + 1, rows.length - 1)]?.focus();
  else if (event.key === "k" || event.key === "ArrowUp") rows[Math.max(at - 1, 0)]?.focus();
  else if (event.key === "Enter" && at >= 0) rows[at].click();
  else return false;
  return true;
}
