// SPDX-License-Identifier: Apache-2.0
// The log of decisions, which is searched on the server.
"use strict";

const pageDecisions = 50;
let log = null; // { q, total, list }
let logSize = pageDecisions;

async function loadDecisions() {
  const q = route.p.get("q") || "", size = Math.min(200, logSize);
  const { body } = await get("api/v1/decisions?limit=" + size + "&q=" + encodeURIComponent(q));
  if (route.view === "decisions" && (route.p.get("q") || "") === q) log = { q, total: body.total, list: body.decisions || [] };
}

function drawDecisions(v) {
  if (!log) return;
  setText($("decisions-count"), log.list.length === log.total ? plural(log.total, "decision") : log.list.length + " of " + plural(log.total, "decision"));
  if (log.list.length) drawDecisionList($("decisions"), log.list, new Date(), true);
  else replace($("decisions"), [], log.q ? "No decision matches." : v.leader ? "No change of replicas yet." : "This replica does not lead. The leader's page shows the changes.");
  $("decisions-more").hidden = log.list.length >= log.total || log.list.length >= 200;
}

const searchDecisions = later(200, () => refreshView());
$("decisions-q").addEventListener("input", () => {
  remember({ q: $("decisions-q").value.trim() });
  searchDecisions();
});
$("decisions-form").addEventListener("submit", (e) => e.preventDefault());
$("decisions-more").addEventListener("click", () => {
  logSize += pageDecisions;
  refreshView();
});
