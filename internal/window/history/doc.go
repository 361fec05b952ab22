// SPDX-License-Identifier: Apache-2.0

// Package history keeps one-minute aggregates of workloads for days: the mean and the
// maximum of each metric, and how many pods or GPUs had a value.
//
// A Store keeps them in memory, compressed and bounded. A Volume writes them to
// segments, which are files that only grow, and reads them back after a restart.
// Backfill reads them from a PromQL backend.
//
// Missing is not zero. A minute without a row is missing, and so is a metric without a
// value in a row. NaN and infinities are never stored.
//
// A value keeps 13 significant bits, an error of at most 0.013 %: integers up to 8,192
// are exact. A row is stored as the difference to the workload's last row: the bits in
// which each float32 differs, as in "Gorilla: A Fast, Scalable, In-Memory Time Series
// Database" (VLDB 2015). A value that does not change takes one bit, or less.
//
// The memory limit is divided between namespaces: at the limit, the largest workload of
// the largest namespace loses its oldest minutes first.
//
// No decision reads a history by itself. A query signal or a recording rule does, if it asks
// for times before the windows, and an objective's record after a start.
package history
