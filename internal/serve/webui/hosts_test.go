// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// hostStatus returns the answer to a request to a host.
func hostStatus(h http.Handler, host string) (int, string) {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/view", nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// Without access control, a website cannot read the page by a name of its own.
func TestRebinding(t *testing.T) {
	p := New(fixed{fleet()}, nil)
	h := p.CheckHosts(p.Handler(), []string{"gpu.example.com", "gpupilot-controller.gpupilot-system"})
	f := func(host string, want int) {
		t.Helper()
		got, body := hostStatus(h, host)
		if got != want || want == http.StatusMisdirectedRequest && !strings.Contains(body, "--page-hosts") {
			t.Errorf("%q: %d %.100q, want %d", host, got, body, want)
		}
	}
	for _, mine := range []string{
		"localhost:8080", "LOCALHOST", "localhost.", "x.localhost:1", "127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[::1]", "[fe80::1%25eth0]:1", "",
		"gpu.example.com", "GPU.example.com.:443", "gpupilot-controller.gpupilot-system:8080",
	} {
		f(mine, http.StatusOK)
	}
	for _, other := range []string{
		"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io:8080", "notlocalhost", ".example.com",
		"x.gpu.example.com", "gpu.example.com.evil.example", "0x7f000001", "2130706433", "127.1", "[evil.example]:1", "localhost:8080:8080", "localhost, evil.example", strings.Repeat("x", 1<<16),
	} {
		f(other, http.StatusMisdirectedRequest)
	}
	// With access control, or with *, every name is allowed.
	for _, h := range []http.Handler{p.CheckHosts(p.Handler(), []string{"*"}), New(fixed{fleet()}, &cluster{}).CheckHosts(p.Handler(), nil)} {
		if got, _ := hostStatus(h, "evil.example"); got != http.StatusOK {
			t.Errorf("status %d", got)
		}
	}
}

// No name that a website can have passes.
func FuzzHosts(f *testing.F) {
	f.Add("evil.example:80")
	f.Add("[::1]")
	p := New(fixed{fleet()}, nil)
	h := p.CheckHosts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
	f.Fuzz(func(t *testing.T, name string) {
		name = strings.Map(func(c rune) rune {
			if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
				return c
			}
			return -1
		}, strings.ToLower(name))
		if got, _ := hostStatus(h, name+".example:80"); got != http.StatusMisdirectedRequest {
			t.Errorf("%q.example: %d", name, got)
		}
	})
}
