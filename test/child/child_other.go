// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package child

import "syscall"

// attributes returns the defaults: only Linux can kill a child with its parent.
func attributes() *syscall.SysProcAttr { return nil }
