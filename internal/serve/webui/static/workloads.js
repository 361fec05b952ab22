// SPDX-License-Identifier: Apache-2.0
// The workloads: what is wrong, whether objectives are kept, and a list whose rows open.
"use strict";

const keyOf = (w) => w.namespace + "/" + w.name;

// ---- problems ----

const mostProblems = 5; // beside those of nodes
let allProblems = false;

// problemsOf lists what is wrong, causes before effects: nodes before workloads, a text, and the address of what it is about.
function problemsOf(v, shown) {
  const out = [];
  for (const w of workloadsOf(v, "")) {
    const to = hashOf("workloads", { open: keyOf(w) });
    if (w.problem) out.push({ rank: 1, who: keyOf(w), to, text: w.problem });
    for (const o of w.objectives || []) {
      if (o.missed) out.push({ rank: 2, who: keyOf(w), to, text: "objective missed: " + o.attained + " of the requests are within the limits, the goal is " + o.objective });
      else if (o.burning) out.push({ rank: 3, who: keyOf(w), to, text: "the error budget is used up fast: " + (o.budgetLeft || "?") + " is left" });
    }
    if (w.decision && decisionAge(w, shown) > shown.maxAge) out.push({ rank: 4, who: keyOf(w), to, text: "last decision " + age(decisionAge(w, shown)) + " ago" });
  }
  for (const h of v.hpas) if (h.problem) out.push({ rank: 1, who: keyOf(h), to: hashOf("workloads"), text: "HPA: " + h.problem });
  for (const n of nodeProblems(v)) out.push({ rank: 0, who: n.name, others: extentText(n, shown), all: n.alike > 1 ? n.alike : 0, to: hashOf("fleet", { q: n.name }), text: n.problems.join("; ") });
  const pods = v.targets.filter((t) => t.kind === "pod" && !t.up && !t.starting).map((t) => ({ rank: 5, who: t.name, to: hashOf("fleet"), text: t.error || "no answer yet" }));
  return out.concat(pods).sort((a, b) => a.rank - b.rank);
}

// firstOf keeps the first problems, and of those of nodes the first groups: one fault of many workloads does not hide them.
function firstOf(all) {
  let left = mostProblems, groups = most.problems;
  return all.filter((p) => (p.rank === 0 ? groups-- > 0 : left-- > 0));
}

function drawProblemList(v, shown) {
  const all = problemsOf(v, shown), first = firstOf(all), list = allProblems ? all : first;
  $("well").hidden = all.length > 0;
  keyed($("problem-list"), list, (p) => p.who + p.text.slice(0, 20), () => el("li", {}, el("a"), el("span"), " ", el("a", { class: "show" }, "show")), (e, p) => {
    const [who, text, show] = e.children;
    who.setAttribute("href", p.to);
    setText(who, p.who);
    setText(text, (p.others || "") + ": " + p.text);
    show.hidden = !p.all;
    show.setAttribute("href", hashOf("fleet", { alike: p.who }));
    show.setAttribute("aria-label", "show the " + plural(p.all || 0, "node"));
  });
  const hidden = all.length - first.length;
  $("problem-more").hidden = hidden <= 0;
  setText($("problem-more"), allProblems ? "show fewer" : "show " + plural(hidden, "more problem"));
}

// ---- objectives ----

// budgetBar draws the share of the error budget that is left.
function budgetBar(o) {
  const left = parseFloat(o.budgetLeft), fill = el("i"), bar = el("span", { class: "budget" + (o.missed ? " missed" : o.burning ? " burning" : ""), "aria-hidden": "true" }, fill);
  fill.style.width = Math.max(0, Math.min(100, Number.isNaN(left) ? 0 : left)) + "%";
  return bar;
}

const verdict = (o) => (!o.attained ? "no request yet" : o.missed ? "missed" : o.burning ? "burning" : "kept");

