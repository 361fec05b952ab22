// SPDX-License-Identifier: Apache-2.0
// One workload, below its row: its chart, its last decision with what would change it, its
// conditions, and the decisions that changed it.
"use strict";

// The ranges of a chart. The first one is the last decisions, one a second, which the view
// continues; the others are one-minute aggregates, which are requested again after a while.
const ranges = [
  { id: "10m", name: "10 min", title: "the last decisions, one a second", every: 60000 },
  { id: "1d", name: "1 day", title: "means of minutes", since: "24h", step: "2m", every: 60000 },
  { id: "14d", name: "14 days", title: "means of half hours", since: "336h", step: "30m", every: 300000 },
];

const rangeNow = () => ranges.find((r) => r.id === route.p.get("range")) || ranges[0];

// The metrics of which a chart shows the minutes.
const replicasMetric = "gpupilot_autoscaler_replicas", signalMetric = "gpupilot_autoscaler_signal_value";

let detail = null; // of the open workload: { key, w, root, plot, answer, points, … }

// pointsOf converts minutes into the points of a history.
function pointsOf(m, signals) {
  const first = Date.parse(m.first), step = seconds(m.step) * 1000;
  const means = (name, label, value) => m.metrics.filter((x) => x.name === name && x.labels?.[label] === value).map((x) => x.mean);
  const desired = means(replicasMetric, "state", "desired"), serving = means(replicasMetric, "state", "serving");
  const ofSignals = signals.map((s) => means(signalMetric, "signal", s.name)); // several, if the unit has changed
  const value = (lists, i) => lists.map((mean) => mean[i]).find((v) => v !== null) ?? null;
  const n = Math.max(0, ...m.metrics.map((x) => x.mean.length));
  return Array.from({ length: n }, (_, i) => ({
    time: new Date(first + i * step).toISOString(), replicas: value(desired, i), serving: value(serving, i),
    signals: ofSignals.map((lists) => value(lists, i)),
  }));
}

function makeDetail(r) {
  closeDetail();
  const buttons = ranges.map((x) => button(x.name, { class: "link", title: x.title, "data-range": x.id }, () => chooseRange(x)));
  const d = {
    key: r.key, w: r.w, points: null, pointsAt: 0, answer: null, answerAt: 0, range: rangeNow(),
    note: el("span", { class: "dim", role: "status" }), plot: newPlot((e) => openMark(e)), bands: el("ul", { class: "bands" }), reason: el("div", { class: "reason" }), why: el("div", { class: "cols" }), picked: el("div", { class: "picked", role: "status" }),
    objectives: el("div"), deletion: el("p", { class: "dim" }), past: el("ol", { class: "decisions" }), root: null, buttons,
  };
  d.plot.opened = route.p.get("at") || "";
  const box = el("div", { class: "detail" }, d.reason,
    el("div", { class: "ranges", role: "group", "aria-label": "Range of the chart" }, ...buttons, d.note), d.plot.box, d.bands, d.picked, d.objectives, d.why,
    el("h3", {}, "Decisions that changed it"), d.past, d.deletion,
    el("p", { class: "dim" }, "What another policy would have cost and kept: ", el("code", {}, "gpupilot backtest --from-cluster " + r.key)));
  d.root = el("tr", { class: "detail-row" }, el("td", { colspan: "6" }, box));
  detail = d;
  refreshDetail();
  return d.root;
}

function closeDetail() {
  if (!detail) return;
  dropPlot(detail.plot);
  detail.root.remove();
  if ($("workloads").keyed) $("workloads").keyed.delete("d " + detail.key);
  detail = null;
}

function chooseRange(range) {
  remember({ range: range === ranges[0] ? "" : range.id });
  if (!detail) return;
  detail.range = range;
  detail.pointsAt = 0;
  refreshDetail();
}

