// The health of a run: alarms, skipped steps, lost tokens and memory.

import { get } from "../api.js";
import { sparkline, strip } from "../charts.js";
import { h, show } from "../dom.js";
import { count, number, plural } from "../format.js";
import { chosenRun, isNew, runField } from "./one_run.js";

export const title = "Health";

export async function draw(root, parameters, options) {
  const { run, runs } = await chosenRun(root, parameters, options.valid);
  if (!run) return;
  const { values, text } = await get("health", { run });
  const stamp = text + run + runs.join();
  if (!isNew(stamp, values, options)) return;
  show(
    root,
    h("div.head", {},
      h("h1", {}, "Health"),
      runField("health", run, runs),
      h("span.muted", {}, plural(values.steps, "step"))),
    values.failure ? h("div.notice.error", {}, h("b", {}, "The run has failed. "), h("pre", {}, values.failure)) : null,
    values.problems.map((each) => h("div.notice.warning", {}, each)),
    h("div.columns", {}, alarms(values), h("div", {}, skipped(values), tokens(values), memory(values))),
  );
}

function alarms({ alarms: found, steps, step }) {
  return h("section.panel", {},
    h("h2", {}, "Alarms"),
    found.length ? null : h("p.good", {}, steps ? "No metric has reached a level in any step." : "No step yet."),
    found.map((alarm) =>
      h(`div.alarm.${alarm.level}`, {},
        h("div.who", {}, h(`span.tag.${alarm.level}`, {}, alarm.level), h("b", {}, alarm.metric),
          h("span.muted.small", {}, `${plural(alarm.count, "step")}${alarm.now && alarm.spans.at(-1)[1] === step ? ", the newest too" : `, last in step ${number(alarm.spans.at(-1)[1])}`}`)),
        strip(alarm.spans, { end: step, level: alarm.level }),
        h("p.small", {}, advice(alarm.text)))));
}

// The page of an alarm is named at the end of its text; it is marked as a file.
function advice(text) {
  const match = /^(.*) \((docs\/\S+\.md)\)$/s.exec(text);
  return match ? [match[1], " — see ", h("code", {}, match[2])] : text;
}

function skipped({ skipped: found, steps, step }) {
  const policies = Object.entries(found);
  return h("section.panel", {},
    h("h2", {}, "Skipped steps"),
    policies.length ? null : h("p.muted", {}, "No step yet."),
    policies.map(([name, list]) =>
      h("div", {},
        h("p.small", {}, policies.length > 1 ? h("b", {}, name.replace(/\/applied$/, ""), " ") : null,
          list.length ? `${plural(list.length, "step")} of ${number(steps)} changed no weight: ${list.slice(0, 30).join(", ")}${list.length > 30 ? ", …" : ""}` : h("span.good", {}, "Every step was applied.")),
        list.length ? strip(list.map((step) => [step, step]), { end: step, level: "error" }) : null)));
}

const PARTS = [["trained", "trained on"], ["queued", "waiting"], ["filtered", "filtered"], ["discarded", "discarded"]];

function tokens({ tokens: total, reasons }) {
  if (!total.generated) return h("section.panel", {}, h("h2", {}, "Tokens"), h("p.muted", {}, "No step yet."));
  const share = (value) => (100 * (value ?? 0)) / total.generated;
  return h("section.panel", {},
    h("h2", {}, "Tokens"),
    h("p.small.muted", {}, `${count(total.generated)} were generated; every one is accounted for${total.opponents ? `; opponents, which are not trained on, sampled ${count(total.opponents)} more` : ""}`),
    h("div.stack", { role: "img", "aria-label": PARTS.map(([name, label]) => `${label} ${number(share(total[name]))} %`).join(", ") },
      PARTS.map(([name, label]) => (total[name] ? h(`span.${name}`, { style: { width: `${share(total[name])}%` }, title: `${label}: ${number(total[name])}` }) : null))),
    h("div.key.small", {}, PARTS.map(([name, label]) => h("span", {}, h(`i.${name}`), `${label} ${number(share(total[name]))} %`))),
    reasons.length
      ? h("table", {},
          h("thead", {}, h("tr", {}, ["lost", "reason", "tokens", "over the steps"].map((each) => h("th", { scope: "col" }, each)))),
          h("tbody", {}, reasons.map((row) =>
            h("tr", {}, h("td.muted", {}, row.kind), h("td", {}, row.reason.replaceAll("_", " ")), h("td.num", {}, number(row.tokens)), h("td", {}, sparkline(row.points, { width: 120, height: 24, label: `${row.reason} over the steps` }))))))
      : h("p.good.small", {}, "None was filtered or discarded."));
}

function memory({ memory: { peak, highest, limit_gib: limit } }) {
  if (!peak.length) return null;
  return h("section.panel", {},
    h("h2", {}, "Memory"),
    h("p.small.muted", {}, `at most ${number(highest)} GiB`, limit ? ` of ${number(limit)} GiB that the run may use` : "; training.memory_limit_gib is not set"),
    sparkline(peak, { height: 90, limit, label: `peak memory of each step, at most ${number(highest)} GiB` }));
}
