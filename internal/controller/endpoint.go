// SPDX-License-Identifier: Apache-2.0

package controller

import (
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
func (c *Controller) endpoint(kind string, pod *corev1.Pod, port int32, path string) (url.URL, error) {
	address, err := c.address(kind, pod)
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
		scheme = c.cfg.ExporterScheme
	}
	return url.URL{Scheme: scheme, Host: netip.AddrPortFrom(address, uint16(port)).String(), Path: path}, nil
}

// podEndpoint is the URL of the exposition that a pods signal reads of a pod.
func (c *Controller) podEndpoint(pod *corev1.Pod, src *policy.Source) (u url.URL, port int32, err error) {
	if port, err = podPort(pod, src.Port); err == nil {
		u, err = c.endpoint(KindPod, pod, port, src.Path)
	}
	return u, port, err
}

// pathMarks are what a path may have beside letters and digits, as policy has
// it. What could begin a query or a fragment, or hide one, is not among them.
const pathMarks = "/-._~!$&'()*+,;=:@"

// checkPath says what is wrong with a path. policy refuses such paths earlier.
func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return fmt.Errorf("path %q does not begin with one slash", clip(path, maxStep))
	}
	for _, r := range path {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune(pathMarks, r):
		default:
			return fmt.Errorf("path %q has a %q; letters, digits and %s are allowed", clip(path, maxStep), r, pathMarks)
		}
	}
	return nil
}

// address is where a pod can be scraped. Its status may have been written by
// someone with rights on pods/status, so that it is checked: it must not lead
// to this machine, to a metadata service, or to a node's own services.
func (c *Controller) address(kind string, pod *corev1.Pod) (netip.Addr, error) {
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("pod %s has the address %q, which is no IP address", pod.Name, clip(pod.Status.PodIP, 64))
	}
	ip = ip.Unmap()
	onHost := pod.Spec.HostNetwork || c.isHostAddress(pod, ip)
	listed := slices.ContainsFunc(c.cfg.PodNetworks, func(n netip.Prefix) bool { return n.Contains(ip) })
	switch {
	case !ip.IsGlobalUnicast() && !(ip.IsLoopback() && listed):
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is not a pod's: it is loopback, link-local, multicast or none", pod.Name, ip)
	case onHost && kind == KindPod && !c.cfg.HostNetworkPods:
		return netip.Addr{}, fmt.Errorf("pod %s is on its node's network (%s), where any service of the node could be read; --scrape-host-network-pods allows it", pod.Name, ip)
	case !onHost && !listed && len(c.cfg.PodNetworks) > 0:
		return netip.Addr{}, fmt.Errorf("pod %s has the address %s, which is in none of --pod-cidrs", pod.Name, ip)
	}
	return ip, nil
}

// isHostAddress says whether an address that a pod has is a node's.
func (c *Controller) isHostAddress(pod *corev1.Pod, ip netip.Addr) bool {
	if slices.Contains(hostAddresses(pod), ip) {
		return true
	}
	hosts := c.hosts.Load()
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

// scrapesPods says whether any autoscaler reads pods' own metrics.
func (c *Controller) scrapesPods() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, w := range c.workloads {
		if w.scrapesPods.Load() {
			return true
		}
	}
	return false
}

// maxRefused bounds the exporters whose refusal is remembered.
const maxRefused = 1024

// refuse logs once why an exporter is not scraped.
func (c *Controller) refuse(target string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused[target] == err.Error() {
		return
	}
	if c.refused == nil || len(c.refused) >= maxRefused {
		c.refused = map[string]string{}
	}
	c.refused[target] = err.Error()
	c.deps.Log.Warn("exporter not scraped", "target", target, "err", err)
}

// systemNamespace has pods on every node, whose status no tenant writes.
const systemNamespace = "kube-system"

// hostsFor is how long the nodes' addresses are not listed anew.
const hostsFor = 10 * time.Second

// findHosts takes note of the nodes' addresses, if pods' own metrics are read.
// Only pods of the operator's namespaces are asked: others' could name another
// pod's address as a node's, so that it is not scraped any more.
func (c *Controller) findHosts(now time.Time) {
	if now.Sub(c.hostsAt) < hostsFor || !c.scrapesPods() {
		return
	}
	c.hostsAt = now
	hosts := map[netip.Addr]bool{}
	take := func(pods []*corev1.Pod) {
		for _, pod := range pods {
			for _, ip := range hostAddresses(pod) {
				hosts[ip] = true
			}
		}
	}
	operators := append([]string{systemNamespace, c.cfg.AgentNamespace}, c.cfg.DCGMNamespaces...)
	slices.Sort(operators)
	for _, namespace := range slices.Compact(operators) {
		if namespace != "" { // which is all of them
			take(c.deps.Pods.Select(namespace, labels.Everything()))
		}
	}
	c.hosts.Store(&hosts)
}
