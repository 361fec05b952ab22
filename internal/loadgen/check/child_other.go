// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package check

import "syscall"

// childAttributes returns the defaults: only Linux can end a child with its parent.
func childAttributes() *syscall.SysProcAttr { return nil }
