// SPDX-License-Identifier: Apache-2.0
// One workload's chart: replicas and serving on the left axis, the first signal
// and its target on the right. Times are local, 24 h, dates ISO 8601.
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

function chartOptions(box, s) {
  const steps = uPlot.paths.stepped({ align: 1 });
  const axis = (scale, side, label) => ({ scale, side, label, labelSize: 20, stroke: css("--dim"), grid: { stroke: css("--line"), width: 1, show: side === 3 }, ticks: { show: false }, size: 44 });
  const unit = s.unit ? " " + s.unit : "";
  return {
    width: chartWidth(box), height: 210,
    scales: { n: { range: (_, lo, hi) => [0, Math.max(4, hi + 1)] }, s: { range: (_, lo, hi) => [0, Math.max(s.unit === "%" ? 100 : s.target * 1.5, hi * 1.05)] } },
    axes: [{ stroke: css("--dim"), grid: { show: false }, ticks: { show: false }, values: ticks, space: 70, size: 44 },
      axis("n", 3, "replicas"), axis("s", 1, s.name.slice(0, 40) + (s.unit ? " (" + s.unit + ")" : ""))],
    series: [{ label: "time", value: (_, x) => (x ? when(x * 1000, new Date()) : "–") },
      { label: "replicas", scale: "n", stroke: css("--replicas"), width: 2, paths: steps, points: { show: false } },
      { label: "serving", scale: "n", stroke: css("--serving"), fill: css("--serving") + "55", width: 1, paths: steps, points: { show: false } },
      { label: s.name, scale: "s", stroke: css("--signal"), width: 2, points: { show: false }, value: (_, x) => (x === null || x === undefined ? "–" : x.toFixed(1) + unit) },
      { label: "target", scale: "s", stroke: css("--signal"), width: 1, dash: [4, 4], points: { show: false } }],
  };
}

// drawChart draws a history into a card. It reuses the card's chart.
function drawChart(card, h) {
  card.history = h;
  const s = card.signals[0] || { name: "signal", target: 0 };
  const t = h.points.map((p) => Date.parse(p.time) / 1000);
  const data = [t, h.points.map((p) => p.replicas), h.points.map((p) => p.serving), h.points.map((p) => (p.signals || [])[0] ?? null), t.map(() => s.target)];
  const shows = JSON.stringify([s.name, s.unit, s.target]);
  if (card.chart && card.shows === shows) {
    card.chart.setData(data);
    return;
  }
  dropChart(card);
  card.shows = shows;
  card.chart = new uPlot(chartOptions(card.chartBox, s), data, card.chartBox);
}

function dropChart(card) {
  if (card.chart) card.chart.destroy();
  card.chart = null;
}
