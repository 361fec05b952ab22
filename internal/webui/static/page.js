// SPDX-License-Identifier: Apache-2.0
// The page: asks for the view each second, for the workloads' histories each
// two, and draws what it gets. Text is only ever set as text.
"use strict";

const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const num = (x, digits = 0) => (x === undefined || x === null ? "–" : x.toFixed(digits));
const clock = (t) => new Date(t).toLocaleTimeString([], { hour12: false });

function el(tag, attrs = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k === "class") e.className = v;
    else e.setAttribute(k, v);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

const cards = new Map(); // "namespace/name" → { root, chart, … }

function signalValue(s) {
  const digits = Math.abs(s.value) < 10 ? 2 : 0;
  return (s.value === undefined ? "–" : s.value.toFixed(digits)) + (s.unit ? " " + s.unit : "");
}

function facts(w) {
  const d = w.decision;
  const pairs = [];
  if (d) {
    pairs.push(["replicas", d.replicas === d.current ? d.current : d.current + " → " + d.replicas], ["serving", d.serving]);
    if (d.starting) pairs.push(["on the way", d.starting]);
    if (d.unschedulable) pairs.push(["stuck", d.unschedulable]);
  }
  for (const s of w.signals) pairs.push([s.name + " (target " + s.target + ")", signalValue(s)]);
  return el("dl", { class: "facts" }, ...pairs.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, String(v)))));
}

function card(w) {
  const key = w.namespace + "/" + w.name;
  let c = cards.get(key);
  if (!c) {
    c = { root: el("article", { class: "card" }), head: el("div"), chartBox: el("div", { class: "chart" }), steps: el("details"), open: false };
    c.root.append(c.head, c.chartBox, c.steps);
    cards.set(key, c);
  }
  const range = w.min + " to " + w.max + (w.actuation === "Advise" ? ", advice only" : "");
  c.head.replaceChildren(
    el("h3", {}, key + " ", el("small", {}, w.kind + " " + w.target + ", " + range)),
    w.problem ? el("p", { class: "problem" }, w.problem) : "",
    facts(w),
    w.decision ? el("p", { class: "why" }, lastSentence(w.decision)) : "",
  );
  if (w.decision) {
    const open = c.steps.open;
    c.steps.replaceChildren(el("summary", {}, "every step of the last decision"),
      el("ol", {}, ...w.decision.steps.map((s) => el("li", {}, s.rule + ": " + s.sentence))));
    c.steps.open = open;
  }
  c.signals = w.signals;
  return c.root;
}

// lastSentence is of the step that had the last word.
function lastSentence(d) {
  const moved = d.steps.filter((s) => s.before !== s.after);
  const s = moved.at(-1) || d.steps.at(-1);
  return s ? s.sentence : d.sentence;
}

function gpuCell(g) {
  const owner = (g.owners || []).map((o) => o.namespace + "/" + o.pod).join(", ");
  const known = g.utilization !== undefined;
  const level = known ? "u" + Math.min(4, Math.floor(g.utilization / 20)) : "unknown";
  const title = [g.uuid, owner || "nobody's", "memory " + num(g.memoryUsedMiB) + " of " + num(g.memoryTotalMiB) + " MiB",
    num(g.powerWatts) + " W", num(g.temperatureCelsius) + " °C"].join("\n");
  return el("div", { class: "gpu " + (owner ? level : known ? "free" : "unknown"), title },
    el("b", {}, known ? num(g.utilization) + " %" : "?"), owner ? owner.split("/")[1] : "");
}

function drawFleet(v) {
  if (v.nodes && v.nodes.length) {
    $("fleet").replaceChildren(...v.nodes.map((n) => el("div", { class: "node" }, el("b", { title: n.name }, n.name), el("div", { class: "gpus" }, ...n.gpus.map(gpuCell)))));
  }
  const down = (v.targets || []).filter((t) => !t.up);
  const up = (v.targets || []).length - down.length;
  $("targets").replaceChildren(
    el("span", {}, up + " of " + (v.targets || []).length + " scrape targets answer. "),
    ...down.map((t) => el("span", { class: "bad" }, t.name + ": " + (t.error || "no answer yet") + " ")),
    ...(v.targets || []).filter((t) => t.limited).slice(0, 20).map((t) => el("span", { class: "bad" }, t.name + ": " + t.limited + " ")));
}

