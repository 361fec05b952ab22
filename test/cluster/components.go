// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"
)

// serviceRange has the cluster IPs of Services, which are not routed here.
const serviceRange = "10.96.0.0/16"

// APIServerServiceIP is the cluster IP of the API server's Service, which pods connect to, at port 443. It is the first
// address of the range.
const APIServerServiceIP = "10.96.0.1"

// frontProxyUser is the user whose requests may carry the name of another user.
const frontProxyUser = "front-proxy-client"

// etcdData is where etcd keeps its data, in the cluster's directory.
const etcdData = "etcd"

// etcdSocket is the Unix socket of etcd, in the cluster's directory: it cannot collide with a port, and other users
// cannot read it. The path is relative to the directory, in which every component runs, because the path of a socket is
// limited to 107 bytes.
const etcdSocket = "etcd.sock"

// minPort and maxPort bound the ports of [FreePort], below those of outgoing connections on Linux
// (net.ipv4.ip_local_port_range, 32768 to 60999 by default).
const minPort, maxPort = 20000, 29999

// FreePort returns a TCP port of that address without a listener, which outgoing connections do not use either. Another
// process may take it before the caller does; the caller then tries another port.
func FreePort(address string) (int, error) {
	var last error
	for range 100 {
		port := minPort + rand.IntN(maxPort-minPort+1)
		listener, err := net.Listen("tcp", hostPort(address, port))
		if err != nil {
			last = err
			continue
		}
		_ = listener.Close()
		return port, nil
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// serverNames returns all names and addresses of the API server.
func serverNames(cfg Config) []string {
	return append([]string{
		"localhost", "127.0.0.1", cfg.BindAddress, APIServerServiceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}, cfg.ExtraSANs...)
}

func (c *Cluster) etcdArgs() []string {
	const client, peer = "unix://" + etcdSocket, "unix://etcd-peer.sock"
	return []string{
		"--name=default",
		"--data-dir=" + etcdData,
		"--unsafe-no-fsync", // only a crash of the machine could lose data, which is not kept anyway
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		// A single member always wins the election; this makes it take 0.1 s instead of 1 s.
		"--heartbeat-interval=20",
		"--election-timeout=100",
		"--log-level=warn",
	}
}

func (c *Cluster) apiServerArgs() ([]string, error) {
	p := c.pki
	kubelet, err := p.client(p.cluster, "kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return nil, err
	}
	proxy, err := p.client(p.frontProxy, frontProxyUser)
	if err != nil {
		return nil, err
	}
	return []string{
		"--bind-address=" + c.cfg.BindAddress,
		"--secure-port=" + strconv.Itoa(c.port),
		"--endpoint-reconciler-type=none", // otherwise a loopback address is refused
		"--etcd-servers=unix://" + etcdSocket,
		"--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + p.server.certPath,
		"--tls-private-key-file=" + p.server.keyPath,
		"--client-ca-file=" + p.cluster.certPath,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.serviceAccountKey,
		"--service-account-signing-key-file=" + p.serviceAccountKey,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		// For aggregated APIs: how they authenticate the API server, and the headers with the user.
		"--requestheader-client-ca-file=" + p.frontProxy.certPath,
		"--requestheader-allowed-names=" + frontProxyUser,
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + proxy.certPath,
		"--proxy-client-key-file=" + proxy.keyPath,
		// For kubectl logs and exec on nodes whose names do not resolve.
		"--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + kubelet.certPath,
		"--kubelet-client-key=" + kubelet.keyPath,
	}, nil
}

func (c *Cluster) controllerManagerArgs() ([]string, error) {
	kubeconfig, err := c.KubeconfigFor("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0", // serve nothing: no port to collide on
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.pki.serviceAccountKey,
		"--root-ca-file=" + c.pki.cluster.certPath,
		"--cluster-signing-cert-file=" + c.pki.cluster.certPath,
		"--cluster-signing-key-file=" + c.pki.cluster.keyPath,
		// The default of 20 requests/s would slow down large tests.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		// The default of 50 s would give up kubelets that a busy machine keeps from their leases.
		"--node-monitor-grace-period=30m",
	}
	args = appendDuration(args, "--horizontal-pod-autoscaler-sync-period", c.cfg.HPASyncPeriod)
	return appendDuration(args, "--horizontal-pod-autoscaler-downscale-stabilization", c.cfg.HPADownscaleStabilization), nil
}

func (c *Cluster) schedulerArgs() ([]string, error) {
	kubeconfig, err := c.KubeconfigFor("system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0", // serve nothing: no port to collide on
		"--leader-elect=false",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	}, nil
}

func appendDuration(args []string, flag string, d time.Duration) []string {
	if d <= 0 {
		return args
	}
	return append(args, flag+"="+d.String())
}
