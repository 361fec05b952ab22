// SPDX-License-Identifier: Apache-2.0

// Package scrape reads Prometheus expositions into a series.Store: our agents,
// dcgm-exporters, and pods that expose metrics of their own.
//
// Each target has one goroutine and one kept-open connection. An agent says in
// its answer when it collected and how often it does, so its next scrape is
// set just after its next tick, and samples carry the agent's time, not ours.
// Other targets are scraped every interval, spread over it, and their samples
// carry the time of the scrape.
//
// What a bad answer costs:
//
//   - A line that is not the format's is counted, and the rest of the page is
//     kept: one unescaped label does not hide a node.
//   - A page of which more lines are bad than good, an answer that is longer
//     than Config.MaxBody, cut short, or not 200 stores nothing. The error names
//     the target and, where there is one, the line.
//   - NaN and infinities are no values.
//   - A device that its agent could not read at this tick has no value at it,
//     though the agent still shows its last one.
package scrape