function drawDecisions(v) {
  if (!v.recent || !v.recent.length) return;
  $("decisions").replaceChildren(...v.recent.slice(0, 40).map((e) => {
    const d = e.decision, up = d.replicas > d.current;
    return el("li", {}, el("time", {}, clock(d.time)), el("span", {}, e.namespace + "/" + e.name),
      el("span", { class: "move " + (up ? "up" : "down") }, d.current + " → " + d.replicas), el("span", { title: d.sentence }, d.sentence));
  }));
}

function draw(v) {
  const gpus = (v.nodes || []).flatMap((n) => n.gpus);
  const held = gpus.filter((g) => g.owners && g.owners.length).length;
  $("summary").className = "";
  $("summary").textContent = (v.nodes || []).length + " nodes, " + gpus.length + " GPUs, " + held + " held, " +
    (v.workloads || []).length + " workloads" + (v.leader ? "" : "; decisions are made by " + (v.leaderID || "nobody yet"));
  $("version").textContent = v.version;
  if (v.workloads && v.workloads.length) {
    const seen = new Set(v.workloads.map((w) => w.namespace + "/" + w.name));
    for (const key of [...cards.keys()]) {
      if (!seen.has(key)) { cards.get(key).root.remove(); cards.delete(key); }
    }
    const roots = v.workloads.map(card);
    const box = $("workloads");
    if (box.children.length !== roots.length || roots.some((r, i) => box.children[i] !== r)) box.replaceChildren(...roots);
  }
  drawFleet(v);
  drawDecisions(v);
}

function chart(c, h) {
  const s = c.signals[0] || { name: "signal", target: 0 };
  const t = h.points.map((p) => Date.parse(p.time) / 1000);
  const data = [t, h.points.map((p) => p.replicas), h.points.map((p) => p.serving), h.points.map((p) => p.signals[0] ?? null), t.map(() => s.target)];
  if (c.chart) { c.chart.setData(data); return; }
  const steps = uPlot.paths.stepped({ align: 1 });
  const axis = (scale, side, label) => ({ scale, side, label, labelSize: 20, stroke: css("--dim"), grid: { stroke: css("--line"), width: 1, show: side === 3 }, ticks: { show: false }, size: 44 });
  const unit = s.unit ? " " + s.unit : "";
  c.chart = new uPlot({
    width: Math.max(300, c.chartBox.clientWidth), height: 210,
    scales: { n: { range: (_, lo, hi) => [0, Math.max(4, hi + 1)] }, s: { range: (_, lo, hi) => [0, Math.max(s.unit === "%" ? 100 : s.target * 1.5, hi * 1.05)] } },
    axes: [{ stroke: css("--dim"), grid: { show: false }, ticks: { show: false } }, axis("n", 3, "replicas"), axis("s", 1, s.name + (s.unit ? " (" + s.unit + ")" : ""))],
    series: [{ value: (_, x) => (x ? clock(x * 1000) : "") },
      { label: "replicas", scale: "n", stroke: css("--replicas"), width: 2, paths: steps, points: { show: false } },
      { label: "serving", scale: "n", stroke: css("--serving"), fill: css("--serving") + "55", width: 1, paths: steps, points: { show: false } },
      { label: s.name, scale: "s", stroke: css("--signal"), width: 2, points: { show: false }, value: (_, x) => (x === null || x === undefined ? "–" : x.toFixed(1) + unit) },
      { label: "target", scale: "s", stroke: css("--signal"), width: 1, dash: [4, 4], points: { show: false } }],
  }, data, c.chartBox);
}

async function get(path) {
  const r = await fetch(path);
  if (!r.ok) throw new Error(path + " answered " + r.status);
  return r.json();
}

async function poll(every, f) {
  for (;;) {
    try {
      await f();
    } catch (err) {
      $("summary").className = "bad";
      $("summary").textContent = "the controller does not answer (" + err.message + "); what is shown is old";
    }
    await new Promise((done) => setTimeout(done, every));
  }
}

poll(1000, async () => draw(await get("/api/v1/view")));
poll(2000, async () => {
  for (const [key, c] of cards) {
    const [namespace, name] = key.split("/");
    const h = await get("/api/v1/history?namespace=" + encodeURIComponent(namespace) + "&name=" + encodeURIComponent(name));
    if (h.points && h.points.length > 1 && c.root.isConnected) chart(c, h);
  }
});
addEventListener("resize", () => {
  for (const c of cards.values()) if (c.chart) c.chart.setSize({ width: Math.max(300, c.chartBox.clientWidth), height: 210 });
});
