// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import "syscall"

// childAttributes are the default ones: only Linux kills a child with its parent.
func childAttributes() *syscall.SysProcAttr { return nil }
