// SPDX-License-Identifier: Apache-2.0

// Package budget counts how well an objective is kept, such as 99 % of the requests within
// their latency limits over 28 days. It is pure: it reads no clock and does no I/O.
//
//   - A [Meter] turns the counters of servers into requests, also when servers restart.
//   - A [Ledger] keeps 28 days of them, in buckets that are finer the newer they are. Two
//     ledgers of the same time merge without counting a request twice.
//   - A [Report] has the attained share, what is left of the error budget, and the burn
//     rates, as chapter 5 of Google's SRE workbook defines them.
//
// Missed requests are a range. A histogram counts up to its edges, so that a limit between
// two edges is only known to be missed above the higher one. A request that misses two
// limits is in two histograms, and no histogram says so.
package budget
