// SPDX-License-Identifier: Apache-2.0
// The page. It requests the view, and draws the part that the address asks for. Old values
// are shown as old, with their age. Text is only set as text, never as HTML.
"use strict";

// The most entries that are drawn of each list, and the most open nodes.
const most = { targets: 20, namespaces: 8, problems: 10, open: 8 };

// ---- scrape targets ----

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
  setText($("targets-summary"), text ? text + "." : "");
  const rows = faults.map((t) => el("li", { class: "bad" }, t.name + ": " + (t.error || "no answer yet") +
    (t.lastSuccess ? " (last answer " + age(Math.max(0, (shown.now - Date.parse(t.lastSuccess)) / 1000)) + " ago)" : "")));
  rows.push(...all.filter((t) => t.up).flatMap((t) => doubts(t).map((d) => el("li", { class: "bad" }, t.name + ": " + d))));
  rows.push(...starting.map((t) => el("li", {}, t.name + ": starting, " + age(Math.max(0, (shown.now - Date.parse(t.starting)) / 1000)))));
  const more = rows.length - most.targets;
  if (more > 0) rows.splice(most.targets, more, el("li", {}, "and " + more + " more"));
  $("targets").replaceChildren(...rows);
}

// ---- all of it ----

function summaryOf(v) {
  const f = v.fleet;
  let text = plural(f.nodes, "node") + ", " + plural(f.gpus, "GPU") + ": " + count(f.active) + " active, " + count(f.idle) + " idle-held, " + count(f.free) + " free" + (f.stale ? ", " + count(f.stale) + " stale" : "");
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
  return { extra, now: Date.parse(last.v.time) + extra * 1000, maxAge: Math.max(5, seconds(last.v.maxAge)), hottest: last.v.hottest };
}

const drawViews = {
  workloads: drawWorkloads, gpu: drawGPU, decisions: drawDecisions,
  fleet: (v, shown) => { drawFleet(v, shown); drawTargets(v, shown); },
};