function objectiveRow(w, o) {
  const burns = (o.burns || []).map((b) => b.rate.toFixed(b.rate < 10 ? 1 : 0) + " × " + b.window).join(", ");
  return el("tr", { class: o.missed ? "bad-row" : "" },
    el("th", { scope: "row" }, link(keyOf(w), "workloads", { open: keyOf(w) })),
    el("td", { "data-label": "kept?" }, el("b", { class: o.missed || o.burning ? "bad" : o.attained ? "good" : "dim" }, verdict(o))),
    el("td", { "data-label": "within limits" }, o.attained ? o.attained + " (goal " + o.objective + ")" : "–, goal " + o.objective),
    el("td", { "data-label": "budget left" }, budgetBar(o), " " + (o.budgetLeft || "–") + " (" + o.over + ")"),
    el("td", { "data-label": "burn" }, burns || "–"),
    el("td", { "data-label": "needs" }, o.cost ? o.cost + " replicas" : "–"));
}

function drawObjectives(v) {
  const rank = (o) => (o.missed ? 0 : o.burning ? 1 : 2);
  const all = workloadsOf(v, "").flatMap((w) => (w.objectives || []).map((o) => [w, o])).sort((a, b) => rank(a[1]) - rank(b[1]));
  $("objectives").hidden = !all.length;
  if (!all.length) return;
  const kept = all.filter(([, o]) => o.attained && !o.missed).length, counted = all.filter(([, o]) => o.attained).length;
  setText($("objectives-sum"), kept + " of " + plural(counted, "objective") + " kept" + (all.length > counted ? ", " + (all.length - counted) + " without a request yet" : ""));
  const rows = all.slice(0, 50), key = JSON.stringify(rows.map(([w, o]) => [keyOf(w), o]));
  if ($("objectives-rows").shows === key) return; // so that the focus stays
  $("objectives-rows").shows = key;
  $("objectives-rows").replaceChildren(...rows.map(([w, o]) => objectiveRow(w, o)));
}

// ---- the list ----

const decisionAge = (w, shown) => (w.decision ? Math.max(0, (shown.now - Date.parse(w.decision.time)) / 1000) : 0);

// deciding returns the signal with the highest value for its target.
function deciding(w) {
  let best = null;
  for (const s of w.signals || []) {
    if (s.value === undefined || s.value === null || !(s.target > 0)) continue;
    if (!best || s.value / s.target > best.value / best.target) best = s;
  }
  return best;
}

function signalValue(s) {
  if (s.value === undefined || s.value === null) return "–";
  return s.value.toFixed(Math.abs(s.value) < 10 ? 2 : 0) + (s.unit ? " " + s.unit : "");
}

// waiting returns how long a replica has been starting, and the usual time.
function waiting(w, now) {
  if (!w.startingSince) return w.waiting || "";
  const text = "starting, " + age(Math.max(0, (now - Date.parse(w.startingSince)) / 1000)) +
    (w.startup ? ", usually " + Math.round(seconds(w.startup)) + " s" : "");
  return w.waiting ? w.waiting + ": " + text : text;
}

// stateOf says in words how a workload is. A lower rank is more urgent.
function stateOf(w, shown) {
  const missed = (w.objectives || []).some((o) => o.missed), burning = (w.objectives || []).some((o) => o.burning);
  if (w.problem) return { rank: 0, text: "problem", why: w.problem, look: "bad" };
  if (missed) return { rank: 1, text: "objective missed", why: "", look: "bad" };
  if (w.decision && decisionAge(w, shown) > shown.maxAge) return { rank: 2, text: "old", why: "last decision " + age(decisionAge(w, shown)) + " ago", look: "dim" };
  if (burning) return { rank: 3, text: "budget burns", why: "", look: "bad" };
  const wait = waiting(w, shown.now);
  if (w.atLimit) return { rank: 4, text: w.atLimit, why: w.decision ? w.decision.why : "", look: "note" };
  if (w.override) return { rank: 4, text: "overridden", why: w.override, look: "note" };
  if (w.idle) return { rank: 5, text: "idle", why: w.idle, look: "note" };
  if (!wait && (w.schedules || []).length) return { rank: 6, text: "scheduled", why: "active schedules: " + w.schedules.join(", "), look: "note" };
  const why = [wait, w.hpa ? "HorizontalPodAutoscaler " + w.hpa + " sets the replicas" : "", w.decision ? w.decision.why : ""].filter(Boolean).join("; ");
  if (wait) return { rank: 5, text: "starting", why: why.replace(/^starting, /, ""), look: "note" };
  return { rank: 7, text: w.actuation === "Advise" ? "advice only" : "ok", why, look: "dim" };
}

