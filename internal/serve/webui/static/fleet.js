// SPDX-License-Identifier: Apache-2.0
// The fleet. For a small one, every GPU of every node is drawn. For a large one, the
// view has sums by node pool and the nodes with problems. Other nodes are requested in
// pages, and a node's GPUs when the node is openNodes.
"use strict";

// ---- one GPU, one node ----

// lookOf says how a GPU is drawn, and its state in words.
function lookOf(g, shown) {
  const s = seconds(g.age) + shown.extra, known = g.utilization !== undefined;
  if (g.lost) return ["lost", "lost: it cannot be read any more"];
  if (!known) return ["old", "stale: it has no utilisation"];
  if (s > shown.maxAge) return ["old", "stale: its last value is " + age(s) + " old"];
  if (!(g.owners || []).length) return ["free", "free"];
  if (!(g.utilization > 0)) return ["idle", "idle-held"]; // as view.State
  return ["u" + Math.min(4, Math.max(0, Math.floor(g.utilization / 20))), "active"];
}

// isHottest reports whether a GPU is the one with the highest temperature of the fleet.
const isHottest = (g, node, shown) => Boolean(shown.hottest) && !["old", "lost"].includes(lookOf(g, shown)[0]) && shown.hottest.node === node && shown.hottest.uuid === g.uuid;

const ownersOf = (g) => (g.owners || []).map((o) => o.namespace + "/" + o.pod);

// agoText is how long ago a time was.
const agoText = (t, shown) => " (" + age(Math.max(0, (shown.now - Date.parse(t)) / 1000)) + ")";

// idleSince is since when a GPU, or all idle-held GPUs of a pod, are idle-held; empty: unknown.
const idleSince = (x, shown) => (x.idleSince ? when(x.idleSince, new Date(shown.now)) + (x.idleAtLeast ? " or earlier" : "") + agoText(x.idleSince, shown) : "");

function aboutGPU(g, node, shown) {
  const [, state] = lookOf(g, shown);
  const name = g.index === undefined ? g.uuid : "GPU " + g.index + ", " + g.uuid + ",";
  return [name + " on " + node, isHottest(g, node, shown) ? "the hottest GPU" : "", state, ownersOf(g).join("\n") || "no pod holds it", g.heldSince ? "held since " + when(g.heldSince, new Date(shown.now)) : "", state === "idle-held" && g.idleSince ? "idle since " + idleSince(g, shown) : "",
    ...(g.lost ? [] : ["utilisation " + percentText(g.utilization) + ", memory " + num(g.memoryUsedMiB) + " of " + num(g.memoryTotalMiB) + " MiB", num(g.powerWatts) + " W, " + num(g.temperatureCelsius) + " °C"])].filter(Boolean).join("\n");
}

// indexOf is the index of a GPU, and of a MIG instance its number behind that; empty: unknown.
const indexOf = (g) => (g.index === undefined ? "" : g.index + (g.uuid.includes("/gi") ? "." + g.uuid.split("/gi")[1] : ""));

function makeCell(g, node) {
  const a = el("a", { class: "gpu", href: hashOf("gpu", { node, uuid: g.uuid }), tabindex: "-1" }, el("small"), el("b"), el("i"), el("span"));
  return a;
}

function drawCell(a, g, node, shown) {
  const [look] = lookOf(g, shown), s = seconds(g.age) + shown.extra, known = g.utilization !== undefined, owners = g.owners || [];
  const hot = isHottest(g, node, shown);
  setClass(a, "gpu " + look + (hot ? " hot" : ""));
  setText(a.children[2], hot ? num(g.temperatureCelsius) + " °C" : "");
  a.about = aboutGPU(g, node, shown);
  a.setAttribute("aria-label", a.about.replaceAll("\n", ", "));
  setText(a.firstChild, indexOf(g));
  setText(a.children[1], look === "lost" ? "lost" : !known ? "stale" : look === "idle" ? "idle-held" : look === "free" ? "free" : num(g.utilization) + " %");
  setText(a.lastChild, known && look === "old" ? "stale, " + age(s) : owners.length ? owners[0].pod + (owners.length > 1 ? " +" + (owners.length - 1) : "") : "");
}

