// Which view is shown, what is read again while a run is running, and the keys.

import { ApiError, setKey } from "./api.js";
import { h, show } from "./dom.js";
import { route } from "./route.js";
import * as curves from "./views/curves.js";
import * as health from "./views/health.js";
import * as league from "./views/league.js";
import * as overview from "./views/overview.js";
import * as plays from "./views/plays.js";
import * as policy from "./views/policy.js";
import * as positions from "./views/positions.js";
import * as timeline from "./views/timeline.js";

const VIEWS = { overview, plays, curves, health, policy, league, timeline, positions };
const EVERY_MS = 3000; // between two looks at the files
const main = document.getElementById("main");
const live = document.getElementById("live");
const dialog = document.getElementById("dialog");

let current = null; // { name, refresh }: the view on the page
let turn = 0; // number of the newest request to draw; older ones are dropped
let drawn = 0; // number of the newest one that has ended

async function draw({ again = false } = {}) {
  const mine = ++turn;
  const { view, parameters } = route();
  const found = VIEWS[view] ?? overview;
  if (current?.view !== found) {
    current?.state.stop?.abort(); // what the view before still waits for
    current = { view: found, state: {} };
    document.title = `${found.title} · legos`;
    show(main, h("div.loading", {}, "reading…"));
    marks(view);
  }
  const state = current.state;
  try {
    await found.draw(main, parameters, { again, state, valid: () => mine === turn });
    if (mine === turn) live.textContent = "";
  } catch (error) {
    if (mine === turn) fail(error, again);
  } finally {
    drawn = Math.max(drawn, mine);
  }
}

function fail(error, again) {
  if (!(error instanceof ApiError)) console.error(error);
  if (error.status === 401) askForKey();
  else if (again) live.textContent = error.message;
  else {
    current.state = {};
    show(main, h("div.notice.error", { role: "alert" }, h("b", {}, "This cannot be shown. "), error.message));
  }
}

function marks(view) {
  const links = Object.entries(VIEWS).map(([name, each], index) => {
    const { parameters } = route();
    const run = parameters.getAll("run").map((text) => `run=${encodeURIComponent(text)}`).join("&");
    return h(
      "a",
      {
        href: `#/${name}${run && name !== "overview" ? `?${run}` : ""}`,
        title: `${each.title} (${index + 1})`,
        "aria-current": name === view ? "page" : null,
      },
      each.title,
    );
  });
  show(document.getElementById("nav"), links);
}

function askForKey() {
  if (dialog.open) return;
  const field = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const form = h(
    "form",
    {
      method: "dialog",
      onsubmit: () => {
        setKey(field.value);
        dialog.close();
        current = null;
        draw();
      },
    },
    h("h2", {}, "Key"),
    h("p", {}, "This page asks for the key that legos view was started with: that of ",
      h("code", {}, "--api-key-file"), " or ", h("code", {}, "LEGOS_API_KEY"), "."),
    h("label", { for: "key" }, "Key"),
    field,
    h("button.primary", {}, "Show the runs"),
  );
  show(dialog, form);
  dialog.showModal();
}

const KEYS = [
  ["1 to 8", "overview, plays, curves, health, policy, league, timeline, positions"],
  ["/", "search"],
  ["j k", "next and previous row or move"],
  ["Enter", "open the row, play the move"],
  ["← →", "step back and forward in a play"],
  ["[ ]", "older and newer play"],
  ["n", "another start of a position"],
  ["c", "colour tokens by the next value"],
  ["Esc", "back to the table"],
  ["d", "dark or light"],
];

function help() {
  show(
    dialog,
    h("form", { method: "dialog" },
      h("h2", {}, "Keys"),
      h("dl.keys", {}, KEYS.map(([key, text]) => [
        h("dt", {}, key.split(" ").map((each) => h("kbd", {}, each))),
        h("dd", {}, text),
      ])),
      h("button.primary", { autofocus: true }, "Close")),
  );
  dialog.showModal();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("legos-theme", root.dataset.theme);
  current.state = {};
  draw();
}

function key(event) {
  if (event.metaKey || event.ctrlKey || event.altKey || dialog.open) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key !== "Escape") return;
    event.target.blur();
    event.preventDefault(); // a browser would empty the field
    return;
  }
  const views = Object.keys(VIEWS);
  if (views[Number(event.key) - 1]) document.querySelectorAll("#nav a")[Number(event.key) - 1].click();
  else if (event.key === "d") switchTheme();
  else if (event.key === "?") help();
  else if (event.key === "/") document.querySelector("input[type=search]")?.focus();
  else if (!current?.view.key?.(event, current.state)) return;
  event.preventDefault();
}

function tip() {
  const box = document.getElementById("tip");
  const hide = () => (box.hidden = true);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("mouseover", (event) => {
    const target = event.target.closest?.("[data-tip]");
    if (!target || !current?.state.tip) return hide();
    show(box, current.state.tip(target));
    box.hidden = false;
    const place = target.getBoundingClientRect();
    const left = Math.min(place.left, innerWidth - box.offsetWidth - 8);
    const under = place.bottom + 6 + box.offsetHeight < innerHeight;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${under ? place.bottom + 6 : place.top - box.offsetHeight - 6}px`;
  });
}

window.addEventListener("hashchange", () => {
  marks(route().view);
  draw();
});
document.addEventListener("keydown", key);
document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("help").addEventListener("click", help);
tip();
setInterval(() => {
  if (!document.hidden && !dialog.open && current && drawn === turn) draw({ again: true });
}, EVERY_MS);
draw();
