// SPDX-License-Identifier: Apache-2.0
// The page. It requests the view each second (less often for a large fleet) and
// the histories of the visible workloads every two seconds, and draws them. Old values
// are shown as old, with their age. Text is only set as text, never as HTML.
"use strict";

const keyOf = (w) => w.namespace + "/" + w.name;

// The most entries that are drawn of each list, and the most open nodes.
const most = { targets: 20, changes: 40, charts: 12, cards: 24, namespaces: 8, problems: 5, open: 8 };

// ---- the token ----

// Behind the API server's proxy, all proxied pages share one origin and its storage:
// the token is then kept in memory only. The proxy also removes the header
// Authorization.
const proxied = location.pathname.includes("/proxy/");
const tokenKey = "gpupilot-token";
let token = proxied ? "" : sessionStorage.getItem(tokenKey) || "";
let loggedIn = null; // is called after a login; null: no login is needed

function keepToken(t) {
  token = t;
  if (proxied) return;
  if (t) sessionStorage.setItem(tokenKey, t);
  else sessionStorage.removeItem(tokenKey);
}

// askToken shows the login and waits for it.
function askToken(why) {
  $("login").hidden = false;
  document.querySelector("main").hidden = true;
  $("banner").hidden = true;
  $("logout").hidden = true;
  document.body.classList.remove("dead");
  $("summary").textContent = "not logged in";
  $("login-error").textContent = why;
  $("login-error").hidden = !why;
  $("token").focus();
  return new Promise((done) => { loggedIn = done; });
}

$("login-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const given = $("token").value.replace(/\s/g, "");
  if (!given || !loggedIn) return;
  keepToken(given);
  $("token").value = "";
  $("login-error").hidden = true;
  $("summary").textContent = "connecting…";
  const done = loggedIn;
  loggedIn = null;
  done();
});

$("logout").addEventListener("click", () => {
  keepToken("");
  location.reload();
});

// ---- requests ----

class Refused extends Error {
  constructor(status, text, retry) {
    super(text);
    this.status = status;
    this.retry = retry;
  }
}

async function get(path) {
  const headers = {};
  if (token && proxied) headers["X-Gpupilot-Token"] = token;
  else if (token) headers.Authorization = "Bearer " + token;
  const r = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!r.ok) {
    const text = await r.json().then((b) => b.error, () => "");
    throw new Refused(r.status, text || "answer " + r.status, Number(r.headers.get("Retry-After")) || 0);
  }
  return { body: await r.json(), age: Number(r.headers.get("Age")) || 0 };
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// ---- workloads ----

const cards = new Map(); // by "namespace/name"

function signalValue(s) {
  if (s.value === undefined || s.value === null) return "–";
  return s.value.toFixed(Math.abs(s.value) < 10 ? 2 : 0) + (s.unit ? " " + s.unit : "");
}

function facts(w) {
  const d = w.decision, pairs = [];
  if (d) {
    pairs.push(["replicas", d.replicas === d.current ? d.current : d.current + " → " + d.replicas], ["serving", d.serving]);
    if (d.starting) pairs.push(["starting", d.starting]);
    if (d.unschedulable) pairs.push(["unschedulable", d.unschedulable]);
  }
  for (const s of w.signals || []) pairs.push([s.name + " (target " + s.target + ")", signalValue(s)]);
  return el("dl", { class: "facts" }, ...pairs.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, String(v)))));
}

// objective draws how well an objective is kept: what was attained, what is left of the
// error budget, and how fast it is used.
function objective(o) {
  const pairs = [["within limits (objective " + o.objective + ")", o.attained || "–", o.missed]];
  if (o.budgetLeft) pairs.push(["error budget left of " + o.over, o.budgetLeft, o.budgetLeft.startsWith("-")]);
  for (const b of o.burns || []) pairs.push(["burn rate, " + b.window, b.rate.toFixed(b.rate < 10 ? 1 : 0) + " ×", o.burning && b.rate > 1]);
  if (o.cost) pairs.push(["takes, by the recorded load", o.cost + " replicas"]);
  return [
    el("dl", { class: "facts" }, ...pairs.map(([k, v, bad]) => el("div", {}, el("dt", {}, k), el("dd", bad ? { class: "bad" } : {}, v)))),
    ...(o.problems || []).map((p) => el("p", { class: "problem" }, p)),
  ];
}

