// SPDX-License-Identifier: Apache-2.0

// Package windows serves the windows of a series.Store as a Prometheus
// storage.Queryable: the series of a Prometheus that scrapes the same targets, with the
// labels of their pages and of the targets.
//
// It adds the series that a Prometheus has beside those of the pages: up and the
// scrape_* series of each target, kube_pod_* of the pods with GPUs as kube-state-metrics
// exposes them, and the controller's own metrics.
//
// Differences from a Prometheus:
//
//   - A sample has the time of its collection by an agent, not that of the scrape.
//   - A value counts while the page shows its series, and up to three intervals of
//     the target, at least 5 s. Then the series is stale. A Prometheus scrapes an old
//     value again and again.
//   - The name of a GPU's field in any profile of dcgm-exporter finds the field's
//     series, with the value in that name's unit, if the selector has the exact name.
//   - NaN is a missing value.
//   - Series of exporters with a pod that the API server contradicts have the labels
//     contradicted_namespace, contradicted_pod and contradicted_container instead.
//   - A selector with a matcher of exported_namespace, exported_pod or exported_container
//     finds the series of exporters by the owner that the API server confirms, as a
//     Prometheus without honor_labels does. These series have both names then.
//
// The windows have only the series that are wanted: see Store.Want.
package windows
