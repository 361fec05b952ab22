// SPDX-License-Identifier: Apache-2.0

//go:build linux && race

package weighttest

// slower is how many times longer than the simple program others take under the race detector, which follows each access
// to memory: that program has none.
const slower = 20