// refreshDetail requests what the open workload shows, if it may have changed.
async function refreshDetail() {
  const d = detail, range = d && d.range;
  if (!d || document.hidden) return;
  const now = performance.now(), wants = [];
  if (!d.pointsAt || now - d.pointsAt > range.every) {
    d.pointsAt = now;
    const path = range.since ? "api/v1/minutes" + about(d.w) + "&since=" + range.since + "&step=" + range.step + "&metric=" + replicasMetric + "&metric=" + signalMetric : "api/v1/history" + about(d.w);
    wants.push(get(path).then(({ body }) => {
      if (d.range === range) d.points = range.since ? pointsOf(body, d.w.signals || []) : body.points || [];
    }));
  }
  if (!d.answerAt || now - d.answerAt > 4000) {
    d.answerAt = now;
    wants.push(get("api/v1/workload" + about(d.w)).then(({ body }) => { d.answer = body; }));
  }
  const done = await Promise.allSettled(wants);
  if (done.some((x) => x.status === "rejected")) d.pointsAt = d.answerAt = now - 3000; // again, soon
  if (d !== detail || !done.length) return;
  drawPoints(d);
  drawAnswer(d);
}

// addPoint continues the chart of the last minutes with the view's decision.
function addPoint(d) {
  const x = d.w.decision;
  if (d.range.since || !d.points || !x) return false;
  const newest = d.points.at(-1);
  if (newest && Date.parse(newest.time) >= Date.parse(x.time)) return false;
  d.points.push({ time: x.time, replicas: x.replicas, serving: x.serving, signals: (d.w.signals || []).map((s) => s.value ?? null) });
  if (d.points.length > 600) d.points.shift();
  return true;
}

function drawPoints(d) {
  d.buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.range === d.range.id)));
  if (!d.points || !d.root.isConnected) return;
  const few = d.points.filter((p) => p.replicas !== null).length < 2;
  setText(d.note, few ? (d.range.since ? "Not enough minutes are recorded yet." : "No decisions yet.") : "");
  if (few) dropPlot(d.plot);
  else drawPlot(d.plot, d.w.signals || [], d.points);
}

// ---- decisions ----

function stepsOf(x) {
  return el("ol", { class: "steps" }, ...(x.steps || []).map((s) => el("li", {}, el("b", {}, s.rule), s.before === s.after ? " " : " " + s.before + " → " + s.after + " ", el("span", {}, s.sentence))));
}

function inputsOf(x) {
  if (!(x.inputs || []).length) return "";
  return el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ...["Input", "Value", "Target", "Replicas", "Age"].map((t) => el("th", { scope: "col" }, t)))),
    el("tbody", {}, ...x.inputs.map((i) => el("tr", {}, el("th", { scope: "row" }, i.signal + (i.deciding ? ", decides" : "")), el("td", {}, signalValue(i)), el("td", {}, i.target + (i.unit ? " " + i.unit : "")), el("td", {}, String(i.replicas)), el("td", {}, i.replicas ? seconds(i.age).toFixed(1) + " s" : "–")))));
}

// openMark shows the decision of a mark below the chart.
function openMark(e) {
  const d = detail;
  if (!d) return;
  d.plot.opened = d.plot.opened === e.decision.time ? "" : e.decision.time;
  remember({ at: d.plot.opened });
  placeMarks(d.plot);
  drawPicked(d);
}

function drawPicked(d) {
  const e = d.plot.decisions.find((x) => x.decision.time === d.plot.opened);
  if (d.picked.shows === (e && e.decision.time)) return;
  d.picked.shows = e && e.decision.time;
  d.picked.replaceChildren(...(e ? [el("h3", {}, (e.advice ? "Advice" : "Decision") + " at " + when(e.decision.time, new Date()) + ": " + e.decision.current + " → " + e.decision.replicas), stepsOf(e.decision), inputsOf(e.decision)].filter(Boolean) : []));
}

// decisionItem is a decision in a list, which opens.
function decisionItem(e, today, named) {
  const d = e.decision, item = el("details");
  item.append(el("summary", {}, el("time", { datetime: d.time, title: d.time }, when(d.time, today)), named ? link(keyOf(e), "workloads", { open: keyOf(e), at: d.time }) : "",
    el("span", { class: "move " + (e.advice ? "advice" : d.replicas > d.current ? "up" : "down") }, (e.advice ? "advice " : "") + d.current + " → " + d.replicas), el("span", { class: "rule" }, d.rule), el("span", {}, d.why)));
  item.addEventListener("toggle", () => {
    if (item.open && item.children.length === 1) item.append(stepsOf(d), inputsOf(d));
  });
  return el("li", {}, item);
}

