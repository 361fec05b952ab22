// SPDX-License-Identifier: Apache-2.0

// Package trace reads recorded load. A trace is a CSV file of single requests, of counts
// or of rates. [Arrivals] draws requests from a trace, at the recorded rate or scaled. The
// same seed draws the same requests.
package trace
