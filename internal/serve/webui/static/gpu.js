// SPDX-License-Identifier: Apache-2.0
// One GPU: its state, its pods, all of its fields with units and their last ten minutes.
"use strict";

let gpu = null; // the last answer
let gpuProblem = "";

const gpuGroups = [
  ["Errors and XIDs", /XID|ECC|RETIRED|REMAP|REPLAY|VIOLATION|HEALTH|RECOVERY|ERROR/],
  ["Links", /NVLINK|PCIE|_LINK_/],
  ["Load", /UTIL|PROF|ACTIVE|OCCUPANCY/],
  ["Memory", /_FB_|MEMORY_USED|BAR1/],
  ["Power and heat", /POWER|ENERGY|TEMP|FAN|THERMAL/],
  ["Clocks", /CLOCK|PSTATE/],
  ["Other", /./],
];

const groupOf = (f) => gpuGroups.find(([, pattern]) => pattern.test(f.name))[0];

async function loadGPU() {
  const node = route.p.get("node") || "", uuid = route.p.get("uuid") || "";
  try {
    const { body } = await get("api/v1/gpu?node=" + encodeURIComponent(node) + "&uuid=" + encodeURIComponent(uuid));
    gpu = body;
    gpuProblem = "";
  } catch (err) {
    if (!(err instanceof Refused) || err.status !== 404) throw err;
    gpu = null;
    gpuProblem = err.message;
  }
}

const fieldValue = (f) => (Number.isInteger(f.value) ? count(f.value) : f.value.toPrecision(4)) + (f.unit === "C" ? " °C" : f.unit && f.unit !== "bits" ? " " + f.unit : "");

function makeField(f) {
  return el("tr", {}, el("th", { scope: "row" }, f.name.replace(/^DCGM_FI_(DEV|PROF)_/, ""), el("small", {}, f.help)), el("td", { class: "n", "data-label": "now" }), el("td", { class: "past", "data-label": "10 min" }), el("td", { class: "n dim", "data-label": "age" }));
}

function drawField(tr, f, old) {
  const [name, value, past, since] = tr.children;
  name.title = f.name;
  setText(value, fieldValue(f));
  tr.classList.toggle("old", old);
  setText(since, age(seconds(f.age)));
  if ((f.past || []).length < 2) {
    setText(past, "steady");
    return;
  }
  const values = f.past.map((p) => p[1]), round = (x) => (Number.isInteger(x) ? count(x) : x.toPrecision(3));
  past.replaceChildren(spark(f.past), el("small", {}, round(Math.min(...values)) + " to " + round(Math.max(...values))));
}

function drawGPU(v, shown) {
  const box = $("gpu");
  if (!gpu) {
    replace(box, [], gpuProblem || "loading…");
    box.parts = null;
    return;
  }
  const g = gpu.gpu, key = gpu.node + g.uuid;
  if (!box.parts || box.parts.key !== key) {
    box.parts = { key, head: el("div", { class: "card" }), groups: el("div", { class: "groups" }) };
    box.keyed = null;
    box.replaceChildren(box.parts.head, box.parts.groups);
  }
  const today = new Date(shown.now), held = g.heldSince ? ", held since " + when(g.heldSince, today) : "", idle = g.idleSince ? ", idle since " + idleSince(g, shown) : "";
  setText($("h-gpu"), "GPU " + g.uuid);
  const text = [(g.lost ? "lost" : gpu.state) + held + idle, "node " + gpu.node].join(" · ");
  const head = el("div", {}, el("p", { class: "state " + gpu.state }, text),
    el("ul", { class: "plain" }, ...(g.owners || []).map((o) => el("li", {}, "held by " + o.namespace + "/" + o.pod + (o.container ? ", container " + o.container : "")))),
    (g.owners || []).length ? "" : el("p", { class: "dim" }, "No pod holds it."),
    facts([["utilisation", percentText(g.utilization)], ["memory", num(g.memoryUsedMiB) + " of " + num(g.memoryTotalMiB) + " MiB"], ["power", num(g.powerWatts) + " W"], ["temperature", num(g.temperatureCelsius) + " °C"]]),
    el("p", { class: "dim" }, "Processes: ", el("code", {}, "gpupilot top --agent HOST:PORT"), " asks the node's agent."));
  if (box.parts.text !== head.textContent) {
    box.parts.text = head.textContent;
    box.parts.head.replaceChildren(head);
  }
  const names = gpuGroups.map(([n]) => n).filter((n) => gpu.fields.some((f) => groupOf(f) === n));
  keyed(box.parts.groups, names, (n) => n, (n) => el("section", {}, el("h3", {}, n), el("div", { class: "card scroll" }, el("table", { class: "dense" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Field"), el("th", { scope: "col", class: "n" }, "Now"), el("th", { scope: "col" }, "Last 10 min"), el("th", { scope: "col", class: "n" }, "Age"))), el("tbody")))), (e, n) => {
    keyed(e.querySelector("tbody"), gpu.fields.filter((f) => groupOf(f) === n), (f) => f.name, makeField, (tr, f) => drawField(tr, f, seconds(f.age) > shown.maxAge));
  });
  if (!gpu.fields.length && !names.length) replace(box.parts.groups, [], "Its exporter has no fields.");
}