// waiting returns how long a replica has been starting, and the usual time.
function waiting(w, now) {
  if (!w.startingSince) return w.waiting || "";
  const text = "starting, " + age(Math.max(0, (now - Date.parse(w.startingSince)) / 1000)) +
    (w.startup ? ", usually " + Math.round(seconds(w.startup)) + " s" : "");
  return w.waiting ? w.waiting + ": " + text : text;
}

// The ranges of a chart. The first one is the last decisions, one a second; the others
// are one-minute aggregates, which are requested again after a while.
const ranges = [
  { name: "10 min", title: "the last decisions, one a second" },
  { name: "1 day", title: "means of minutes", since: "24h", step: "2m", every: 60000 },
  { name: "14 days", title: "means of half hours", since: "336h", step: "30m", every: 300000 },
];

// rangeButtons returns the buttons that choose the range of a card's chart.
function rangeButtons(c) {
  c.range = ranges[0];
  const buttons = ranges.map((r) => el("button", { class: "link", type: "button", title: r.title, "aria-pressed": String(r === c.range) }, r.name));
  buttons.forEach((b, i) => b.addEventListener("click", () => {
    c.range = ranges[i];
    c.minutesAt = 0;
    buttons.forEach((x, j) => x.setAttribute("aria-pressed", String(i === j)));
    drawHistory(c).catch(() => {}); // the next poll tries again
  }));
  c.note = el("span", { class: "dim", role: "status" });
  return el("div", { class: "ranges", role: "group", "aria-label": "Range of the chart" }, ...buttons, c.note);
}

// The metrics of which a chart shows the minutes.
const replicasMetric = "gpupilot_autoscaler_replicas", signalMetric = "gpupilot_autoscaler_signal_value";

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

// drawHistory requests the history of a card's range, if it may have changed, and draws it.
async function drawHistory(c) {
  const range = c.range, about = "?namespace=" + encodeURIComponent(c.w.namespace) + "&name=" + encodeURIComponent(c.w.name);
  let points;
  if (range.since) {
    if (c.minutesAt && performance.now() - c.minutesAt < range.every) return;
    c.minutesAt = performance.now();
    const { body } = await get("api/v1/minutes" + about + "&since=" + range.since + "&step=" + range.step + "&metric=" + replicasMetric + "&metric=" + signalMetric);
    points = pointsOf(body, c.signals);
  } else {
    const { body } = await get("api/v1/history" + about);
    points = body.points || [];
  }
  if (range !== c.range || !c.root.isConnected) return;
  const few = points.filter((p) => p.replicas !== null).length < 2;
  setText(c.note, few && range.since ? "Not enough minutes are recorded yet." : "");
  if (few) dropChart(c);
  else drawChart(c, { points });
}

function drawCard(w, shown) {
  const key = keyOf(w);
  let c = cards.get(key);
  if (!c) {
    c = { root: el("article", { class: "card", "data-key": key }), head: el("div"), chartBox: el("div", { class: "chart" }), steps: el("details"), w };
    c.root.append(c.head, rangeButtons(c), c.chartBox, c.steps);
    cards.set(key, c);
  }
  c.w = w;
  c.signals = w.signals || [];
  const d = w.decision;
  const decided = d ? (shown.now - Date.parse(d.time)) / 1000 : 0;
  const old = decided > shown.maxAge;
  c.root.classList.toggle("old", old);
  const range = w.min + " to " + w.max + (w.actuation === "Advise" ? ", advice only" : "");
  const wait = waiting(w, shown.now);
  c.head.replaceChildren(
    el("h3", {}, key + " ", el("small", {}, w.kind + " " + w.target + ", " + range)),
    w.problem ? el("p", { class: "problem" }, w.problem) : "",
    (w.schedules || []).length ? el("p", { class: "waiting" }, "active schedules: " + w.schedules.join(", ")) : "",
    w.override ? el("p", { class: "override" }, w.override) : "",
    wait ? el("p", { class: "waiting" }, wait) : "",
    old ? el("p", { class: "age" }, "last decision " + age(decided) + " ago: these values are old") : "",
    facts(w),
    ...(w.objectives || []).flatMap(objective),
    d ? el("p", { class: "why" }, lastSentence(d)) : "",
  );
  c.steps.hidden = !d;
  if (d) {
    const open = c.steps.open;
    c.steps.replaceChildren(el("summary", {}, "every step of the last decision"),
      el("ol", {}, ...(d.steps || []).map((s) => el("li", {}, s.rule + ": " + s.sentence))));
    c.steps.open = open;
  }
  return c.root;
}

