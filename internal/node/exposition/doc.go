// SPDX-License-Identifier: Apache-2.0

// Package exposition renders a gpu.Snapshot as a Prometheus exposition with
// dcgm-exporter's names and labels. It holds the grammar of the collectors
// file, and the pages that scrapes get.
//
// A snapshot is rendered once, by Exporter.Update; a scrape copies bytes. A
// value that is absent from the snapshot, or too old, has no series.
package exposition
