// SPDX-License-Identifier: Apache-2.0

// Package adapter reads the configuration file of prometheus-adapter and serves its
// rules: it discovers metrics from the label sets of series, and it computes their
// values with the PromQL templates of the file.
//
// The file is the operator's, so it is trusted. The names, selectors and namespaces of
// requests, and the names of series, are not: they reach a query only as quoted label
// values or as valid metric names.
//
// The semantics are those of prometheus-adapter v0.12.0, with these differences. A value
// that is NaN is absent instead of 0. Names and values are matched literally, even where
// a regular expression is needed. A value has the time of its evaluation.
package adapter
