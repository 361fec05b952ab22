// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"net/netip"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

func addressed(ip, host string, hostNetwork bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.HostIP, p.Spec.HostNetwork = ip, host, hostNetwork
	}
}

// A pod's status may be a tenant's words: it does not lead the controller to
// itself, to a metadata service or to a node.
func TestPodAddresses(t *testing.T) {
	var pods podList
	r := finder(&pods)
	f := func(ip, host string, hostNetwork bool, kind, want, says string) {
		t.Helper()
		u, err := r.endpoint(kind, pod("web", "web-1", addressed(ip, host, hostNetwork)), 9400, "/metrics")
		if u.Host != want || (err == nil) != (says == "") {
			t.Errorf("%s on %s: %s, %v; want %s, %q", ip, host, u.Host, err, want, says)
		}
		if err != nil {
			contains(t, err.Error(), says)
		}
	}
	f("10.0.0.1", "192.168.0.1", false, KindPod, "10.0.0.1:9400", "")
	f("fd00::1", "192.168.0.1", false, KindPod, "[fd00::1]:9400", "")
	f("::ffff:10.0.0.1", "", false, KindPod, "10.0.0.1:9400", "")
	for _, ip := range []string{
		"127.0.0.1", "127.8.8.8", "::1", "169.254.169.254", "::ffff:169.254.169.254", "::ffff:127.0.0.1",
		"fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "255.255.255.255",
	} {
		f(ip, "", false, KindPod, "", "is not a pod address")
		f(ip, "", true, KindAgent, "", "is not a pod address")
	}
	for _, ip := range []string{"", "localhost", "10.0.0.1:80", "10.0.0.1@10.0.0.2", "fd00::1%eth0", "10.0.0.1/", " 10.0.0.1"} {
		f(ip, "", false, KindPod, "", "not an IP address")
	}
	f("192.168.0.1", "192.168.0.1", true, KindPod, "", "--scrape-host-network-pods")
	f("192.168.0.1", "192.168.0.1", false, KindPod, "", "on its node's network")
	f("192.168.0.1", "192.168.0.1", true, KindAgent, "192.168.0.1:9400", "")
	f("192.168.0.1", "192.168.0.1", true, KindDCGM, "192.168.0.1:9400", "")

	r.cfg.PodNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")}
	f("10.244.3.4", "", false, KindPod, "10.244.3.4:9400", "")
	f("127.3.0.4", "", false, KindPod, "127.3.0.4:9400", "")
	f("10.0.0.1", "", false, KindPod, "", "in none of --pod-cidrs")
	f("10.0.0.1", "", false, KindAgent, "", "in none of --pod-cidrs")
	f("169.254.169.254", "", false, KindPod, "", "is not a pod address")
	f("192.168.0.1", "192.168.0.1", true, KindAgent, "192.168.0.1:9400", "")
	f("192.168.0.1", "192.168.0.1", true, KindPod, "", "on its node's network")
	r.cfg.HostNetworkPods = true
	f("192.168.0.1", "192.168.0.1", true, KindPod, "192.168.0.1:9400", "")
	f("127.0.0.1", "127.0.0.1", true, KindPod, "127.0.0.1:9400", "")
}

// However a path is written, it is the path of the pod's own address.
func TestPathsDoNotChooseTheHost(t *testing.T) {
	var pods podList
	r := finder(&pods)
	p := pod("web", "web-1")
	for _, path := range []string{
		"@10.9.9.9:80/", ":80@10.9.9.9/", "//10.9.9.9/", "", "metrics", `/\10.9.9.9/`, `\\10.9.9.9\x`, "/a#b", "/a b", "/a\r\nHost: b", "/a\x00",
		"/%2e%2e/", "/ä", "/a?b=c", "http://10.9.9.9/",
	} {
		if u, err := r.endpoint(KindPod, p, 80, path); err == nil {
			t.Errorf("path %q: %s", path, u.String())
		}
	}
	for path, want := range map[string]string{
		"/metrics": "http://10.0.0.1:80/metrics", "/a/b-c_d.e~": "http://10.0.0.1:80/a/b-c_d.e~", "/@10.9.9.9:80/": "http://10.0.0.1:80/@10.9.9.9:80/",
	} {
		if u, err := r.endpoint(KindPod, p, 80, path); err != nil || u.String() != want {
			t.Errorf("path %q: %s, %v", path, u.String(), err)
		}
	}
	for _, port := range []int32{0, -1, 65536, 1 << 30} {
		if _, err := r.endpoint(KindPod, p, port, "/"); err == nil {
			t.Errorf("port %d is accepted", port)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	f.Add("10.0.0.1", int32(80), "/metrics")
	f.Add("::ffff:169.254.169.254", int32(80), "/@10.9.9.9")
	f.Add("fd00::1", int32(1), "/?a=b&c")
	f.Fuzz(func(t *testing.T, ip string, port int32, path string) {
		c := &Finder{}
		p := &corev1.Pod{Status: corev1.PodStatus{PodIP: ip}}
		u, err := c.endpoint(KindPod, p, port, path)
		if err != nil {
			return
		}
		again, err := url.Parse(u.String())
		if err != nil || again.Host != u.Host || again.User != nil || again.Fragment != "" || again.Scheme != "http" || again.Path != u.Path {
			t.Errorf("%s is %+v", u.String(), again)
		}
		host := netip.MustParseAddrPort(u.Host)
		want := netip.MustParseAddr(ip).Unmap()
		if host.Addr() != want || host.Port() != uint16(port) || !want.IsGlobalUnicast() {
			t.Errorf("%q and %d are %s", ip, port, u.Host)
		}
		e, err := c.at(p, Port{Number: port}, path, &policy.TLS{ServerName: path, CA: ip})
		if u.Scheme = "https"; err != nil || e.URL != u {
			t.Errorf("with TLS: %s, %v; want %s", e.URL.String(), err, u.String())
		}
	})
}
