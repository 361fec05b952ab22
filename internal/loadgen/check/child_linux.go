// SPDX-License-Identifier: Apache-2.0

package check

import "syscall"

// childAttributes lets the kernel end the agent with this program. A Ctrl-C at the terminal does not reach the agent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