const lastChange = (v, w) => v.recent.find((e) => e.namespace === w.namespace && e.name === w.name);

const sorts = {
  state: (r) => r.state.rank, name: () => 0, replicas: (r) => -(r.w.decision?.replicas ?? -1), load: (r) => -(r.signal ? r.signal.value / r.signal.target : -1),
  kept: (r) => Math.min(101, ...(r.w.objectives || []).map((o) => parseFloat(o.attained || "101"))), changed: (r) => -(r.change ? Date.parse(r.change.decision.time) : 0),
};

// extra are the workloads of a large cluster that the view does not have: found by the
// search, or loaded by the button below the list.
let extra = null;

// q: those of the search only.
function workloadsOf(v, q) {
  if (!extra || extra.q !== q || !v.omitted.workloads) return v.workloads;
  const fresh = new Map(v.workloads.map((w) => [keyOf(w), w]));
  if (!q) return v.workloads.concat(extra.list.filter((w) => !fresh.has(keyOf(w))));
  return extra.list.map((w) => fresh.get(keyOf(w)) || w);
}

async function loadWorkloads(more) {
  const q = (route.view === "workloads" && route.p.get("q")) || "";
  if (!last || !last.v.omitted.workloads || (!q && !more && (!extra || extra.q))) {
    extra = null;
    return;
  }
  const have = more && extra && extra.q === q ? extra.list : [];
  let list = have;
  const until = more ? Math.max(have.length, q ? 0 : last.v.workloads.length) + 50 : Math.max(50, extra && extra.q === q ? extra.list.length : 0);
  list = [];
  let total = 0;
  do {
    const { body } = await get("api/v1/workloads?limit=50&offset=" + list.length + "&q=" + encodeURIComponent(q));
    total = body.total;
    if (!(body.workloads || []).length) break;
    list = list.concat(body.workloads);
  } while (list.length < Math.min(until, total));
  extra = { q, total, list };
}

const mostRows = 300;

function rowsOf(v, shown) {
  const q = route.p.get("q") || "";
  const rows = workloadsOf(v, q).filter((w) => keyOf(w).toLowerCase().includes(q.toLowerCase())).map((w) => ({ w, key: keyOf(w), state: stateOf(w, shown), signal: deciding(w), change: lastChange(v, w) }));
  const by = sorts[route.p.get("sort")] || sorts.state, turn = route.p.get("desc") ? -1 : 1;
  return rows.sort((a, b) => turn * ((by(a) - by(b)) || (a.key < b.key ? -1 : a.key > b.key ? 1 : 0)));
}

function makeRow(r) {
  const open = button(r.key, { class: "link name", "aria-expanded": "false" }, () => toggle(r.key));
  const tr = el("tr", { class: "workload", "data-key": r.key },
    el("th", { scope: "row" }, open, el("small")), el("td", { "data-label": "state" }, el("b"), el("small")),
    el("td", { class: "n", "data-label": "replicas" }, el("b"), el("small")), el("td", { class: "load", "data-label": "signal and target" }, el("span"), el("div", { class: "meter" }, el("i"), el("u"))),
    el("td", { class: "n", "data-label": "within limits" }), el("td", { "data-label": "last change" }, el("span", { class: "move" }), el("small")));
  tr.addEventListener("click", (e) => { if (!e.target.closest("a, button") && !String(getSelection())) toggle(r.key); });
  return tr;
}

