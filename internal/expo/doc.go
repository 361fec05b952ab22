// SPDX-License-Identifier: Apache-2.0

// Package expo turns a gpu.Snapshot into a Prometheus exposition with
// dcgm-exporter's names and labels. It holds the one table of those names, the
// grammar of the collectors file, and the pages that a scrape is answered with.
//
// A snapshot is rendered once, by Exporter.Update; a scrape copies bytes.
// Whatever is absent from the snapshot, or too old, has no series.
package expo