// drawCells draws a node's GPUs. One of them is in the order of the tab key; the arrow keys
// reach the others.
function drawCells(box, n, shown) {
  keyed(box, n.gpus, (g) => g.uuid, (g) => makeCell(g, n.name), (a, g) => drawCell(a, g, n.name, shown));
  if (box.firstChild && !box.querySelector('[tabindex="0"]')) box.firstChild.setAttribute("tabindex", "0");
}

$("fleet").addEventListener("keydown", (e) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key], cell = e.target.closest(".gpu");
  if (!step || !cell) return;
  const to = step > 0 ? cell.nextElementSibling : cell.previousElementSibling;
  if (!to) return;
  e.preventDefault();
  cell.setAttribute("tabindex", "-1");
  to.setAttribute("tabindex", "0");
  to.focus();
});

// The tip shows all about a GPU, with the full names of its pods, on hover and on focus.
function showTip(e) {
  const cell = e.target.closest ? e.target.closest(".gpu") : null;
  $("tip").hidden = !cell || !cell.about;
  if ($("tip").hidden) return;
  setText($("tip"), cell.about);
  const r = cell.getBoundingClientRect(), t = $("tip");
  t.style.left = Math.max(4, Math.min(r.left, innerWidth - t.offsetWidth - 12)) + "px";
  t.style.top = (r.bottom + t.offsetHeight + 8 < innerHeight ? r.bottom + 6 : Math.max(4, r.top - t.offsetHeight - 6)) + "px";
}
for (const type of ["mouseover", "focusin"]) document.addEventListener(type, showTip);
for (const type of ["mouseout", "focusout"]) document.addEventListener(type, () => { $("tip").hidden = true; });
addEventListener("scroll", () => { $("tip").hidden = true; }, { passive: true });

function drawWhole(v, shown) {
  const lines = [];
  const pools = [...new Set(v.nodes.map((n) => n.pool || ""))].sort();
  for (const p of pools) {
    const nodes = v.nodes.filter((n) => (n.pool || "") === p);
    if (pools.length > 1) lines.push({ id: "pool " + p, pool: p, n: nodes.length });
    for (const n of nodes) lines.push({ id: "node " + n.name, node: n });
  }
  if (!lines.length) {
    replace($("fleet"), [], v.namespaces ? "No GPU is held by pods that you may see." : "No node reports GPUs yet.");
    return;
  }
  keyed($("fleet"), lines, (l) => l.id,
    (l) => (l.node ? el("div", { class: "node" }, el("div", { class: "who" }, el("b", { title: l.node.name }, el("bdi", {}, l.node.name)), el("span", { class: "problem" })), el("div", { class: "gpus" })) : el("h3", { class: "pool-name" }, (l.pool || "no pool"))),
    (e, l) => {
      if (!l.node) return;
      setText(e.firstChild.lastChild, l.node.fault || "");
      drawCells(e.lastChild, l.node, shown);
    });
}

// ---- sums ----

function drawTotals(v) {
  const f = v.fleet;
  const facts = [["nodes", f.nodes], ["GPUs", f.gpus], ["active", f.active], ["idle-held", f.idle], ["free", f.free], ["stale", f.stale], ["nodes with problems", f.problemNodes]];
  const texts = facts.map(([k, n]) => [k, n.toLocaleString("en")]).concat([["mean utilisation of allocated GPUs", percentText(f.utilization)]]);
  keyed($("totals"), texts, ([k]) => k, ([k]) => el("div", {}, el("dt", {}, k), el("dd")), (e, [, text]) => setText(e.lastChild, text));
}

// freeText is what the free GPUs cost beside the held ones.
const freeText = (f) => (f.cost.unpricedFreeGPUs === f.free ? "no price" : "another " + costText(f.cost.freeUSDPerHour, f.cost.unpricedFreeGPUs || 0) + "/h");

