// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/gpupilot/gpupilot/test/cluster"
)

// StartReplica starts a further controller that scrapes and serves the page, but writes
// nothing. It listens on host; args come after its own arguments. StartReplica returns
// when it is ready; stop ends it.
func (s *Stack) StartReplica(ctx context.Context, host string, args ...string) (url string, stop func(), err error) {
	port, err := cluster.FreePort(host)
	if err != nil {
		return "", nil, err
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	kubeconfig, err := s.accountKubeconfig(ControllerAccount)
	if err != nil {
		return "", nil, err
	}
	log := filepath.Join(s.dir, fmt.Sprintf("replica-%d.log", port))
	p, err := startProcess(filepath.Join(s.cfg.Root, "bin", "gpupilot-controller"), append([]string{
		"--kubeconfig", kubeconfig, "--namespace", Namespace, "--address", address, "--roles", "scrape", "--log-level", "debug",
		"--pod-cidrs", "127.0.0.0/8", // simnode's pods
	}, args...), log)
	if err != nil {
		return "", nil, fmt.Errorf("start a replica: %w", err)
	}
	stop = func() { p.end(syscall.SIGTERM) }
	url = "http://" + address
	if err := Await(ctx, startTimeout, func() error { return probe(ctx, url+"/readyz") }); err != nil {
		stop()
		return "", nil, fmt.Errorf("start a replica: %w\n%s", err, tail(log))
	}
	return url, stop, nil
}

// PortOf returns the port of a URL that StartReplica returned.
func PortOf(url string) int {
	_, port, _ := net.SplitHostPort(url[len("http://"):])
	n, _ := strconv.Atoi(port)
	return n
}
