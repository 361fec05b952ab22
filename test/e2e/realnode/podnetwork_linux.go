// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	_ "embed" // podnetwork.sh
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// podNetwork is a CNI plugin, also under the name of the loopback plugin, which containerd asks for as well.
//
//go:embed podnetwork.sh
var podNetwork []byte

// podNetworkConfig is the CNI configuration of podNetwork.
const podNetworkConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "pods"}]}`

// CheckPodNetwork returns an error that wraps [ErrUnavailable] if the machine lacks a program that the pod network needs.
func CheckPodNetwork() error {
	for _, program := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: its pod network needs %s (Debian's packages iproute2 and util-linux)", ErrUnavailable, program)
		}
	}
	return nil
}

// writePodNetwork writes the CNI plugin and its configuration for containerd to dir/cni, and lets the node route. The
// kernel's setting is that of our network namespace.
func writePodNetwork(dir string) error {
	cni := filepath.Join(dir, "cni")
	for _, d := range []string{cni, filepath.Join(dir, "addresses")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"pods", "loopback"} {
		if err := os.WriteFile(filepath.Join(cni, name), podNetwork, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(cni, "pods.conflist"), []byte(podNetworkConfig), 0o644); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0o644)
}

// ServeClusterIP gives this node the address ip of a Service and passes connections to its port on to target, an address
// with a port, until ctx ends. It stands in for kube-proxy, for the Service of the API server.
func ServeClusterIP(ctx context.Context, ip, port, target string) error {
	if _, err := output(ctx, "", "ip", "address", "add", ip+"/32", "dev", "lo"); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip, port))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // ctx has ended
			}
			go pass(ctx, client, target)
		}
	}()
	return nil
}

// pass copies between a client and the target until one of them closes.
func pass(ctx context.Context, client net.Conn, target string) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return // the client sees its connection closed
	}
	defer server.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // an error ends the connection
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	both.Wait()
}

// CtrEnv is the environment in which ctr is the runtime's, and reaches this node's containerd.
func (n *Node) CtrEnv() []string {
	return []string{
		"PATH=" + n.cfg.Runtime.Path(), "CONTAINERD_ADDRESS=" + n.containerdSocket(), "CONTAINERD_SNAPSHOTTER=native",
	}
}

// ImportImage imports an OCI archive and gives its images, which must be of one repository, these tags.
func (n *Node) ImportImage(ctx context.Context, archive string, tags ...string) error {
	out, err := n.ctr(ctx, "images", "import", "--snapshotter", "native", archive)
	if err != nil {
		return fmt.Errorf("import %s: %w", archive, err)
	}
	// ctr prints "unpacking NAME (DIGEST)...done".
	var name string
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "unpacking" {
			name = words[1]
		}
	}
	at := strings.LastIndexByte(name, ':')
	if at < 0 {
		return fmt.Errorf("import %s: no image in %q", archive, out)
	}
	for _, tag := range tags {
		if _, err := n.ctr(ctx, "images", "tag", "--force", name, name[:at+1]+tag); err != nil {
			return fmt.Errorf("tag %s: %w", name, err)
		}
	}
	return nil
}