// drawGlance says below the title what every view is asked: what is broken, which GPU is hot, who idles, what it costs.
function drawGlance(v) {
  const workloads = v.workloads.filter((w) => w.problem).length, more = v.omitted.workloads > 0 && workloads === v.workloads.length, nodes = v.fleet.problemNodes;
  const broken = [nodes && plural(nodes, "node") + (v.fleet.problemGPUs ? " (" + plural(v.fleet.problemGPUs, "GPU") + ")" : ""), workloads && (more ? "≥ " : "") + plural(workloads, "workload")].filter(Boolean).join(", ");
  const c = v.fleet.cost, h = v.hottest, first = holders && holders.holders[0];
  const gpus = (n) => num(n, n % 1 ? 2 : 0) + (n === 1 ? " GPU" : " GPUs");
  const lines = [
    broken && ["broken", "with problems: " + broken, hashOf("workloads")],
    h && ["hot", "hottest: " + num(h.temperatureCelsius) + " °C on " + h.node + ", " + (h.index === undefined ? h.uuid.split("-", 2).join("-") : "GPU " + h.index), hashOf("gpu", { node: h.node, uuid: h.uuid })],
    first && ["idle", "most idle-held: " + first.namespace + "/" + first.pod + ", " + gpus(first.gpus) + (first.usdPerHour != null ? ", " + costText(first.usdPerHour, first.unpricedGPUs) + "/h" : "") + sinceIdleText(first), hashOf("fleet")],
    ["cost", c ? "held GPUs: " + costText(c.usdPerHour, c.unpricedGPUs || 0) + "/h, of it " + costText(c.idleHeldUSDPerHour, c.unpricedIdleHeldGPUs || 0) + "/h idle-held" + (v.fleet.free ? "; free GPUs: " + freeText(v.fleet) : "") : "cost: no --gpu-price"],
  ].filter(Boolean);
  $("glance").hidden = !v.fleet.gpus;
  keyed($("glance"), lines, ([k]) => k, ([, , href]) => el("li", {}, el(href ? "a" : "span")), (e, [, text, href]) => {
    setText(e.firstChild, text);
    if (href) e.firstChild.href = href;
  });
}

// share draws a bar of a pool's active, idle, free and stale GPUs.
function share(bar, c) {
  [c.active, c.idle, c.free, c.stale].forEach((n, i) => { bar.children[i].style.flexGrow = n; });
  bar.title = c.active + " active, " + c.idle + " idle-held, " + c.free + " free, " + c.stale + " stale";
}

function makePool(p) {
  const pick = button(p.name || "no pool", { class: "link" }, () => choose({ pool: choice.pool === p.name ? null : p.name }));
  return el("tr", {}, el("th", { scope: "row" }, pick, el("small")), el("td", { "data-label": "nodes" }), el("td", { "data-label": "GPUs" }),
    el("td", { class: "wide" }, el("div", { class: "share" }, el("i", { class: "busy" }), el("i", { class: "idle" }), el("i"), el("i", { class: "old" }))),
    el("td", { "data-label": "allocated" }), el("td", { "data-label": "utilisation" }), el("td", { "data-label": "with problems" }));
}

function drawPool(row, p) {
  const [name, nodes, gpus, bar, allocated, utilization, problems] = row.children;
  setText(name.lastChild, (p.models || []).join(", "));
  name.firstChild.setAttribute("aria-pressed", String(choice.pool === p.name));
  setText(nodes, p.nodes.toLocaleString("en"));
  setText(gpus, p.gpus.toLocaleString("en"));
  share(bar.firstChild, p);
  setText(allocated, p.allocated.toLocaleString("en"));
  setText(utilization, percentText(p.utilization));
  setText(problems, p.problemNodes ? p.problemNodes.toLocaleString("en") : "–");
  problems.classList.toggle("bad", p.problemNodes > 0);
}

function drawPools(v) {
  const pools = v.pools || [];
  $("pools-box").hidden = pools.length < 2 && !v.omitted.nodes || !pools.length;
  if ($("pools-box").hidden) return;
  keyed($("pools"), pools, (p) => p.name, makePool, drawPool);
  setText($("pools-more"), v.omitted.pools ? "and " + plural(v.omitted.pools, "smaller pool") : "");
}

// ---- nodes with problems ----

// nodeProblems returns the lines of nodes with problems. In a large fleet, a line stands for the nodes with the same
// problems: "alike" is how many they are.
const nodeProblems = (v) => (v.omitted.nodes ? v.problems.filter((n) => n.alike > 0) : v.problems.map((n) => ({ ...n, alike: 1, alikeGPUs: n.problemGPUs, alikeSince: n.problemSince })));