// draw draws the view that the address asks for.
function draw() {
  const v = last.v;
  document.querySelector("main").hidden = false;
  $("views").hidden = false;
  setText($("summary"), summaryOf(v));
  drawGlance(v);
  setText($("version"), v.version);
  for (const name of viewNames) if ($("view-" + name)) $("view-" + name).hidden = name !== route.view;
  for (const a of $("views").children) {
    if (a.getAttribute("href") === "#" + (route.view === "gpu" ? "fleet" : route.view)) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  drawViews[route.view](v, shownNow());
}

// noAnswer shows the time without an answer, and greys everything.
function noAnswer(why) {
  const silent = last ? (performance.now() - last.at) / 1000 : 0;
  const dead = last !== null && silent + last.extra > 3 + 2 * Math.max(1, seconds(last.v.refresh));
  document.body.classList.toggle("dead", dead);
  $("banner").hidden = !why && !dead;
  setText($("banner"), dead
    ? "No answer from the controller for " + age(silent) + (why ? " (" + why + ")" : "") + ". Everything below is from " + when(last.v.time, new Date()) + " and is old."
    : why ? "The controller does not answer: " + why : "");
  if (dead && !document.querySelector("main").hidden) draw();
}

let problem = ""; // of the last request
setInterval(() => { if (!loggedIn && (problem || last)) noAnswer(problem); }, 1000);

// taken takes a view in and draws it.
function taken(v, extra) {
  for (const list of ["nodes", "problems", "targets", "workloads", "hpas", "recent"]) v[list] = v[list] || []; // Go writes null for an empty list
  v.omitted = v.omitted || {};
  last = { v, at: performance.now(), extra };
  problem = "";
  $("login").hidden = true;
  $("logout").hidden = !token;
  draw();
  noAnswer("");
}

// failed handles the error of a request for the view, and returns after how many
// milliseconds to try again.
async function failed(err) {
  if (err instanceof Refused && err.status === 401) {
    const why = token ? "The token was not accepted: " + err.message + "." : "";
    keepToken("");
    last = null;
    problem = "";
    await askToken(why);
    return 0;
  }
  problem = err.name === "TimeoutError" ? "timeout" : err.message;
  noAnswer(problem);
  return err.retry ? err.retry * 1000 : 1000;
}

// ---- the stream of the view ----

let noStreamUntil = 0; // when a stream is tried again, after one that brought nothing

// The keys of a view's lists, as the server has them.
const listKeys = { nodes: (x) => x.name, problems: (x) => x.name, targets: (x) => x.name, workloads: keyOf, hpas: keyOf, recent: (e) => keyOf(e) + " " + e.decision.time };

function byKey(list, key) {
  const out = new Map();
  for (const x of list) {
    let k = key(x);
    while (out.has(k)) k += "+";
    out.set(k, x);
  }
  return out;
}

// patched returns a view with a difference. It throws if the difference is not of this view.
function patched(v, delta) {
  const out = { ...v };
  for (const [name, d] of Object.entries(delta)) {
    if (!(name in listKeys)) {
      if (d === null) delete out[name];
      else out[name] = d;
      continue;
    }
    const have = byKey(v[name] || [], listKeys[name]);
    for (const [k, x] of Object.entries(d.put || {})) have.set(k, x);
    const order = d.empty ? [] : d.order || [...have.keys()];
    out[name] = order.map((k) => {
      if (!have.has(k)) throw new Error("the stream lacks " + k);
      return have.get(k);
    });
  }
  return out;
}

// follow applies the events of one stream from an event on, and returns the id of the last
// one; empty: the stream brought nothing, so that the page polls for a while.
async function follow(event) {
  const stop = new AbortController();
  let came = false, id = event;
  const patience = () => setTimeout(() => stop.abort(), 6000 + 2000 * seconds(last.v.refresh));
  let timer = patience();
  try {
    const r = await request("api/v1/stream", stop.signal, { "Last-Event-ID": event });
    const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return id;
      clearTimeout(timer);
      timer = patience();
      came = true;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const fields = Object.fromEntries(text.slice(0, end).split("\n").map((l) => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 2)]));
        text = text.slice(end + 2);
        if (!fields.data) continue;
        const body = JSON.parse(fields.data);
        taken(fields.event === "view" ? body : patched(last.v, body), 0);
        id = fields.id;
      }
    }
  } catch (err) {
    if (err instanceof Refused && err.status === 401) throw err;
    if (came) return id;
    noStreamUntil = performance.now() + 60000;
    return "";
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

async function watchView() {
  for (;;) {
    let pause = 1000;
    try {
      const streams = performance.now() > noStreamUntil;
      const { body, age: old, event } = await get("api/v1/view" + (streams ? "?stream=true" : ""));
      pause = Math.max(1000, seconds(body.refresh) * 1000);
      taken(body, old);
      const began = performance.now();
      if (event && (await follow(event))) pause = performance.now() - began > 5000 ? 0 : 1000;
    } catch (err) {
      pause = await failed(err);
    }
    await sleep(pause);
  }
}

// What a view requests beside the view of the controller, and how often in ms.
const extras = { workloads: [() => loadWorkloads(false).then(refreshDetail), 1000], fleet: [loadHours, 5000], gpu: [loadGPU, 2000], decisions: [loadDecisions, 3000] };
let extrasAt = 0;

// refreshView requests what the view on the screen needs, now.
async function refreshView() {
  extrasAt = performance.now();
  await Promise.allSettled([extras[route.view][0](), loadHolders()]); // the request for the view shows an error
  if (last && !loggedIn) draw();
}

async function pollExtras() {
  for (;;) {
    await sleep(250);
    if (document.hidden || loggedIn || !last || performance.now() - extrasAt < extras[route.view][1]) continue;
    await refreshView();
  }
}

// routed shows what the address asks for. moved: it is another view than before.
function routed(moved) {
  if (route.view === "fleet") readChoice();
  $("workloads-q").value = route.view === "workloads" ? route.p.get("q") || "" : "";
  $("decisions-q").value = route.view === "decisions" ? route.p.get("q") || "" : "";
  if (moved) scrollTo(0, 0);
  if (route.view !== "workloads") closeDetail();
  else if (detail) {
    const range = rangeNow();
    if (range !== detail.range) chooseRange(range);
    detail.plot.opened = route.p.get("at") || "";
  }
  if (route.view === "gpu") gpu = null;
  if (!last || loggedIn) return;
  draw();
  if (moved && route.view === "fleet" && choice.q && !last.v.omitted.nodes) showNode(choice.q);
  refreshView();
}

routed(false);
watchView();
pollExtras();
pollNodes();
