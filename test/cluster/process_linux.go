// SPDX-License-Identifier: Apache-2.0

package cluster

import "syscall"

// childAttributes returns attributes with which the kernel kills a child when this program ends, and a Ctrl-C at the
// terminal does not reach the child: this program ends its children in order.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