// extentText says what a line stands for beside the name of its first node, and since when; what is not known is left out.
function extentText(n, shown) {
  const since = n.alikeSince ? ", " + (n.alike > 1 ? "the first " : "") + "since " + when(n.alikeSince, new Date(shown.now)) + agoText(n.alikeSince, shown) : "";
  return (n.alike > 1 ? " and " + plural(n.alike - 1, "other node") : "") + (n.pool ? " of " + n.pool : "") + (n.alikeGPUs ? ", " + plural(n.alikeGPUs, "GPU") : "") + since;
}

// showNode shows a node of a fleet that is drawn whole.
function showNode(name) {
  const who = [...$("fleet").querySelectorAll(".who b")].find((e) => e.title === name);
  if (!who) return;
  const cell = who.closest(".node").querySelector(".gpu");
  who.scrollIntoView({ block: "center" });
  if (cell) cell.focus({ preventScroll: true });
}

let allNodes = false; // of a fleet that is drawn whole

function drawProblems(v, shown) {
  const all = nodeProblems(v), large = v.omitted.nodes > 0, rows = allNodes && !large ? all : all.slice(0, most.problems);
  keyed($("problems"), rows, (n) => n.name,
    (n) => el("li", {}, button(n.name, { class: "link" }, () => (last.v.omitted.nodes ? choose({ q: n.name, alike: "", pool: null, problem: false }) : showNode(n.name))), el("span"), el("span"), " ", button("show", { class: "link" }, () => {
      choose({ alike: n.name, problem: false, q: "", pool: null, sort: "problems" });
      $("nodes-alike").focus();
    })),
    (e, n) => {
      const [, extent, text, show] = e.children;
      setText(extent, extentText(n, shown) + ": ");
      setText(text, n.problems.join("; "));
      show.hidden = n.alike < 2;
      show.setAttribute("aria-label", "show the " + plural(n.alike, "node"));
    });
  const more = large ? v.fleet.problemNodes - rows.length : all.length - most.problems;
  $("problems-more").hidden = more <= 0;
  setText($("problems-more"), allNodes && !large ? "show fewer" : "show all " + plural(v.fleet.problemNodes, "node") + " with problems");
}

// ---- the nodes of a large fleet ----

const pageSize = 50;
const choice = { q: "", alike: "", pool: null, problem: false, sort: "problems", offset: 0 };
const openNodes = new Map(); // a node's name to its detail; null while it is loading
let wakeNodes = () => {};

// choose changes the choice of nodes and requests them at once.
function choose(change) {
  Object.assign(choice, { offset: 0 }, change);
  remember({ q: choice.q, alike: choice.alike, pool: choice.pool === null ? "" : "=" + choice.pool, problem: choice.problem ? "1" : "", sort: choice.sort === "problems" ? "" : choice.sort, offset: choice.offset || "" });
  showChoice();
}

// readChoice takes the choice of nodes from the address.
function readChoice() {
  const p = route.p;
  Object.assign(choice, { q: p.get("q") || "", alike: p.get("alike") || "", pool: p.has("pool") ? p.get("pool").slice(1) : null, problem: p.has("problem"), sort: p.get("sort") || "problems", offset: Number(p.get("offset")) || 0 });
  showChoice();
}

function showChoice() {
  $("nodes-q").value = choice.q;
  $("nodes-problem").checked = choice.problem;
  $("nodes-alike").hidden = !choice.alike;
  setText($("nodes-alike"), "show all nodes, not only those like " + choice.alike);
  $("nodes-sort").value = choice.sort;
  if (last) {
    drawPools(last.v);
    drawPoolChoice(last.v);
  }
  wakeNodes();
}

function drawPoolChoice(v) {
  const select = $("nodes-pool"), names = (v.pools || []).map((p) => p.name);
  select.parentElement.hidden = names.length < 2;
  const options = [["", "all pools"], ...names.map((n) => ["=" + n, n || "no pool"])];
  const key = JSON.stringify(options);
  if (select.shows !== key) {
    select.shows = key;
    select.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
  }
  select.value = choice.pool === null ? "" : "=" + choice.pool;
}

function makeNode(n) {
  const name = button(n.name, { class: "link", title: n.name, "aria-expanded": "false" }, () => {
    if (openNodes.has(n.name)) openNodes.delete(n.name);
    else openNodes.set(n.name, null);
    name.setAttribute("aria-expanded", String(openNodes.has(n.name)));
    wakeNodes();
  });
  return el("div", { class: "node" }, el("div", { class: "who" }, name, el("small")), el("div"));
}

