// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// secret is what a target answers that nobody may read through us.
const secret = "s3cr3t"

// serveRaw answers each connection with these bytes, whatever was asked.
func serveRaw(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, answer)
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/metrics"
}

// Whoever has us ask a service that is not theirs must not learn what it says:
// the answer is in no error, no state and no log but at its debug level.
func TestAnswersAreNotShown(t *testing.T) {
	for name, dial := range dialers() {
		t.Run(name, func(t *testing.T) { testAnswersAreNotShown(t, dial) })
	}
}

func testAnswersAreNotShown(t *testing.T, dial Dialer) {
	const ok = "HTTP/1.1 200 OK\r\n"
	f := func(what, answer string, kind Kind) {
		t.Helper()
		raw := serveRaw(t, answer)
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
			var log bytes.Buffer
			s := New(Config{Timeout: time.Minute}, Deps{
				Client: NewClient(), Dial: dial, Store: series.New(series.Config{}),
				Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level})),
			})
			want := Target{Name: "t", URL: parse(raw), Kind: kind, Metrics: []page.Metric{{Key: "m", Name: "m"}}}
			r := &runner{s: s, phase: newPhase(&s.cfg, "t"), state: State{Name: "t", URL: raw}}
			r.want.Store(&want)
			r.scrape(context.Background())
			if state := fmt.Sprintf("%+v %v", r.state, r.state.Err); strings.Contains(state, secret) {
				t.Errorf("%s: the state shows it: %s", what, state)
			}
			if level > slog.LevelDebug && strings.Contains(log.String(), secret) {
				t.Errorf("%s: the log shows it: %s", what, log.String())
			}
			if level == slog.LevelDebug && !strings.Contains(log.String(), secret) && strings.Contains(what, "line") {
				t.Errorf("%s: the log at its debug level does not show it: %s", what, log.String())
			}
		}
		if _, err := ReadHealth(t.Context(), NewClient(), parse(raw)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: health: %v", what, err)
		}
	}
	body := func(s string) string { return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", ok, len(s), s) }
	for _, kind := range []Kind{Agent, DCGM, Pod} {
		f("a bad line", body("password: "+secret+"\n"), kind)
		f("a bad line of a page", body("m 1\nm 2\nm "+secret+"\n"), kind)
		f("a status' words", "HTTP/1.1 403 "+secret+"\r\nContent-Length: 0\r\n\r\n", kind)
		f("a status", "HTTP/1.1 "+secret+"\r\n\r\n", kind)
		f("a banner", "SSH-2.0-"+secret+"\r\n", kind)
		f("a header", ok+secret+"\r\n\r\n", kind)
		f("a header's value", ok+"Content-Length: "+secret+"\r\n\r\n", kind)
		f("a coding", ok+"Transfer-Encoding: "+secret+"\r\n\r\n", kind)
		f("a chunk", ok+"Transfer-Encoding: chunked\r\n\r\n"+secret+"\r\n", kind)
		f("a place", "HTTP/1.1 302 Found\r\nLocation: http://"+secret+"/\r\nContent-Length: 0\r\n\r\n", kind)
		f("long headers", ok+"X: "+strings.Repeat("x", 20<<10)+"\r\n\r\n"+secret+"=", kind)
	}
}

// A certificate's names are its server's words, too.
func TestCertificatesAreNotShown(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	_, err := ReadHealth(t.Context(), NewClient(), parse(srv.URL+"/metrics"))
	if err == nil || err.Error() != "the TLS certificate is not signed by a trusted authority" {
		t.Errorf("error %v", err)
	}
	plain := parse(serveRaw(t, "HTTP/1.1 200 OK\r\n\r\n"))
	plain.Scheme = "https"
	if _, err = ReadHealth(t.Context(), NewClient(), plain); err == nil || err.Error() != "the server does not speak TLS" {
		t.Errorf("error %v", err)
	}
	if _, err = ReadHealth(t.Context(), NewClient(), parse("http://127.0.0.1:1/metrics")); err == nil || err.Error() != "connect: connection refused" {
		t.Errorf("error %v", err)
	}
}

// A redirect is an error, and where it leads to is not asked.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	for name, dial := range dialers() {
		for _, code := range []int{301, 302, 303, 307, 308} {
			st, stats, _ := once(t, Config{}, dial, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
			if st.Err == nil || stats.Failures["status"] != 1 || asked.Load() != 0 {
				t.Errorf("%s, %d: %v, the other was asked %d times", name, code, st.Err, asked.Load())
			}
		}
	}
}

// The proxy that the environment names sees nothing of what is scraped.
func TestNoProxy(t *testing.T) {
	if NewClient().Transport.(*http.Transport).Proxy != nil {
		t.Error("the client goes by a proxy")
	}
}

// A target's host is an address. What would make it another one, or bring
// credentials, is refused before anything is sent.
func TestURLsAreChecked(t *testing.T) {
	ok := url.URL{Scheme: "http", Host: "10.0.0.1:9400", Path: "/metrics"}
	f := func(what string, good bool, change func(*url.URL)) {
		t.Helper()
		u := ok
		change(&u)
		req, err := newRequest(u, []string{"a b", "c&d"})
		if (err == nil) != good {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil && (req.URL.Host != u.Host || req.Host != u.Host) {
			t.Errorf("%s: asks %s of %s", what, req.URL, req.Host)
		}
	}
	f("plain", true, func(*url.URL) {})
	f("TLS", true, func(u *url.URL) { u.Scheme = "https" })
	f("IPv6", true, func(u *url.URL) { u.Host = "[fd00::1]:9400" })
	f("a query", true, func(u *url.URL) { u.RawQuery = "a=b" })
	f("an at sign", true, func(u *url.URL) { u.Path = "/@10.0.0.2:80/" })
	f("a name", false, func(u *url.URL) { u.Host = "metadata.google.internal:80" })
	f("no port", false, func(u *url.URL) { u.Host = "10.0.0.1" })
	f("port 0", false, func(u *url.URL) { u.Host = "10.0.0.1:0" })
	f("two hosts", false, func(u *url.URL) { u.Host = "10.0.0.1:80@10.0.0.2:80" })
	f("a zone", false, func(u *url.URL) { u.Host = "[fe80::1%eth0]:80" })
	f("credentials", false, func(u *url.URL) { u.User = url.User("a") })
	f("opaque", false, func(u *url.URL) { u.Opaque = "//10.0.0.2/" })
	f("a file", false, func(u *url.URL) { u.Scheme = "file" })
	f("no slash", false, func(u *url.URL) { u.Path = "@10.0.0.2:80/" })
	f("two slashes", false, func(u *url.URL) { u.Path = "//10.0.0.2:80/" })
	f("no path", false, func(u *url.URL) { u.Path = "" })
}

// A target whose URL is refused fails as it is, without a request.
func TestRefusedURLIsNotAsked(t *testing.T) {
	a := &fakeAgent{interval: time.Second, took: always(time.Millisecond)}
	s := New(Config{}, Deps{Client: a, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	want := Target{Name: "t", URL: url.URL{Scheme: "http", Host: "kubernetes.default:443", Path: "/"}}
	r := &runner{s: s, phase: newPhase(&s.cfg, "t"), state: State{Name: "t"}}
	r.want.Store(&want)
	r.scrape(context.Background())
	if len(a.requests()) != 0 || r.state.Err == nil || !strings.Contains(r.state.Err.Error(), `host "kubernetes.default:443" is not an IP address and a port`) {
		t.Errorf("asked %d times; %v", len(a.requests()), r.state.Err)
	}
}
