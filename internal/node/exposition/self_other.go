// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package exposition

func cpuSeconds() (float64, bool) { return 0, false }

func maxFiles() (float64, bool) { return 0, false }
