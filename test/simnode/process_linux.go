// SPDX-License-Identifier: Apache-2.0

package simnode

import "syscall"

// childAttributes returns attributes with which the kernel kills a child when this
// program ends, and a Ctrl-C at the terminal does not reach the child.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