function drawRow(tr, r, shown) {
  const [name, state, replicas, load, kept, change] = tr.children, { w, signal } = r, d = w.decision;
  const isOpen = opened() === r.key;
  setClass(tr, "workload" + (isOpen ? " open" : "") + (r.state.text === "old" ? " old" : ""));
  name.firstChild.setAttribute("aria-expanded", String(isOpen));
  setText(name.lastChild, w.kind + " " + w.target);
  setText(state.firstChild, r.state.text);
  setClass(state.firstChild, r.state.look);
  setText(state.lastChild, r.state.why);
  state.lastChild.title = r.state.why;
  setText(replicas.firstChild, !d ? "–" : d.replicas === d.current ? String(d.current) : d.current + " → " + d.replicas);
  setText(replicas.lastChild, !d ? "" : d.serving + " serving" + (d.starting ? ", " + d.starting + " starting" : "") + (d.unschedulable ? ", " + d.unschedulable + " unschedulable" : "") + ", " + w.min + " to " + w.max);
  const s = signal || (w.signals || [])[0], share = signal ? signal.value / signal.target : 0;
  setText(load.firstChild, s ? s.name.slice(0, 40) + " " + signalValue(s) + ", target " + s.target + (s.unit ? " " + s.unit : "") : "–");
  load.title = (w.signals || []).map((x) => x.name + ": " + signalValue(x) + ", target " + x.target).join("\n");
  load.lastChild.hidden = !signal;
  load.lastChild.firstChild.style.width = Math.min(100, share * 66.6) + "%";
  load.lastChild.className = "meter" + (share > 1 ? " above" : "");
  const o = (w.objectives || []).slice().sort((a, b) => !!b.missed - !!a.missed || !!b.burning - !!a.burning)[0];
  setText(kept, o ? o.attained || "no request" : "–");
  setClass(kept, "n" + (o && (o.missed || o.burning) ? " bad" : ""));
  const e = r.change;
  setText(change.firstChild, e ? e.decision.current + " → " + e.decision.replicas : "–");
  setClass(change.firstChild, "move " + (!e ? "" : e.advice ? "advice" : e.decision.replicas > e.decision.current ? "up" : "down"));
  setText(change.lastChild, e ? age(Math.max(0, (shown.now - Date.parse(e.decision.time)) / 1000)) + " ago" + (e.decision.rule ? ", " + e.decision.rule : "") : "");
}

// ---- HorizontalPodAutoscalers that read our metrics ----

const hpaMetric = (m) => m.name + " " + signalValue(m) + ", target " + m.target;

function makeHPA(h) {
  return el("tr", { class: "hpa" }, el("th", { scope: "row" }, el("b", {}, keyOf(h)), el("small")), el("td", { "data-label": "state" }, el("b"), el("small")),
    el("td", { class: "n", "data-label": "replicas" }, el("b"), el("small")), el("td", { class: "load", "data-label": "metric" }));
}

function drawHPA(tr, h) {
  const [name, state, replicas, metric] = tr.children;
  setText(name.lastChild, h.kind + " " + h.target);
  setText(state.firstChild, h.problem ? "problem" : h.note ? "limited" : "ok");
  setClass(state.firstChild, h.problem ? "bad" : h.note ? "note" : "dim");
  setText(state.lastChild, h.problem || h.note || "");
  setText(replicas.firstChild, h.desired === h.current ? String(h.current) : h.current + " → " + h.desired);
  setText(replicas.lastChild, h.min + " to " + h.max);
  setText(metric, h.metrics.map(hpaMetric).join("; "));
}

