// SPDX-License-Identifier: Apache-2.0
// The page of the demo. It requests the state each half second, with the points that it does
// not have yet.
"use strict";

const colours = ["--accent", "--signal", "--replicas"];
const points = [];
let charts = null, state = null;

// share of the requests that were kept: 100 % only if none was missed.
const kept = (c) => number(c.missed ? Math.min(99.99, 100 - c.missedPercent) : 100, 2);
const number = (x, digits) => x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const timeOf = (second) => { const m = Math.floor((state.start + second) / 60); return two(Math.floor(m / 60) % 24) + ":" + two(m % 60); };

function drawContestants() {
  const ours = state.contestants[0];
  replace($("contestants"), state.contestants.map((c, i) => {
    const allowed = 100 - state.objectivePercent, used = Math.min(1, c.missedPercent / allowed);
    const bar = el("i"), card = el("article", { class: "card" });
    bar.style.width = 100 * used + "%";
    card.style.setProperty("--key", "var(" + colours[i] + ")");
    const more = i > 0 && ours.gpuHours > 0 ? " (" + number(c.gpuHours / ours.gpuHours, 1) + " × GPUPilot)" : "";
    card.append(
      el("h3", {}, c.name), el("p", { class: "dim" }, c.how),
      el("p", { class: "verdict " + (c.kept ? "kept" : "missed") }, (c.kept ? "kept: " : "missed: ") + kept(c) + " % within the limits"),
      el("div", { class: "budget", role: "img", "aria-label": number(100 * used, 0) + " % of the error budget is used", title: "used share of the error budget" }, bar),
      el("dl", { class: "facts" }, ...[
        ["GPU-hours", number(c.gpuHours, 1) + more], ["cost", c.usd === undefined ? "–" : "$" + number(c.usd, 2)],
        ["replicas", c.replicas], ["of them starting", c.starting], ["requests", number(c.ended, 0)], ["missed", number(c.missed, 0)],
      ].map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))));
    return card;
  }), "");
}

function newChart(id, label, series, scale) {
  const axis = (side, text) => ({ side, label: text, labelSize: 20, stroke: css("--dim"), grid: { stroke: css("--line"), width: 1, show: side === 3 }, ticks: { show: false }, size: 46 });
  return new uPlot({
    width: chartWidth($(id)), height: 260, scales: { x: { time: false, range: [0, state.seconds] }, y: { range: scale } },
    axes: [{ stroke: css("--dim"), grid: { show: false }, ticks: { show: false }, values: (_, s) => s.map(timeOf), space: 70, size: 34, incrs: [300, 600, 900] }, axis(3, label)],
    series: [{ label: "time", value: (_, x) => (x === null || x === undefined ? "–" : timeOf(x)) }, ...series],
  }, [[]], $(id));
}

function drawCharts() {
  if (!charts) {
    const steps = uPlot.paths.stepped({ align: 1 });
    const lines = (paths, digits) => state.contestants.map((c, i) => ({ label: c.name, stroke: css(colours[i]), width: i ? 1.5 : 3, paths, points: { show: false }, value: (_, x) => (x === null || x === undefined ? "–" : number(x, digits)) }));
    charts = {
      replicas: newChart("replicas", "replicas", [{ label: "load", fill: css("--serving") + "66", stroke: css("--serving"), width: 1, points: { show: false }, value: (_, x) => (x === null || x === undefined ? "–" : number(x, 1)) }, ...lines(steps, 0)], (_, lo, hi) => [0, Math.max(4, hi + 1)]),
      missed: newChart("missed", "percent", [...lines(undefined, 2), { label: "allowed", stroke: css("--bad"), width: 1, dash: [6, 4], points: { show: false } }], (_, lo, hi) => [0, Math.max(3, Math.min(hi, 12))]),
    };
  }
  const t = points.map((p) => p.second), each = (f) => state.contestants.map((_, i) => points.map((p) => f(p, i)));
  charts.replicas.setData([t, points.map((p) => p.need), ...each((p, i) => p.replicas[i])]);
  charts.missed.setData([t, ...each((p, i) => p.missedPercent[i]), t.map(() => 100 - state.objectivePercent)]);
}

function draw() {
  document.querySelector("main").hidden = false;
  setText($("summary"), timeOf(state.second) + (state.done ? ", the end" : "") + ". " + state.about + " Promise: " + state.objectivePercent + " % of the requests within 2 s to the first token and 25 ms between tokens.");
  drawContestants();
  drawCharts();
  replace($("steps"), (state.steps || []).map((s) => el("li", {}, s)), "No decision yet.");
  replace($("decisions"), [...(state.changes || [])].reverse().map((c) => el("li", {},
    el("time", {}, timeOf(c.second)), el("span", { class: "move " + (c.to > c.from ? "up" : "down") }, c.from + " → " + c.to), el("span", { title: c.steps.join("\n") }, c.sentence))), "No change of replicas yet.");
  setText($("object"), state.object);
}

async function poll() {
  for (;;) {
    try {
      const from = points.length ? points.at(-1).second + 1 : 0;
      const r = await fetch("state.json?from=" + from, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!r.ok) throw new Error("answer " + r.status);
      state = await r.json();
      points.push(...state.points);
      $("banner").hidden = true;
      draw();
      if (state.done) return;
    } catch {
      if (state && !state.done) {
        $("banner").hidden = false;
        $("banner").className = "ended"; // no fault
        setText($("banner"), "The demo has ended in its terminal. This is what it showed last.");
      }
    }
    await new Promise((done) => setTimeout(done, 500));
  }
}

const redraw = () => {
  if (charts) for (const c of Object.values(charts)) c.destroy();
  charts = null;
  if (state) drawCharts();
};
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
poll();