const cellLook = (c) => (c === "x" ? "lost" : c === "-" ? "old" : c === "." ? "free" : "u" + c);

function drawNode(row, n, shown) {
  const [who, what] = row.children;
  setText(who.lastChild, [n.pool, n.model].filter(Boolean).join(", "));
  who.firstChild.setAttribute("aria-expanded", String(openNodes.has(n.name)));
  const hottest = shown.hottest && shown.hottest.node === n.name ? shown.hottest.cell || 0 : -1;
  const text = n.allocated + " of " + plural(n.gpus, "GPU") + " allocated, " + percentText(n.utilization) + (n.idle ? ", " + n.idle + " idle-held" : "") + (n.maxTemperatureCelsius === undefined ? "" : ", up to " + num(n.maxTemperatureCelsius) + " °C") + (hottest >= 0 ? ", the hottest GPU" : "");
  const detail = openNodes.get(n.name);
  const focus = document.activeElement;
  what.replaceChildren(
    el("div", { class: "strip" }, el("span", { class: "cells", "aria-hidden": "true" }, ...[...n.cells].map((c, i) => el("i", { class: cellLook(c) + (i === hottest ? " hot" : "") }))), el("span", { class: "dim" }, text)),
    ...(n.problems || []).map((p) => el("p", { class: "problem" }, p)),
    openNodes.has(n.name) && !detail ? el("p", { class: "dim" }, "loading…") : "", row.gpus || "");
  if (!openNodes.has(n.name)) {
    row.gpus = null;
    return;
  }
  if (!detail) return;
  if (!row.gpus) what.append(row.gpus = el("div", { class: "gpus" }));
  if (row.gpus.contains(focus) && focus !== document.activeElement) focus.focus({ preventScroll: true });
  drawCells(row.gpus, detail.body.node, { ...shown, extra: (performance.now() - detail.at) / 1000 + detail.age });
}

let page = null; // the last page of nodes, as returned by get

function drawPage(shown) {
  if (!page) return;
  const p = page.body, until = p.offset + p.nodes.length;
  if (!p.nodes.length) {
    $("fleet").keyed = null;
    replace($("fleet"), [], p.total ? "No node on this page." : "No node matches.");
  } else {
    keyed($("fleet"), p.nodes, (n) => n.name, makeNode, (row, n) => drawNode(row, n, shown));
  }
  setText($("nodes-count"), p.total ? (p.offset + 1) + " to " + until + " of " + plural(p.total, "node") : "");
  $("nodes-back").disabled = p.offset === 0;
  $("nodes-on").disabled = until >= p.total;
}

function nodesPath() {
  const q = new URLSearchParams({ sort: choice.sort, offset: choice.offset, limit: pageSize });
  if (choice.q) q.set("q", choice.q);
  if (choice.pool !== null) q.set("pool", choice.pool);
  if (choice.problem) q.set("problem", "true");
  if (choice.alike) q.set("alike", choice.alike);
  return "api/v1/nodes?" + q;
}

async function loadNodes() {
  const path = nodesPath(), got = await get(path);
  if (path !== nodesPath()) return; // the choice has changed in the meantime
  page = got;
  const names = new Set(got.body.nodes.map((n) => n.name));
  for (const name of openNodes.keys()) if (!names.has(name)) openNodes.delete(name);
  await Promise.allSettled([...openNodes.keys()].slice(0, most.open).map(async (name) => {
    const detail = await get("api/v1/node?name=" + encodeURIComponent(name));
    if (openNodes.has(name)) openNodes.set(name, { ...detail, at: performance.now() });
  }));
}

async function pollNodes() {
  for (;;) {
    let pause = 300;
    if (last && last.v.omitted.nodes && route.view === "fleet" && !loggedIn && !document.hidden) {
      pause = Math.max(1000, seconds(last.v.refresh) * 1000);
      try {
        await loadNodes();
        if (last) drawPage(shownNow());
      } catch (err) {
        pause = (err.retry || 2) * 1000; // the poll of the view shows the error
      }
    }
    await new Promise((done) => { wakeNodes = done; setTimeout(done, pause); });
  }
}

