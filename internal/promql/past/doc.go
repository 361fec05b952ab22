// SPDX-License-Identifier: Apache-2.0

// Package past continues the series of a Prometheus storage into the past with the
// minutes of a history.Store.
//
// A series that has both gets its points from both. A minute has one point, at its end. It
// is left out if the storage has a sample of the series in that minute. A missing minute has
// no point, so that the series ends after the lookback of the engine.
//
// The points of a series are read when the engine iterates over it. One read decodes the
// rows of a workload for up to 32 of its metrics.
package past
