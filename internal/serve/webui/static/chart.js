// SPDX-License-Identifier: Apache-2.0
// Charts. Times are local, 24 h, dates ISO 8601.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const two = (n) => String(n).padStart(2, "0");
const isoDate = (t) => t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate());
const clock = (t) => two(t.getHours()) + ":" + two(t.getMinutes()) + ":" + two(t.getSeconds());

// when formats a time: without the date for today, otherwise with it.
function when(text, now) {
  const t = new Date(text);
  return isoDate(t) === isoDate(now) ? clock(t) : isoDate(t) + " " + clock(t);
}

// ticks labels the time axis; the first label and each new day have the date.
function ticks(_, splits, __, ___, incr) {
  let day = "";
  return splits.map((s) => {
    const t = new Date(s * 1000), date = isoDate(t);
    const label = incr < 60 ? clock(t) : clock(t).slice(0, 5);
    if (date === day) return label;
    day = date;
    return label + "\n" + date;
  });
}

const chartWidth = (box) => Math.max(200, box.clientWidth);

// spark draws values as a small line; points are pairs of a time and a value.
function spark(points, width = 150, height = 26) {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
  for (const [k, v] of [["viewBox", "0 0 " + width + " " + height], ["class", "spark"], ["aria-hidden", "true"], ["preserveAspectRatio", "none"]]) svg.setAttribute(k, v);
  const values = points.map((p) => p[1]), lo = Math.min(...values), hi = Math.max(...values);
  const first = points[0][0], span = points.at(-1)[0] - first || 1;
  const line = document.createElementNS(ns, "polyline");
  line.setAttribute("points", points.map(([t, v]) => ((t - first) / span * width).toFixed(1) + "," + (height - 2 - (v - lo) / (hi - lo || 1) * (height - 4)).toFixed(1)).join(" "));
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}

// ---- one workload's chart: replicas on the left axis, each signal in percent of its target
// on the right, states that last as bands, decisions as marks ----

const signalColours = ["--signal", "--signal-2", "--signal-3", "--signal-4"];
const chartHeight = 260;

function plotOptions(box, signals, plot) {
  const steps = uPlot.paths.stepped({ align: 1 });
  const axis = (scale, side, label) => ({ scale, side, label, labelSize: 20, stroke: css("--dim"), grid: { stroke: css("--line"), width: 1, show: side === 3 }, ticks: { show: false }, size: 46 });
  const raw = (s) => (_, x) => (x === null || x === undefined ? "–" : (x * s.target / 100).toPrecision(3) + (s.unit ? " " + s.unit : "") + " (" + x.toFixed(0) + " % of the target)");
  return {
    width: chartWidth(box), height: chartHeight,
    cursor: { drag: { x: true, y: false } },
    scales: { n: { range: (_, lo, hi) => [0, Math.max(4, hi + 1)] }, s: { range: (_, lo, hi) => [0, Math.max(150, Math.min(hi * 1.05, 1000))] } },
    axes: [{ stroke: css("--dim"), grid: { show: false }, ticks: { show: false }, values: ticks, space: 70, size: 44 },
      axis("n", 3, "replicas"), axis("s", 1, "signals, % of their target")],
    series: [{ label: "time", value: (_, x) => (x ? when(x * 1000, new Date()) : "–") },
      { label: "replicas", scale: "n", stroke: css("--replicas"), width: 2, paths: steps, points: { show: false } },
      { label: "serving", scale: "n", stroke: css("--serving"), fill: css("--serving") + "44", width: 1, paths: steps, points: { show: false } },
      ...signals.map((s, i) => ({ label: s.name.slice(0, 60), scale: "s", stroke: css(signalColours[i % 4]), width: 1.5, points: { show: false }, value: raw(s) })),
      { label: "target", scale: "s", stroke: css("--dim"), width: 1, dash: [4, 4], points: { show: false }, value: () => "100 %" }],
    hooks: { drawClear: [(u) => drawBands(u, plot)], draw: [() => placeMarks(plot)] },
  };
}

// drawBands fills the times of the states that last.
function drawBands(u, plot) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.beginPath();
  u.ctx.rect(left, top, width, height);
  u.ctx.clip();
  plot.spans.forEach((s) => {
    const from = u.valToPos(Date.parse(s.from) / 1000, "x", true), to = s.until ? u.valToPos(Date.parse(s.until) / 1000, "x", true) : left + width;
    u.ctx.fillStyle = css(s.kind === "schedule" ? "--band-2" : s.kind === "held" ? "--band-3" : "--band");
    u.ctx.fillRect(from, top, Math.max(2, to - from), height);
  });
  u.ctx.restore();
}

// placeMarks puts a button over the chart for each decision in its range.
function placeMarks(plot) {
  const u = plot.chart;
  if (!u) return;
  const { min, max } = u.scales.x;
  const inRange = plot.decisions.filter((e) => { const t = Date.parse(e.decision.time) / 1000; return t >= min && t <= max; }).slice(0, 60);
  keyed(plot.marks, inRange, (e) => e.decision.time, (e) => {
    const d = e.decision, text = when(d.time, new Date()) + ": " + d.current + " → " + d.replicas + ", " + d.rule;
    return button(d.replicas > d.current ? "▲" : "▼", { class: "mark " + (d.replicas > d.current ? "up" : "down"), "aria-label": "decision at " + text, title: text + "\n" + d.why }, () => plot.open(e));
  }, (b, e) => {
    b.style.left = Math.round(u.valToPos(Date.parse(e.decision.time) / 1000, "x")) + "px";
    b.setAttribute("aria-pressed", String(plot.opened === e.decision.time));
  });
}

// newPlot makes the chart of a workload. open is called with the decision of a mark.
function newPlot(open) {
  const plot = { box: el("div", { class: "chart" }), marks: el("div", { class: "marks" }), chart: null, spans: [], decisions: [], shows: "", open, opened: "" };
  return plot;
}

// drawPlot draws points, which have the fields of a history.
function drawPlot(plot, signals, points) {
  plot.last = [signals, points];
  const t = points.map((p) => Date.parse(p.time) / 1000);
  const ofTarget = (i) => (p) => { const v = (p.signals || [])[i]; return v === null || v === undefined || !(signals[i].target > 0) ? null : v / signals[i].target * 100; };
  const data = [t, points.map((p) => p.replicas), points.map((p) => p.serving), ...signals.map((_, i) => points.map(ofTarget(i))), t.map(() => 100)];
  const shows = JSON.stringify(signals.map((s) => [s.name, s.unit, s.target]));
  if (!plot.chart || plot.shows !== shows) {
    dropPlot(plot);
    plot.shows = shows;
    plot.chart = new uPlot(plotOptions(plot.box, signals, plot), data, plot.box);
    plot.chart.over.append(plot.marks);
    placeMarks(plot);
    return;
  }
  plot.chart.setData(data);
}

function dropPlot(plot) {
  if (plot.chart) plot.chart.destroy();
  plot.chart = null;
}

function fitPlot(plot) {
  if (plot.chart) plot.chart.setSize({ width: chartWidth(plot.box), height: chartHeight });
}
