// SPDX-License-Identifier: Apache-2.0

// Command payload is the only program in the containers of the real node: the sandbox's pause and the pods' workload. It
// uses no CPU, no network and no files, and ends at once and with status 0 when it is told to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
