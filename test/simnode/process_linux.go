// SPDX-License-Identifier: Apache-2.0

package simnode

import "syscall"

// childAttributes make the kernel kill a child when we die, however we die,
// and keep a Ctrl-C at the terminal from reaching it: we end it, in our order.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
