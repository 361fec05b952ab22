// SPDX-License-Identifier: Apache-2.0

// Package shown keeps what the page shows of the fleet and of workloads beyond the present
// moment: recent points, the log of decisions, and the states that have lasted.
package shown
