// SPDX-License-Identifier: Apache-2.0

// Package load generates a known load on a GPU and measures on the device what it generated.
//
// A Kind is what is loaded (a pipe, the SMs, a bus), a Shape how much of it over time, a Step what was generated in
// one report interval. Run does the work on one GPU, in a process of its own.
package load