// lastSentence returns the sentence of the step that decided.
function lastSentence(d) {
  const steps = d.steps || [];
  const s = steps.filter((x) => x.before !== x.after).at(-1) || steps.at(-1);
  return s ? s.sentence : d.sentence;
}

let allCards = false; // draw all workloads; false: only the first ones

// found is the workloads that match the search, if the view does not have all.
let found = null;

async function findWorkloads() {
  const q = $("workloads-q").value.trim();
  if (!q || !last || !last.v.omitted.workloads) {
    found = null;
    return;
  }
  const { body } = await get("api/v1/workloads?q=" + encodeURIComponent(q));
  found = { q, total: body.total, list: body.workloads || [] };
}

function drawWorkloads(v, shown) {
  const cut = v.omitted.workloads || 0;
  $("workloads-form").hidden = !cut;
  setText($("workloads-count"), found ? found.list.length + " of " + found.total + " found"
    : v.workloads.length + " of " + (v.workloads.length + cut) + ", those with problems first");
  let list = cut && found ? found.list : v.workloads;
  const many = list.length > most.cards;
  $("workloads-more").hidden = !many;
  setText($("workloads-more"), allCards ? "show fewer" : "show all " + list.length);
  if (many && !allCards) list = [...list].sort((a, b) => !!b.problem - !!a.problem).slice(0, most.cards / 2);
  const seen = new Set(list.map(keyOf));
  for (const [key, c] of cards) {
    if (seen.has(key)) continue;
    dropChart(c);
    cards.delete(key);
  }
  const roots = list.map((w) => drawCard(w, shown));
  const box = $("workloads");
  if (!roots.length || box.children.length !== roots.length || roots.some((r, i) => box.children[i] !== r)) {
    replace(box, roots, cut ? "No workload matches." : v.namespaces ? "No GPUAutoscaler in the namespaces that you may see." : "No GPUAutoscaler yet. Apply one and it appears here.");
  }
}

// ---- scrape targets and changes ----

// doubts returns the faults of a target that answers.
function doubts(t) {
  return [t.contradiction, t.limited, t.frozen ? t.frozen + " devices whose values do not change" : "",
    t.outOfRange ? t.outOfRange + " values out of their range" : ""].filter(Boolean);
}

// drawTargets lists the targets with a fault, and then the starting pods.
function drawTargets(v, shown) {
  const all = v.omitted.nodes ? v.targets.filter((t) => t.kind === "pod") : v.targets; // the others are among the nodes' problems
  const down = all.filter((t) => !t.up), sum = v.targeted;
  const faults = down.filter((t) => !t.starting), starting = down.filter((t) => t.starting);
  let text = sum.targets ? sum.up + " of " + sum.targets + " scrape targets answer" : "";
  if (sum.starting) text += ", " + sum.starting + " starting";
  $("targets-summary").textContent = text ? text + "." : "";
  const rows = faults.map((t) => el("li", { class: "bad" }, t.name + ": " + (t.error || "no answer yet") +
    (t.lastSuccess ? " (last answer " + age(Math.max(0, (shown.now - Date.parse(t.lastSuccess)) / 1000)) + " ago)" : "")));
  rows.push(...all.filter((t) => t.up).flatMap((t) => doubts(t).map((d) => el("li", { class: "bad" }, t.name + ": " + d))));
  rows.push(...starting.map((t) => el("li", {}, t.name + ": starting, " + age(Math.max(0, (shown.now - Date.parse(t.starting)) / 1000)))));
  const more = rows.length - most.targets;
  if (more > 0) rows.splice(most.targets, more, el("li", {}, "and " + more + " more"));
  $("targets").replaceChildren(...rows);
}

function drawChanges(v, shown) {
  const today = new Date(shown.now);
  replace($("decisions"), v.recent.slice(0, most.changes).map((e) => {
    const d = e.decision;
    return el("li", {}, el("time", { datetime: d.time, title: d.time }, when(d.time, today)), el("span", {}, keyOf(e)),
      el("span", { class: "move " + (e.advice ? "advice" : d.replicas > d.current ? "up" : "down") }, (e.advice ? "advice " : "") + d.current + " → " + d.replicas),
      el("span", {}, d.sentence));
  }), v.leader ? "No change of replicas yet." : "This replica does not lead. The leader's page shows the changes.");
}

// ---- all of it ----

