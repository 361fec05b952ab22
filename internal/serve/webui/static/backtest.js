// SPDX-License-Identifier: Apache-2.0
// What a workload's recorded load would have cost and kept under other policies. The
// controller replays it, one workload at a time, so that the answer may take minutes.
"use strict";

let backtest = null; // of the address: { key, answer, error }

const backtestOf = () => (route.view === "backtest" && route.p.get("of")) || "";

// loadBacktest asks for the workload of the address, until there is an answer.
async function loadBacktest() {
  const key = backtestOf(), [namespace, name] = key.split("/");
  if (!key || (backtest && backtest.key === key && backtest.final)) return;
  if (!namespace || !name) {
    backtest = { key, answer: null, error: "write it as namespace/name", final: true };
    return;
  }
  const next = { key, answer: null, error: "", final: false };
  try {
    next.answer = (await get("api/v1/backtest" + about({ namespace, name }))).body;
    next.final = next.answer.state === "done" || next.answer.state === "refused";
  } catch (err) {
    if (!(err instanceof Refused) || err.status === 401) throw err;
    next.error = err.message;
    next.final = err.status < 500 && err.status !== 429;
  }
  if (backtestOf() === key) backtest = next;
}

const backtestState = { done: "", running: "Running: ", waiting: "Waiting: ", refused: "No replay: " };

function backtestText() {
  const b = backtest;
  if (!backtestOf()) return "Choose a workload.";
  if (!b || b.key !== backtestOf()) return "asking…";
  if (b.error) return b.error;
  const a = b.answer;
  if (a.state !== "done") return backtestState[a.state] + a.text + ".";
  return a.hours.toFixed(a.hours < 10 ? 1 : 0) + " h in " + plural(a.parts, "part") + " of " + when(a.from, new Date()) + " to " + when(a.to, new Date()) + ", replayed at " + when(a.time, new Date());
}

function backtestRow(a, p, i) {
  const kept = p.missedPercent <= 100 - a.objectivePercent;
  return el("tr", {},
    el("th", { scope: "row" }, i === 0 ? el("b", {}, p.name) : p.name),
    el("td", { "data-label": "kept?" }, el("b", { class: kept ? "good" : "bad" }, kept ? "kept" : "missed"), el("small", {}, "in " + p.partsKept + " of " + plural(a.parts, "part"))),
    el("td", { class: "n", "data-label": "missed" }, p.missedPercent.toFixed(2) + " %"),
    el("td", { class: "n", "data-label": "GPU-hours" }, count(Math.round(p.gpuHours * 10) / 10)),
    el("td", { class: "n usd", "data-label": "cost" }, p.costUSD === undefined ? "–" : "$" + count(Math.round(p.costUSD))),
    el("td", i === 0 ? {} : { class: "n", "data-label": "difference" }, i === 0 ? "" : (p.morePercent > 0 ? "+" : p.morePercent < 0 ? "−" : "") + Math.abs(p.morePercent).toFixed(0) + " %"));
}

function drawBacktest(v) {
  const names = v.workloads.slice(0, 300).map(keyOf).sort(), box = $("backtest-names");
  if (box.shows !== names.join()) {
    box.shows = names.join();
    box.replaceChildren(...names.map((n) => el("option", { value: n })));
  }
  setText($("backtest-state"), backtestText());
  const a = backtest && backtest.key === backtestOf() && backtest.answer, done = !!a && a.state === "done";
  $("backtest").hidden = !done;
  if (!done || $("backtest").shows === a) return;
  $("backtest").shows = a;
  const answers = [["Is the objective kept?", a.kept], ["What does it cost?", a.cost], ["What does it save?", a.saved], ["What to change?", a.change]];
  $("backtest-answers").replaceChildren(...answers.filter(([, text]) => text).map(([q, text]) => el("div", {}, el("dt", {}, q), el("dd", {}, text))));
  $("backtest-rows").replaceChildren(...a.policies.map((p, i) => backtestRow(a, p, i)));
  for (const x of document.querySelectorAll("#backtest .usd")) x.hidden = !a.usdPerGPUHour;
  $("backtest-notes").replaceChildren(...(a.notes || []).map((t) => el("li", {}, t)));
}

$("backtest-form").addEventListener("submit", (e) => {
  e.preventDefault();
  const of = $("backtest-q").value.trim();
  if (of === backtestOf()) backtest = null; // again
  remember({ of });
  refreshView();
});
