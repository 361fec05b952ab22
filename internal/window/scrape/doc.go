// SPDX-License-Identifier: Apache-2.0

// Package scrape reads Prometheus expositions into a series.Store: our agents,
// dcgm-exporters, and pods that expose metrics of their own.
//
// Each target has one persistent connection, and a goroutine while it is scraped.
// An agent's page has the time and the interval of its collection. The next scrape
// is scheduled just after the agent's next tick, and samples carry the agent's time.
// Other targets are scraped once per interval, each at its own offset. If the page
// of a dcgm-exporter has a device's energy counter, the device's values carry the
// time of the scrape at which they changed. Other values carry the time of their
// scrape (docs/sources.md#how-old-a-value-may-be).
//
// The effects of a bad response:
//
//   - A malformed line is counted and skipped (package page).
//   - Nothing is stored from a page with more malformed lines than valid ones, from
//     a response that is longer than Config.MaxBody or incomplete, or with a status
//     other than 200. The error names the target and the line, if there is one.
//   - No error shows a target's text, and no log line above the debug level does:
//     a tenant chooses the port and the path.
package scrape