function summaryOf(v) {
  const f = v.fleet;
  let text = plural(f.nodes, "node") + ", " + plural(f.gpus, "GPU") + ", " + f.allocated.toLocaleString("en") + " in use, " +
    plural(v.workloads.length + (v.omitted.workloads || 0), "workload");
  if (v.namespaces) {
    const more = v.namespaces.length + (v.omitted.namespaces || 0) - most.namespaces;
    text += " in " + (v.namespaces.slice(0, most.namespaces).join(", ") || "no namespace that you may see") + (more > 0 ? " and " + more + " more" : "");
  }
  if (v.unaskedNamespaces) text += "; checking your rights in " + plural(v.unaskedNamespaces, "other namespace");
  return text + (v.leader ? "" : "; the leader is " + (v.leaderID || "unknown"));
}

let last = null; // { v, at, extra }: the newest view, the time of its arrival, and its age then in s

// shownNow returns the present age of the newest view.
function shownNow() {
  const extra = (performance.now() - last.at) / 1000 + last.extra;
  return { extra, now: Date.parse(last.v.time) + extra * 1000, maxAge: Math.max(5, seconds(last.v.maxAge)) };
}

// draw draws a view.
function draw() {
  const v = last.v, shown = shownNow();
  document.querySelector("main").hidden = false;
  $("summary").textContent = summaryOf(v);
  $("version").textContent = v.version;
  drawWorkloads(v, shown);
  drawFleet(v, shown);
  drawTargets(v, shown);
  drawChanges(v, shown);
}

// noAnswer shows the time without an answer, and greys everything.
function noAnswer(why) {
  const silent = last ? (performance.now() - last.at) / 1000 : 0;
  const dead = last !== null && silent + last.extra > 3 + 2 * Math.max(1, seconds(last.v.refresh));
  document.body.classList.toggle("dead", dead);
  $("banner").hidden = !why && !dead;
  $("banner").textContent = dead
    ? "No answer from the controller for " + age(silent) + (why ? " (" + why + ")" : "") + ". Everything below is from " + when(last.v.time, new Date()) + " and is old."
    : "The controller does not answer: " + why;
  if (dead && !document.querySelector("main").hidden) draw();
}

let problem = ""; // of the last request
setInterval(() => { if (!loggedIn && (problem || last)) noAnswer(problem); }, 1000);

async function pollView() {
  for (;;) {
    let pause = 1000;
    try {
      const { body, age: old } = await get("api/v1/view");
      for (const list of ["nodes", "problems", "targets", "workloads", "recent"]) body[list] = body[list] || []; // Go writes null for an empty list
      pause = Math.max(1000, seconds(body.refresh) * 1000);
      last = { v: body, at: performance.now(), extra: old };
      await findWorkloads();
      problem = "";
      $("login").hidden = true;
      $("logout").hidden = !token;
      draw();
      noAnswer("");
    } catch (err) {
      if (err instanceof Refused && err.status === 401) {
        const why = token ? "The token was not accepted: " + err.message + "." : "";
        keepToken("");
        last = null;
        problem = "";
        await askToken(why);
        continue;
      }
      problem = err.name === "TimeoutError" ? "timeout" : err.message;
      noAnswer(problem);
      if (err.retry) pause = err.retry * 1000;
    }
    await sleep(pause);
  }
}

const inSight = (e) => {
  const r = e.getBoundingClientRect();
  return e.isConnected && r.bottom > 0 && r.top < innerHeight;
};

async function pollHistories() {
  for (;;) {
    await sleep(last ? 2000 : 300);
    if (document.hidden || loggedIn || !last) continue;
    const seen = [...cards.values()].filter((c) => inSight(c.root)).slice(0, most.charts);
    await Promise.allSettled(seen.map(drawHistory));
  }
}

addEventListener("resize", () => {
  for (const c of cards.values()) if (c.chart) c.chart.setSize({ width: chartWidth(c.chartBox), height: 210 });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const c of cards.values()) {
    if (!c.chart) continue;
    dropChart(c); // its colours are those of the other scheme
    drawChart(c, c.history);
  }
});
$("workloads-form").addEventListener("submit", (e) => e.preventDefault());
$("workloads-more").addEventListener("click", () => {
  allCards = !allCards;
  if (last) drawWorkloads(last.v, shownNow());
});
let finding = 0;
$("workloads-q").addEventListener("input", () => {
  clearTimeout(finding);
  finding = setTimeout(() => findWorkloads().then(() => { if (last) drawWorkloads(last.v, shownNow()); }, () => {}), 250);
});
pollView();
pollHistories();
pollNodes();