function drawHPAs(v) {
  const cut = v.omitted.hpas || 0, bad = v.hpas.filter((h) => h.problem).length;
  $("hpas-box").hidden = !v.hpas.length && !cut;
  setText($("hpas-sum"), shownOf(v.hpas.length, v.hpas.length + cut, "HPA", "HPAs") + (bad ? ", " + bad + " with a problem" : ""));
  keyed($("hpas"), v.hpas, keyOf, makeHPA, drawHPA);
}

// ---- what is open ----

const opened = () => (route.view === "workloads" && route.p.get("open")) || "";

function toggle(key) {
  remember({ open: opened() === key ? "" : key, at: "" });
  if (last) drawWorkloads(last.v, shownNow());
}

// shownOf is how many of a list are shown.
const shownOf = (n, total, one, many) => (n < total ? count(n) + " of " : "") + count(total) + " " + (total === 1 ? one : many);

function drawWorkloads(v, shown) {
  drawProblemList(v, shown);
  drawObjectives(v);
  drawHPAs(v);
  const cut = v.omitted.workloads || 0, all = v.workloads.length + cut, q = route.p.get("q") || "";
  const searched = !cut || (extra && extra.q === q); // else only the workloads of the view are searched so far
  const rows = rowsOf(v, shown), few = rows.slice(0, mostRows);
  const at = opened(), found = rows.find((r) => r.key === at);
  if (found && !few.includes(found)) few.push(found);
  const total = !cut ? rows.length : searched ? extra.total : q ? null : all;
  setText($("workloads-count"), total === null ? "searching " + plural(all, "workload") + "…" : q ? shownOf(rows.length, total, "match", "matches") + ", of " + plural(all, "workload")
    : shownOf(rows.length, total, "workload", "workloads") + (cut && !searched ? ", those with problems first" : ""));
  $("workloads-more").hidden = total === null || (searched && cut ? extra.list.length : v.workloads.length) >= total;
  setText($("workloads-more"), q ? "Load more matches" : "Load more workloads");
  for (const b of document.querySelectorAll("#workloads-head button")) {
    const on = b.dataset.sort === (route.p.get("sort") || "state");
    b.parentElement.setAttribute("aria-sort", !on ? "none" : route.p.get("desc") ? "descending" : "ascending");
  }
  $("workloads-table").hidden = !few.length;
  $("workloads-none").hidden = few.length > 0;
  setText($("workloads-none"), v.workloads.length || cut ? "No workload matches." : v.namespaces ? "No GPUAutoscaler in the namespaces that you may see." : "No GPUAutoscaler yet. Apply one and it appears here.");
  const lines = few.flatMap((r) => (r.key === at ? [{ id: "r " + r.key, r }, { id: "d " + r.key, r, detail: true }] : [{ id: "r " + r.key, r }]));
  keyed($("workloads"), lines, (l) => l.id, (l) => (l.detail ? makeDetail(l.r) : makeRow(l.r)), (e, l) => (l.detail ? drawDetail(e, l.r, shown) : drawRow(e, l.r, shown)));
  if (!found && detail) closeDetail();
}

for (const b of document.querySelectorAll("#workloads-head button")) {
  b.addEventListener("click", () => {
    const same = b.dataset.sort === (route.p.get("sort") || "state");
    remember({ sort: b.dataset.sort, desc: same && !route.p.get("desc") ? "1" : "" });
    if (last) drawWorkloads(last.v, shownNow());
  });
}
$("workloads-form").addEventListener("submit", (e) => e.preventDefault());
const search = later(200, () => loadWorkloads(false).then(() => { if (last) drawWorkloads(last.v, shownNow()); }, () => {}));
$("workloads-q").addEventListener("input", () => {
  remember({ q: $("workloads-q").value.trim() });
  if (last) drawWorkloads(last.v, shownNow());
  search();
});
$("workloads-more").addEventListener("click", () => loadWorkloads(true).then(() => { if (last) drawWorkloads(last.v, shownNow()); }, () => {}));
$("problem-more").addEventListener("click", () => {
  allProblems = !allProblems;
  if (last) drawProblemList(last.v, shownNow());
});
