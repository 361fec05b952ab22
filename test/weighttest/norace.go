// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race

package weighttest

const slower = 1
