// SPDX-License-Identifier: Apache-2.0

// Package objective measures how well the slo of a GPUAutoscaler is kept, and reports it: in
// conditions, in the status, on the page and on /metrics.
//
// A Keeper counts the requests of one GPUAutoscaler from the counters and histograms of its
// pods. Its record is stored in the status, so that another controller continues with it.
package objective