const drawDecisionList = (box, list, today, named) => keyed(box, list, (e) => keyOf(e) + e.decision.time, (e) => decisionItem(e, today, named), () => {});

// ---- all of it ----

function drawWhy(d) {
  const x = d.answer.workload.decision, c = d.answer.conditions || [];
  const text = JSON.stringify([x && [x.replicas, x.steps], c, x && (x.inputs || []).map((i) => [i.signal, signalValue(i)])]);
  if (d.why.shows === text) return;
  d.why.shows = text;
  const open = d.why.querySelector("details")?.open;
  d.why.replaceChildren(
    el("section", {}, el("h3", {}, "Rules and inputs"), x ? stepsOf(x) : el("p", { class: "dim" }, "No decision yet."), x ? inputsOf(x) : ""),
    el("section", {}, c.length ? el("h3", {}, "Conditions") : "", conditionList(c, open)));
}

// drawReason says why the workload has its replicas, and what would change that.
function drawReason(d) {
  const x = d.w.decision, changes = d.answer && d.answer.changes;
  const text = JSON.stringify([x && [x.replicas, x.why], changes]);
  if (d.reason.shows === text) return;
  d.reason.shows = text;
  d.reason.replaceChildren(...(!x ? [] : [el("h3", {}, "Why " + plural(x.replicas, "replica")), el("p", {}, x.why),
    changes && changes.length ? el("ul", { class: "plain" }, ...changes.map((t) => el("li", {}, t))) : el("p", { class: "dim" }, changes ? "No change of a single signal would change it." : "What would change it is not known at the moment.")]));
}

function conditionList(all, open) {
  const item = (c) => el("li", { class: c.notable ? "notable" : "" }, el("b", {}, c.type + " is " + c.status), " " + c.reason + (c.message ? ": " + c.message : ""));
  const notable = all.filter((c) => c.notable), usual = all.filter((c) => !c.notable);
  const rest = el("details", {}, el("summary", {}, plural(usual.length, "condition") + " as usual"), el("ul", { class: "plain" }, ...usual.map(item)));
  rest.open = !!open;
  return el("div", {}, el("ul", { class: "plain" }, ...notable.map(item)), usual.length ? rest : "");
}

function drawAnswer(d) {
  const a = d.answer;
  if (!a) return;
  d.plot.decisions = a.decisions || [];
  d.plot.spans = a.spans || [];
  if (d.plot.chart) d.plot.chart.redraw(false);
  placeMarks(d.plot);
  const today = new Date();
  keyed(d.bands, d.plot.spans.slice(-8).reverse(), (s) => s.kind + s.name + s.from, () => el("li", {}, el("i"), el("span")), (e, s) => {
    setClass(e.firstChild, "band-" + s.kind);
    setText(e.lastChild, s.name + ", " + when(s.from, today) + (s.until ? " to " + when(s.until, today) : " until now") + (s.text ? ": " + s.text : ""));
  });
  drawWhy(d);
  drawReason(d);
  drawPicked(d);
  if (d.plot.decisions.length) drawDecisionList(d.past, d.plot.decisions, today, false);
  else replace(d.past, [], last && last.v.leader ? "None since this controller leads." : "This replica does not lead. The leader's page shows the changes.");
}

function drawDetail(root, r, shown) {
  const d = detail;
  if (!d || d.root !== root) return;
  d.w = r.w;
  setText(d.deletion, d.w.deletion ? "When the GPUAutoscaler is deleted, " + d.w.deletion + "." : "");
  if (addPoint(d)) drawPoints(d);
  drawReason(d);
  const all = r.w.objectives || [], text = JSON.stringify(all);
  if (d.objectives.shows === text) return;
  d.objectives.shows = text;
  d.objectives.replaceChildren(...all.flatMap((o) => [el("h3", {}, "Objective of " + o.signal + ": ", el("span", { class: o.missed || o.burning ? "bad" : "good" }, verdict(o))), el("p", {}, budgetBar(o), " " + (o.sentence || "")), ...(o.problems || []).map((p) => el("p", { class: "problem" }, p))]));
}

addEventListener("resize", () => { if (detail) fitPlot(detail.plot); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!detail || !detail.plot.chart) return;
  dropPlot(detail.plot); // its colours are those of the other scheme
  drawPoints(detail);
});
