// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// endpoint returns the URL of a pod's exposition. Tenants choose only the port and the
// path, and neither can change the host.
func (f *Finder) endpoint(kind string, pod *corev1.Pod, port int32, path string) (url.URL, error) {
	address, err := f.podAddress(kind, pod)
	if err != nil {
		return url.URL{}, err
	}
	if port < 1 || port > 65535 {
		return url.URL{}, fmt.Errorf("port %d is not between 1 and 65535", port)
	}
	if err := checkPath(path); err != nil {
		return url.URL{}, err
	}
	scheme := "http"
	if kind != KindPod {
		scheme = cmp.Or(f.cfg.ExporterScheme, scheme)
	}
	return url.URL{Scheme: scheme, Host: netip.AddrPortFrom(address, uint16(port)).String(), Path: path}, nil
}

// Endpoint is an exposition of a pod that is read.
type Endpoint struct {
	Name string // of its target
	URL  url.URL
	TLS  *policy.TLS // nil: plain HTTP
	Port Port
}

// at returns the endpoint of a pod at a port and a path.
func (f *Finder) at(pod *corev1.Pod, port Port, path string, verify *policy.TLS) (e Endpoint, err error) {
	u, err := f.endpoint(KindPod, pod, port.Number, path)
	if err != nil {
		return e, err
	}
	if verify != nil {
		u.Scheme = "https"
	}
	return Endpoint{Name: targetName(pod, port.Number, path, verify), URL: u, TLS: verify, Port: port}, nil
}

// PodEndpoint returns the exposition that a pods signal reads.
func (f *Finder) PodEndpoint(pod *corev1.Pod, src *policy.Source) (Endpoint, error) {
	port, err := PodPort(pod, src.Port)
	if err != nil {
		return Endpoint{}, err
	}
	return f.at(pod, port, src.Path, src.TLS)
}

// pathMarks are the characters that a path may have in addition to letters and digits,
// as in package policy. None of them can start a query or a fragment, or encode one.
const pathMarks = "/-._~!$&'()*+,;=:@"

// checkPath validates a path again. Package policy already refuses invalid paths.
func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return fmt.Errorf("path %.200q does not begin with one slash", path)
	}
	for _, r := range path {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(pathMarks, r):
		default:
			return fmt.Errorf("path %.200q contains %q; letters, digits and %s are allowed", path, r, pathMarks)
		}
	}
	return nil
}

// podAddress returns the address at which a pod is scraped. A user with permissions on
// pods/status may have written it, so it is validated: it must not be an address of
// this machine, of a metadata service, or of a node's own services.
func (f *Finder) podAddress(kind string, pod *corev1.Pod) (netip.Addr, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("pod %s has the address %.64q, which is not an IP address", pod.Name, pod.Status.PodIP)
	}
	ip = ip.Unmap()
	onHost := pod.Spec.HostNetwork || f.isHostAddress(pod, ip)
	listed := slices.ContainsFunc(f.cfg.PodNetworks, func(n netip.Prefix) bool { return n.Contains(ip) })
	switch {
	case !ip.IsGlobalUnicast() && !(ip.IsLoopback() && listed):
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is not a pod address: it is loopback, link-local, multicast or unspecified", pod.Name, ip)
	case onHost && kind == KindPod && !f.cfg.HostNetworkPods:
		return netip.Addr{}, fmt.Errorf("pod %s is on its node's network (%s), where any service of the node could be read; --scrape-host-network-pods allows it", pod.Name, ip)
	case !onHost && !listed && len(f.cfg.PodNetworks) > 0:
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is in none of --pod-cidrs", pod.Name, ip)
	}
	return ip, nil
}

// isHostAddress reports whether a pod's address belongs to a node.
func (f *Finder) isHostAddress(pod *corev1.Pod, ip netip.Addr) bool {
	if slices.Contains(hostAddresses(pod), ip) {
		return true
	}
	hosts := f.hosts.Load()
	return hosts != nil && (*hosts)[ip]
}

// hostAddresses returns the addresses of the pod's node, from the pod's status.
func hostAddresses(pod *corev1.Pod) []netip.Addr {
	var out []netip.Addr
	add := func(s string) {
		if ip, err := netip.ParseAddr(s); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	add(pod.Status.HostIP)
	for _, h := range pod.Status.HostIPs {
		add(h.IP)
	}
	return out
}

// maxRefused bounds the exporters whose refusal is stored.
const maxRefused = 1024

// logRefusal logs once for each reason why an exporter is not scraped.
func (f *Finder) logRefusal(target string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refused[target] == err.Error() {
		return
	}
	if f.refused == nil || len(f.refused) >= maxRefused {
		f.refused = map[string]string{}
	}
	f.refused[target] = err.Error()
	f.log.Warn("exporter not scraped", "target", target, "err", err)
}

// systemNamespace has pods on every node. Tenants cannot write their status.
const systemNamespace = "kube-system"

// hostsTTL is the minimum time between two lists of the nodes' addresses.
const hostsTTL = 10 * time.Second

// refreshHosts stores the nodes' addresses. It uses only pods of the operator's
// namespaces: a tenant's pod could otherwise claim another pod's address as that of a
// node, and prevent its scrape.
func (f *Finder) refreshHosts(now time.Time) {
	if now.Sub(f.hostsAt) < hostsTTL {
		return
	}
	f.hostsAt = now
	hosts := map[netip.Addr]bool{}
	add := func(pods []*corev1.Pod) {
		for _, pod := range pods {
			for _, ip := range hostAddresses(pod) {
				hosts[ip] = true
			}
		}
	}
	operators := append([]string{systemNamespace, f.cfg.AgentNamespace}, f.cfg.DCGMNamespaces...)
	slices.Sort(operators)
	for _, namespace := range slices.Compact(operators) {
		if namespace != "" { // "" would select all namespaces
			add(f.pods.Select(namespace, labels.Everything()))
		}
	}
	f.hosts.Store(&hosts)
}
