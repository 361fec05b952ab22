// SPDX-License-Identifier: Apache-2.0
// The fleet. For a small one, every GPU of every node is drawn. For a large one, the
// view has sums by node pool and the nodes with problems. Other nodes are requested in
// pages, and a node's GPUs when the node is opened.
"use strict";

// ---- one GPU, one node ----

function gpuCell(g, shown) {
  const owners = (g.owners || []).map((o) => o.namespace + "/" + o.pod);
  const s = seconds(g.age) + shown.extra, known = g.utilization !== undefined, old = !known || s > shown.maxAge;
  let look = owners.length ? "u" + Math.min(4, Math.max(0, Math.floor(g.utilization / 20))) : "free";
  if (old) look = "old";
  const title = [g.uuid, owners.join(", ") || "no owner", "memory " + num(g.memoryUsedMiB) + " of " + num(g.memoryTotalMiB) + " MiB",
    num(g.powerWatts) + " W", num(g.temperatureCelsius) + " °C", known ? "values " + age(s) + " old" : "no utilisation value"].join("\n");
  const pod = owners.length ? g.owners[0].pod + (owners.length > 1 ? " +" + (owners.length - 1) : "") : "";
  return el("div", { class: "gpu " + look, title },
    el("b", {}, known ? num(g.utilization) + " %" : "no value"),
    el("span", {}, known && old ? age(s) + " old" : pod));
}

const gpuCells = (n, shown) => el("div", { class: "gpus" }, ...n.gpus.map((g) => gpuCell(g, shown)));

function drawWhole(v, shown) {
  const rows = v.nodes.map((n) => el("div", { class: "node" },
    el("div", { class: "who" }, el("b", { title: n.name }, n.name), n.fault ? el("span", { class: "problem" }, n.fault) : ""), gpuCells(n, shown)));
  $("fleet").keyed = null;
  replace($("fleet"), rows, v.namespaces ? "No GPU is held by pods that you may see." : "No node reports GPUs yet.");
}

// ---- sums ----

function drawTotals(v) {
  const f = v.fleet;
  const facts = [["nodes", f.nodes], ["GPUs", f.gpus], ["active", f.active], ["idle-held", f.idle], ["free", f.free], ["no fresh value", f.stale], ["nodes with problems", f.problemNodes]];
  const texts = facts.map(([k, n]) => [k, n.toLocaleString("en")]).concat([["mean utilisation of allocated GPUs", percentText(f.utilization)]]);
  keyed($("totals"), texts, ([k]) => k, ([k]) => el("div", {}, el("dt", {}, k), el("dd")), (e, [, text]) => setText(e.lastChild, text));
}

// share draws a bar of a pool's active, idle, free and stale GPUs.
function share(bar, c) {
  [c.active, c.idle, c.free, c.stale].forEach((n, i) => { bar.children[i].style.flexGrow = n; });
  bar.title = c.active + " active, " + c.idle + " idle-held, " + c.free + " free, " + c.stale + " without a fresh value";
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

// ---- problems of a large fleet ----

function drawProblems(v) {
  const rows = v.omitted.nodes ? v.problems.slice(0, most.problems) : [];
  keyed($("problems"), rows, (n) => n.name,
    (n) => el("li", {}, button(n.name, { class: "link" }, () => choose({ q: n.name, pool: null, problem: false })), el("span", { class: "bad" })),
    (e, n) => setText(e.lastChild, (n.pool ? " (" + n.pool + "): " : ": ") + n.problems.join("; ")));
  const more = v.omitted.nodes ? v.fleet.problemNodes - rows.length : 0;
  $("problems-more").hidden = more <= 0;
  setText($("problems-more"), "show all " + plural(v.fleet.problemNodes, "node") + " with problems");
}

// ---- the nodes of a large fleet ----

const pageSize = 50;
const choice = { q: "", pool: null, problem: false, sort: "problems", offset: 0 };
const opened = new Map(); // a node's name to its detail; null while it is loading
let wakeNodes = () => {};

// choose changes the choice of nodes and requests them at once.
function choose(change) {
  Object.assign(choice, { offset: 0 }, change);
  $("nodes-q").value = choice.q;
  $("nodes-problem").checked = choice.problem;
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
    if (opened.has(n.name)) opened.delete(n.name);
    else opened.set(n.name, null);
    name.setAttribute("aria-expanded", String(opened.has(n.name)));
    wakeNodes();
  });
  return el("div", { class: "node" }, el("div", { class: "who" }, name, el("small")), el("div"));
}

const cellLook = (c) => (c === "-" ? "old" : c === "." ? "free" : "u" + c);

function drawNode(row, n, shown) {
  const [who, what] = row.children;
  setText(who.lastChild, [n.pool, n.model].filter(Boolean).join(", "));
  who.firstChild.setAttribute("aria-expanded", String(opened.has(n.name)));
  const text = n.allocated + " of " + plural(n.gpus, "GPU") + " allocated, " + percentText(n.utilization) + (n.idle ? ", " + n.idle + " idle-held" : "");
  const detail = opened.get(n.name);
  what.replaceChildren(
    el("div", { class: "strip" }, el("span", { class: "cells", "aria-hidden": "true" }, ...[...n.cells].map((c) => el("i", { class: cellLook(c) }))), el("span", { class: "dim" }, text)),
    ...(n.problems || []).map((p) => el("p", { class: "problem" }, p)),
    opened.has(n.name) && detail ? gpuCells(detail.body.node, { ...shown, extra: (performance.now() - detail.at) / 1000 + detail.age }) : "",
    opened.has(n.name) && !detail ? el("p", { class: "dim" }, "loading…") : "");
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
  return "api/v1/nodes?" + q;
}

async function loadNodes() {
  const path = nodesPath(), got = await get(path);
  if (path !== nodesPath()) return; // the choice has changed in the meantime
  page = got;
  const names = new Set(got.body.nodes.map((n) => n.name));
  for (const name of opened.keys()) if (!names.has(name)) opened.delete(name);
  await Promise.allSettled([...opened.keys()].slice(0, most.open).map(async (name) => {
    const detail = await get("api/v1/node?name=" + encodeURIComponent(name));
    if (opened.has(name)) opened.set(name, { ...detail, at: performance.now() });
  }));
}

async function pollNodes() {
  for (;;) {
    let pause = 300;
    if (last && last.v.omitted.nodes && !loggedIn && !document.hidden) {
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

// ---- all of the fleet ----

function drawFleet(v, shown) {
  const large = v.omitted.nodes > 0;
  drawTotals(v);
  drawPools(v);
  drawProblems(v);
  $("nodes-form").hidden = $("nodes-pager").hidden = !large;
  $("totals").hidden = !large && (v.pools || []).length < 2;
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
$("nodes-sort").addEventListener("change", () => choose({ sort: $("nodes-sort").value }));
$("nodes-pool").addEventListener("change", () => choose({ pool: $("nodes-pool").value ? $("nodes-pool").value.slice(1) : null }));
$("nodes-back").addEventListener("click", () => choose({ offset: Math.max(0, choice.offset - pageSize) }));
$("nodes-on").addEventListener("click", () => choose({ offset: choice.offset + pageSize }));
$("problems-more").addEventListener("click", () => {
  choose({ problem: true, q: "", pool: null, sort: "problems" });
  $("nodes-q").focus();
});
