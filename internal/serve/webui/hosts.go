// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// AnyHost as a name allows every name.
const AnyHost = "*"

// CheckHosts refuses requests to other hosts than loopback names, IP addresses and these
// names, if the page has no access control. Otherwise any website that is open in a
// browser could read the page: it lets its own name resolve to the page's address (DNS
// rebinding), and the browser sends that name. A token is not sent to another name.
func (p *Page) CheckHosts(next http.Handler, names []string) http.Handler {
	if p.access != nil || slices.Contains(names, AnyHost) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host := hostOf(r.Host); !isLocal(host) && !slices.ContainsFunc(names, func(n string) bool { return hostOf(n) == host }) {
			writeError(w, http.StatusMisdirectedRequest, fmt.Sprintf(
				"without access control the page does not answer for the host %q: add it to --page-hosts (the chart's controller.pageHosts), or use localhost or an IP address", excerpt.Of(host, 253)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf returns a Host header without its port, in lower case and without the dot at
// its end.
func hostOf(header string) string {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// isLocal reports whether no website can have this host. Clients without a Host header
// are no browsers.
func isLocal(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