// ---- who holds idle GPUs ----

let holders = null, holdersAt = 0;

async function loadHolders() {
  if (holdersAt && performance.now() - holdersAt < 5000) return;
  holdersAt = performance.now();
  holders = (await get("api/v1/holders")).body;
}

// ---- GPU-hours of the week ----

let hours = null; // of namespaces, those with the most idle-held first
let before = null; // sums of the seven days before; null: nothing was recorded
let hoursAt = 0;

async function loadHours() {
  if (hoursAt && performance.now() - hoursAt < 60000) return;
  hoursAt = performance.now();
  const [week, two] = (await Promise.all(["7d", "14d"].map((w) => get("api/v1/allocation?aggregate=namespace&window=" + w)))).map((r) => r.body);
  hours = Object.values(week.data[0]).sort((a, b) => b.gpuIdleHours - a.gpuIdleHours);
  const sum = (list, f) => list.reduce((n, h) => n + h[f], 0), all = Object.values(two.data[0]);
  const held = sum(all, "gpuHours") - sum(hours, "gpuHours");
  before = held > 0.05 ? { held, idle: sum(all, "gpuIdleHours") - sum(hours, "gpuIdleHours"), minutes: sum(all, "minutes") - sum(hours, "minutes") } : null;
}

const usd = (x) => "$" + (x < 100 ? x.toFixed(2) : count(Math.round(x)));

// costText is a cost that lacks what has no price; null: nothing of it has one.
const costText = (x, lacks) => (x == null ? "–" : (lacks > 0.005 ? "≥ " : "") + usd(x));

// sinceIdle is what idle-held GPUs have cost since they are idle; null: unknown.
const sinceIdle = (x) => costText(x.usdSinceIdle, x.usdSinceIdleAtLeast ? 1 : 0);
const sinceIdleText = (x) => (x.usdSinceIdle == null ? "" : ", " + sinceIdle(x) + " since idle");

// sumOf adds up what is known of a list; null: nothing is.
const sumOf = (list, f) => (list.some((x) => x[f] != null) ? list.reduce((n, x) => n + (x[f] || 0), 0) : null);

// weekText says what the week cost, and how it compares with the one before.
function weekText() {
  const sum = (f) => hours.reduce((n, h) => n + h[f], 0), held = sum("gpuHours"), idle = sum("gpuIdleHours"), most = hours[0];
  const cost = sumOf(hours, "gpuCost"), lacks = sumOf(hours, "gpuUnpricedHours") || 0;
  const hoursText = (h) => (h < 100 ? h.toFixed(1) : count(Math.round(h)));
  let text = "Serving pods of workloads held " + hoursText(held) + " GPU-hours" + (cost != null ? " (" + costText(cost, lacks) + ")" : "") + ", " + hoursText(idle) + " of them without using the GPU: " +
    (held > 0 ? (100 * idle / held).toFixed(0) + " %" : "–") + (cost != null ? ", " + costText(sumOf(hours, "gpuIdleCost"), lacks) : "") + ".";
  if (cost != null && lacks >= 0.05) text += " " + hoursText(lacks) + " GPU-hours have no price.";
  if (most.gpuIdleHours >= 0.1 && hours.length > 1) text += " The most: " + most.name + " with " + hoursText(most.gpuIdleHours) + ".";
  if (before) {
    const was = before.held > 0 ? 100 * before.idle / before.held : 0, is = held > 0 ? 100 * idle / held : 0;
    // Shares are compared, because a part of the week before may not be recorded.
    text += " In the 7 days before it was " + was.toFixed(0) + " %" + (Math.abs(is - was) < 1 ? ", as now." : is > was ? ", less than now." : ", more than now.");
  }
  return text;
}

function showCosts(box, known) {
  for (const cell of $(box).querySelectorAll(".usd")) cell.hidden = !known;
}

