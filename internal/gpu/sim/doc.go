// SPDX-License-Identifier: Apache-2.0

// Package sim simulates GPUs. Its gpu.Reader takes the utilisation from a
// built-in load or from a state file that another program writes. The other
// fields (power, temperatures, clocks, energy, memory, profiling ratios) follow
// from it as on the real card. It is pure Go and needs neither a driver nor a
// GPU.
package sim
