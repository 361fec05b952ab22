// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// readAnswer reads an answer as a scrape does.
func readAnswer(b []byte) (a *response, body []byte, err error) {
	a = new(response)
	if err := a.readHead(bufio.NewReaderSize(bytes.NewReader(b), maxHeadLine)); err != nil {
		return a, nil, err
	}
	body, err = io.ReadAll(a)
	return a, body, err
}

func TestAnswersOfHTTP(t *testing.T) {
	f := func(text, body string, status int, reusable bool) {
		t.Helper()
		a, got, err := readAnswer([]byte(text))
		if err != nil || string(got) != body || a.status != status || a.reusable() != reusable {
			t.Errorf("%q:\n %d %q, reusable %v, %v\n want %d %q, %v", text, a.status, got, a.reusable(), err, status, body, reusable)
		}
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	f(ok+"Content-Length: 4\r\n\r\nup 1", "up 1", 200, true)
	f(ok+"content-LENGTH:4\r\nContent-Length: \t4 \r\n\r\nup 1", "up 1", 200, true)
	f("HTTP/1.1 200\nContent-Length: 4\n\nup 1", "up 1", 200, true)
	f("HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", "", 503, true)
	f(ok+"Content-Length: 4\r\n\r\nup 1HTTP/1.1 200", "up 1", 200, false) // what nobody asked for
	f(ok+"Content-Length: 4\r\nConnection: Keep-Alive, CLOSE\r\n\r\nup 1", "up 1", 200, false)
	f("HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nup 1", "up 1", 200, false)
	f(ok+"\r\nup 1", "up 1", 200, false)
	f(ok+"Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n2;x=y\r\n 1\r\n0\r\n\r\n", "up 1", 200, true)
	f(ok+"Transfer-Encoding: Chunked\r\nTrailer: X\r\n\r\n4\r\nup 1\r\n0\r\nX: y\r\n\r\n", "up 1", 200, true)
	f(ok+"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n4\r\nup 1\r\n0\r\n\r\n", "up 1", 200, false)
	f("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+ok+"Content-Length: 4\r\n\r\nup 1", "up 1", 200, true)
	f("HTTP/1.1 204 No Content\r\n\r\n", "", 204, true)
}

func TestHostileAnswers(t *testing.T) {
	f := func(text string) {
		t.Helper()
		if a, body, err := readAnswer([]byte(text)); err == nil {
			t.Errorf("%.100q: %d %q, want an error", text, a.status, body)
		}
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	f("")
	f("\r\n")
	f("HTTP/1.1 20 OK\r\n\r\n")
	f("HTTP/1.1 2000 OK\r\n\r\n")
	f("HTTP/1.1 -20 OK\r\n\r\n")
	f("HTTP/1.1 099 OK\r\n\r\n")
	f("HTTP/2.0 200 OK\r\n\r\n")
	f("HTTP/1.2 200 OK\r\n\r\n")
	f("HTTP/1.1  200 OK\r\n\r\n")
	f("HTTP/1.1 101 Switching Protocols\r\n\r\nup 1")
	f(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100))
	f(ok)
	f(ok + "Content-Length: 4\r\n")
	f(ok + "Content-Length: 4\r\n\r\nup")
	f(ok + "Content-Length: -4\r\n\r\nup 1")
	f(ok + "Content-Length: +4\r\n\r\nup 1")
	f(ok + "Content-Length:\r\n\r\nup 1")
	f(ok + "Content-Length: 99999999999999999999\r\n\r\nup 1")
	f(ok + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nup 1")
	f(ok + "Content-Length: 4, 4\r\n\r\nup 1")
	f(ok + "Content-Length : 4\r\n\r\nup 1")
	f(ok + "X: y\r\n folded\r\n\r\nup 1")
	f(ok + "no colon\r\n\r\nup 1")
	f(ok + ": no name\r\n\r\nup 1")
	f(ok + "X: \x00\r\n\r\nup 1")
	f(ok + "X: a\rb\r\n\r\nup 1")
	f(ok + "Transfer-Encoding: gzip\r\n\r\nup 1")
	f(ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
	f(ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	f("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	f(ok + "Transfer-Encoding: chunked\r\n\r\n-4\r\nup 1\r\n0\r\n\r\n")
	f(ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nup 1")
	f(ok + "Transfer-Encoding: chunked\r\n\r\n4\r\nup 12\r\n0\r\n\r\n")
	f(ok + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nup 1\r\n0\r\n\r\n")
	f(ok + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n")
	f(ok + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: y\r\n", maxHead))
	f(ok + "X: " + strings.Repeat("y", maxHeadLine) + "\r\n\r\nup 1")
	f(ok + strings.Repeat("X: y\r\n", maxHead) + "\r\nup 1")
	f(strings.Repeat("H", 1<<20))
}

// What is taken for an answer is one to net/http too, with the same body.
func FuzzAnswer(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, s := range []string{
		ok + "Content-Length: 4\r\n\r\nup 1", ok + "\r\nup 1", ok + "Transfer-Encoding: chunked\r\n\r\n2;a\r\nup\r\n2\r\n 1\r\n0\r\nX: y\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "HTTP/1.0 204 x\n\n", ok + "Connection: close\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
		"HTTP/1.1 304\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200\nTransfer-Encoding: chunked\n\n0\r\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, body, err := readAnswer(b)
		if err != nil || bytes.HasPrefix(b, []byte("HTTP/1.1 1")) {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		defer resp.Body.Close()
		want, err := io.ReadAll(resp.Body)
		if err != nil || a.status != resp.StatusCode || !bytes.Equal(body, want) {
			t.Fatalf("%q: %d %q; net/http has %d %q, %v", b, a.status, body, resp.StatusCode, want, err)
		}
		if a.reusable() && resp.Close {
			t.Fatalf("%q: the connection would be used again", b)
		}
	})
}

// plainRunner is a runner of one target over connections of its own.
func plainRunner(t *testing.T, cfg Config, address string) *runner {
	t.Helper()
	s := New(cfg, Deps{Dial: (&net.Dialer{}).DialContext, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	r := &runner{s: s, phase: newPhase(&s.cfg, "t"), state: State{Name: "t", URL: address}}
	r.want.Store(&Target{Name: "t", URL: parse(address), Kind: DCGM})
	t.Cleanup(r.conn.shut)
	return r
}

// A server that closes a kept connection costs no scrape.
func TestClosedConnectionsAreOpenedAgain(t *testing.T) {
	var conns atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 5\n")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	r := plainRunner(t, Config{Timeout: time.Minute}, srv.URL+"/metrics")
	for i := range int64(5) {
		if r.scrape(t.Context()); r.state.Err != nil || conns.Load() != i+1 {
			t.Fatalf("scrape %d over %d connections: %v", i, conns.Load(), r.state.Err)
		}
		srv.CloseClientConnections()
	}
}

// A server that answers each first request of a connection only is asked once for
// each scrape, not again and again. Whether it speaks TLS is tried once in a minute.
func TestBrokenAnswersAreNotAskedAgain(t *testing.T) {
	var asked, tried atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			first := make([]byte, 4096)
			if _, _ = c.Read(first); first[0] == 'G' {
				asked.Add(1)
			} else {
				tried.Add(1)
			}
			c.Close()
		}
	}()
	r := plainRunner(t, Config{Timeout: time.Minute}, "http://"+l.Addr().String()+"/metrics")
	for i := range int64(3) {
		if r.scrape(t.Context()); r.state.Err == nil || asked.Load() != i+1 || tried.Load() != 1 {
			t.Errorf("asked %d times and tried TLS %d times in %d scrapes, error %v", asked.Load(), tried.Load(), i+1, r.state.Err)
		}
	}
}

// answerEach accepts connections, and writes the text after each request on them. It
// counts connections.
func answerEach(t *testing.T, text string) (url string, conns *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conns = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			go func() {
				defer c.Close()
				for err == nil {
					if _, err = c.Read(make([]byte, 4096)); err == nil {
						_, err = io.WriteString(c, text)
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/metrics", conns
}

func rawAnswer(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// What nobody asked for ends the connection, also where the answer is longer than
// the buffer of its head.
func TestLeftoversEndTheConnection(t *testing.T) {
	const value = "DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 5\n"
	for _, body := range []string{value, strings.Repeat("# a comment of 32 characters ....\n", maxFirst/40) + value} {
		for _, more := range []string{"", "x", strings.Repeat("x", 1<<10)} {
			url, conns := answerEach(t, rawAnswer(body)+more)
			r := plainRunner(t, Config{Timeout: time.Minute}, url)
			for i := range int64(3) {
				want := int64(1)
				if more != "" {
					want = i + 1
				}
				if r.scrape(t.Context()); r.state.Err != nil || conns.Load() != want {
					t.Fatalf("%d bytes and %d more, scrape %d over %d connections: %v", len(body), len(more), i, conns.Load(), r.state.Err)
				}
			}
		}
	}
}

// An answer that is there before its reader waits for it is not missed, with
// and without a file descriptor.
func TestAnswersThatAreQuick(t *testing.T) {
	url, conns := answerEach(t, rawAnswer("DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 5\n"))
	for _, dial := range []Dialer{(&net.Dialer{}).DialContext, func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return struct{ net.Conn }{c}, err
	}} {
		r := plainRunner(t, Config{Timeout: time.Minute}, url)
		r.s.deps.Dial = dial
		before := conns.Load()
		for range 1000 {
			if r.scrape(t.Context()); r.state.Err != nil {
				t.Fatal(r.state.Err)
			}
		}
		if n := conns.Load() - before; n != 1 || (r.conn.raw == nil) == (before == 0) {
			t.Errorf("%d connections, file descriptor %v", n, r.conn.raw != nil)
		}
	}
}

// A head that arrives byte by byte ends with the scrape's time, not with its own.
func TestSlowHeads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for err == nil {
			_, err = io.WriteString(c, "H")
			time.Sleep(time.Millisecond) // a server's, not the test's
		}
	}()
	r := plainRunner(t, Config{Timeout: 100 * time.Millisecond}, "http://"+l.Addr().String()+"/metrics")
	if r.scrape(t.Context()); r.state.Err == nil || r.s.Stats().Failures["timeout"] != 1 {
		t.Errorf("error %v, %v", r.state.Err, r.s.Stats().Failures)
	}
}

// A runner that is stopped while its target is silent ends at once.
func TestStopEndsAScrape(t *testing.T) {
	asked := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer srv.Close()
	store := series.New(series.Config{})
	s := New(Config{Interval: 10 * time.Millisecond, Timeout: time.Hour}, Deps{
		Dial: (&net.Dialer{}).DialContext, Store: store, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	s.Sync([]Target{{Name: "a", URL: parse(srv.URL + "/"), Kind: DCGM}})
	<-asked
	cancel()
	<-done
}

// What goes over the wire is what net/http sends.
func TestRequestsAreAsNetHTTPSendsThem(t *testing.T) {
	got := map[string]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got[r.Header.Get("User-Agent")] += fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Host, " ", r.Header, "\n")
		_, _ = io.WriteString(w, "m 1\n")
	}))
	defer srv.Close()
	var asked []string
	for _, dial := range dialers() {
		s := New(Config{Timeout: time.Minute}, Deps{Client: NewClient(), Dial: dial, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
		r := &runner{s: s, phase: newPhase(&s.cfg, "t")}
		r.want.Store(&Target{Name: "t", URL: parse(srv.URL + "/a%20b/metrics?x=%0D%0Ay"), Kind: Pod, Metrics: []page.Metric{{Key: "m", Name: "m"}}})
		clear(got)
		r.scrape(t.Context())
		r.conn.shut()
		asked = append(asked, fmt.Sprint(got))
	}
	if asked[0] != asked[1] || asked[0] == "map[]" {
		t.Errorf("requests differ:\n%s\n%s", asked[0], asked[1])
	}
}