function drawHours() {
  $("hours-box").hidden = !hours || !hours.length;
  if ($("hours-box").hidden) return;
  const share = (part, all) => (all > 0 ? (100 * part / all).toFixed(0) + " %" : "–");
  setText($("hours-sum"), weekText());
  keyed($("hours"), hours.slice(0, 10), (h) => h.name, () => el("tr", {}, el("th", { scope: "row" }), el("td", { class: "n", "data-label": "held" }), el("td", { class: "n", "data-label": "idle-held" }), el("td", { class: "n", "data-label": "share" }), el("td", { class: "n usd", "data-label": "cost of idle" })), (tr, h) => {
    const [name, all, part, ratio, cost] = tr.children;
    setText(name, h.name);
    setText(all, h.gpuHours.toFixed(1) + " h");
    setText(part, h.gpuIdleHours.toFixed(1) + " h");
    setText(ratio, share(h.gpuIdleHours, h.gpuHours));
    setText(cost, costText(h.gpuIdleCost, h.gpuUnpricedHours));
  });
  showCosts("hours-box", sumOf(hours, "gpuIdleCost") != null);
}

function drawHolders(shown) {
  $("holders-box").hidden = !holders || !holders.holders.length;
  if ($("holders-box").hidden) return;
  const rest = holders.total - holders.holders.length;
  setText($("holders-sum"), num(holders.gpus, holders.gpus % 1 ? 1 : 0) + (holders.gpus === 1 ? " GPU, " : " GPUs, ") + plural(holders.total, "pod") + (rest ? ", the first " + holders.holders.length : "") + (holders.usdPerHour != null ? ", " + costText(holders.usdPerHour, holders.unpricedGPUs) + " an hour" : "") + sinceIdleText(holders));
  keyed($("holders"), holders.holders, (h) => h.namespace + "/" + h.pod, () => el("tr", {}, el("th", { scope: "row" }), el("td", { class: "n", "data-label": "idle-held" }), el("td", { class: "n usd", "data-label": "cost an hour" }), el("td", { "data-label": "idle since" }), el("td", { class: "n usd", "data-label": "cost since idle" }), el("td", { "data-label": "held since" }), el("td", { "data-label": "node" })), (tr, h) => {
    const [pod, gpus, cost, idle, spent, since, node] = tr.children;
    setText(pod, h.namespace + "/" + h.pod);
    setText(gpus, num(h.gpus, h.gpus % 1 ? 2 : 0));
    setText(cost, costText(h.usdPerHour, h.unpricedGPUs));
    setText(idle, idleSince(h, shown) || "–");
    setText(spent, sinceIdle(h));
    setText(since, h.heldSince ? when(h.heldSince, new Date(shown.now)) + agoText(h.heldSince, shown) : "–");
    setText(node, h.node);
  });
  showCosts("holders-box", holders.usdPerHour != null);
}

// ---- all of the fleet ----

function drawFleet(v, shown) {
  const large = v.omitted.nodes > 0;
  drawTotals(v);
  drawPools(v);
  drawProblems(v, shown);
  drawHolders(shown);
  drawHours();
  $("nodes-form").hidden = $("nodes-pager").hidden = !large;
  $("fleet").classList.toggle("many", large);
  if (!large) {
    page = null;
    drawWhole(v, shown);
    return;
  }
  drawPoolChoice(v);
  if (page) drawPage(shown);
  else if (!$("fleet").keyed) replace($("fleet"), [], "loading…");
}

let typing = 0;
$("nodes-q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => choose({ q: $("nodes-q").value.trim() }), 250);
});
$("nodes-form").addEventListener("submit", (e) => e.preventDefault());
$("nodes-problem").addEventListener("change", () => choose({ problem: $("nodes-problem").checked }));
$("nodes-alike").addEventListener("click", () => {
  choose({ alike: "" });
  $("nodes-q").focus();
});
$("nodes-sort").addEventListener("change", () => choose({ sort: $("nodes-sort").value }));
$("nodes-pool").addEventListener("change", () => choose({ pool: $("nodes-pool").value ? $("nodes-pool").value.slice(1) : null }));
$("nodes-back").addEventListener("click", () => choose({ offset: Math.max(0, choice.offset - pageSize) }));
$("nodes-on").addEventListener("click", () => choose({ offset: choice.offset + pageSize }));
$("problems-more").addEventListener("click", () => {
  if (!last.v.omitted.nodes) {
    allNodes = !allNodes;
    drawProblems(last.v, shownNow());
    return;
  }
  choose({ problem: true, alike: "", q: "", pool: null, sort: "problems" });
  $("nodes-q").focus();
});
