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

	"github.com/gpupilot/gpupilot/internal/policy"
)

// endpoint is the URL of an exposition of a pod. Only the port and the path are
// the tenant's choice: neither can make the host another one.
func (f *Finder) endpoint(kind string, pod *corev1.Pod, port int32, path string) (url.URL, error) {
	address, err := f.address(kind, pod)
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

// PodEndpoint is the URL of the exposition that a pods signal reads of a pod.
func (f *Finder) PodEndpoint(pod *corev1.Pod, src *policy.Source) (u url.URL, port int32, err error) {
	if port, err = PodPort(pod, src.Port); err == nil {
		u, err = f.endpoint(KindPod, pod, port, src.Path)
	}
	return u, port, err
}

// pathMarks are what a path may have beside letters and digits, as policy has
// it. What could begin a query or a fragment, or hide one, is not among them.
const pathMarks = "/-._~!$&'()*+,;=:@"

// checkPath says what is wrong with a path. policy refuses such paths earlier.
func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return fmt.Errorf("path %.200q does not begin with one slash", path)
	}
	for _, r := range path {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(pathMarks, r):
		default:
			return fmt.Errorf("path %.200q has a %q; letters, digits and %s are allowed", path, r, pathMarks)
		}
	}
	return nil
}

// address is where a pod can be scraped. Its status may have been written by
// someone with rights on pods/status, so that it is checked: it must not lead
// to this machine, to a metadata service, or to a node's own services.
func (f *Finder) address(kind string, pod *corev1.Pod) (netip.Addr, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("pod %s has the address %.64q, which is no IP address", pod.Name, pod.Status.PodIP)
	}
	ip = ip.Unmap()
	onHost := pod.Spec.HostNetwork || f.isHostAddress(pod, ip)
	listed := slices.ContainsFunc(f.cfg.PodNetworks, func(n netip.Prefix) bool { return n.Contains(ip) })
	switch {
	case !ip.IsGlobalUnicast() && !(ip.IsLoopback() && listed):
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is not a pod's: it is loopback, link-local, multicast or none", pod.Name, ip)
	case onHost && kind == KindPod && !f.cfg.HostNetworkPods:
		return netip.Addr{}, fmt.Errorf("pod %s is on its node's network (%s), where any service of the node could be read; --scrape-host-network-pods allows it", pod.Name, ip)
	case !onHost && !listed && len(f.cfg.PodNetworks) > 0:
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is in none of --pod-cidrs", pod.Name, ip)
	}
	return ip, nil
}

// isHostAddress says whether an address that a pod has is a node's.
func (f *Finder) isHostAddress(pod *corev1.Pod, ip netip.Addr) bool {
	if slices.Contains(hostAddresses(pod), ip) {
		return true
	}
	hosts := f.hosts.Load()
	return hosts != nil && (*hosts)[ip]
}

// hostAddresses are those of the pod's node, as its status has them.
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

// maxRefused bounds the exporters whose refusal is remembered.
const maxRefused = 1024

// refuse logs once why an exporter is not scraped.
func (f *Finder) refuse(target string, err error) {
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

// systemNamespace has pods on every node, whose status no tenant writes.
const systemNamespace = "kube-system"

// hostsFor is how long the nodes' addresses are not listed anew.
const hostsFor = 10 * time.Second

// findHosts takes note of the nodes' addresses.
// Only pods of the operator's namespaces are asked: others' could name another
// pod's address as a node's, so that it is not scraped any more.
func (f *Finder) findHosts(now time.Time) {
	if now.Sub(f.hostsAt) < hostsFor {
		return
	}
	f.hostsAt = now
	hosts := map[netip.Addr]bool{}
	take := func(pods []*corev1.Pod) {
		for _, pod := range pods {
			for _, ip := range hostAddresses(pod) {
				hosts[ip] = true
			}
		}
	}
	operators := append([]string{systemNamespace, f.cfg.AgentNamespace}, f.cfg.DCGMNamespaces...)
	slices.Sort(operators)
	for _, namespace := range slices.Compact(operators) {
		if namespace != "" { // which is all of them
			take(f.pods.Select(namespace, labels.Everything()))
		}
	}
	f.hosts.Store(&hosts)
}
