// SPDX-License-Identifier: Apache-2.0

// Package scrape reads Prometheus expositions into a series.Store: our agents,
// dcgm-exporters, and pods that expose metrics of their own.
//
// Each target has one kept-open connection, and a goroutine while it is scraped. An agent says in
// its answer when it collected and how often it does, so its next scrape is
// set just after its next tick, and samples carry the agent's time, not ours.
// Other targets are scraped every interval, spread over it. The values of a
// dcgm-exporter's device carry the time of the scrape at which they changed,
// where its energy counter is on the page, and those of the others the time of
// their scrape (docs/controller.md, "How old a value is").
//
// What a bad answer costs:
//
//   - A line that is not the format's is counted, and the rest of the page is
//     kept: one unescaped label does not hide a node.
//   - A page of which more lines are bad than good, an answer that is longer
//     than Config.MaxBody, cut short, or not 200 stores nothing. The error names
//     the target and, where there is one, the line.
//   - NaN, infinities and what is out of its field's range are no values.
//   - Nothing that a target sends is shown, in no error and no log but at its
//     debug level: a tenant chooses the port and the path.
//   - A device that its agent could not read at this tick has no value at it,
//     though the agent still shows its last one.
package scrape
