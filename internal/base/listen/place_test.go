// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// served is a server in memory whose clients have addresses.
type served struct {
	*Room
	t     *testing.T
	into  chan net.Conn
	end   func()
	takes atomic.Int64 // nanoseconds of the server itself, for a page
}

func (s *served) Accept() (net.Conn, error) {
	c, ok := <-s.into
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (s *served) Close() error   { s.end(); return nil }
func (s *served) Addr() net.Addr { return &net.TCPAddr{} }

// serve runs f with a server of 8 places and 16 connections in a bubble. Its answers have 1 MiB.
func serve(t *testing.T, f func(*served)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &served{Room: New(Limits{Connections: 16, PerSource: 4, Places: 8, Slack: time.Second}), t: t, into: make(chan net.Conn)}
		s.end = sync.OnceFunc(func() { close(s.into) })
		page := make([]byte, 1<<20)
		mux := http.NewServeMux()
		mux.Handle("/metrics", s.Place(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Duration(s.takes.Load()))
			_, _ = w.Write(page)
		})))
		mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Serve(ctx, s.Of(s), mux, Timeouts{}, slog.New(slog.DiscardHandler)) }()
		f(s)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (s *served) dial(host string) net.Conn {
	ours, theirs := net.Pipe()
	s.into <- from{theirs, host}
	return ours
}

// hold asks for a page and does not read it.
func (s *served) hold(host string) net.Conn { return s.send(host, "") }

// send is hold with a header more.
func (s *served) send(host, header string) net.Conn {
	c := s.dial(host)
	go func() { _, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: a\r\n"+header+"\r\n") }()
	synctest.Wait()
	return c
}

// get reads a page, and returns how long it took; negative: it did not come.
func (s *served) get(host, path string) time.Duration {
	begin := time.Now()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return s.dial(host), nil
	}}}
	res, err := client.Get("http://a" + path)
	if err != nil {
		return -1
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		return -1
	}
	return time.Since(begin)
}

// counts returns the places, the requests that wait, and the connections of a host.
func (s *served) counts(host string) (places, waiting, connections int) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holders), len(s.waiting), len(s.sources[clientOf(host).source])
}

// isClosed reports whether the server has closed a connection on which it had sent nothing that was read.
func isClosed(c net.Conn) bool {
	synctest.Wait()
	_ = c.SetWriteDeadline(time.Now())
	_, err := c.Write(nil)
	if err == nil {
		_, err = c.Write([]byte("x"))
	}
	return err == io.ErrClosedPipe
}

func TestASourceHoldsTwoPlaces(t *testing.T) {
	serve(t, func(s *served) {
		first, second := s.hold("10.0.0.1"), s.hold("10.0.0.1")
		third := s.hold("10.0.0.1")
		if places, waiting, _ := s.counts(""); places != 2 || waiting != 1 || isClosed(first) {
			t.Errorf("%d places, %d wait", places, waiting)
		}
		for range 6 { // whoever comes meanwhile does not wait
			if d := s.get("10.0.0.2", "/metrics"); d != 0 {
				t.Errorf("another source: %v", d)
			}
		}
		time.Sleep(grace)
		if !isClosed(first) || isClosed(second) || isClosed(third) || s.Lost() != 1 {
			t.Errorf("not the first one lost its place: %d", s.Lost())
		}
		time.Sleep(3 * time.Second) // a page of 1 MiB, and a slack of 1 s
		if !isClosed(second) || !isClosed(third) || s.Open() != 0 {
			t.Errorf("readers that miss the deadline stay: %d open", s.Open())
		}
	})
}

// An IPv6 network is one source, but an address that has read well has places of its own.
func TestANetworkIsASource(t *testing.T) {
	serve(t, func(s *served) {
		if d := s.get("fd00::1", "/metrics"); d != 0 {
			t.Errorf("%v", d)
		}
		for i := range 3 {
			s.hold(fmt.Sprintf("fd00::2:%d", i))
		}
		if places, _, _ := s.counts(""); places != 2 {
			t.Errorf("%d places of a network", places)
		}
		if d := s.get("fd00::1", "/metrics"); d != 0 {
			t.Errorf("a neighbour that reads waits for %v", d)
		}
		if d := s.get("fd00:0:0:1::1", "/metrics"); d != 0 {
			t.Errorf("another network waits for %v", d)
		}
		time.Sleep(4 * time.Second)
	})
}

// Many sources together keep out neither who is known, nor who is new, nor health checks.
func TestManySlowSources(t *testing.T) {
	serve(t, func(s *served) {
		if d := s.get("10.0.0.1", "/metrics"); d != 0 {
			t.Errorf("%v", d)
		}
		for round := range 20 {
			for i := range 16 {
				s.hold(fmt.Sprintf("10.0.%d.%d", 1+round, i))
			}
			if places, _, _ := s.counts(""); s.Open() > 16 || places > 8 {
				t.Errorf("%d connections, %d places", s.Open(), places)
			}
			if d := s.get("10.0.0.1", "/metrics"); d < 0 || d > grace {
				t.Errorf("round %d: who is known waits for %v", round, d)
			}
			if d := s.get(fmt.Sprintf("10.1.0.%d", round), "/metrics"); d < 0 || d > 5*grace {
				t.Errorf("round %d: who is new waits for %v", round, d)
			}
			if d := s.get("10.0.0.3", "/healthz"); d < 0 || d > grace {
				t.Errorf("round %d: a health check waits for %v", round, d)
			}
		}
		time.Sleep(10 * time.Second)
	})
}

// Clients that read well first are slow at once when they stop to read.
func TestTurncoats(t *testing.T) {
	serve(t, func(s *served) {
		host := func(i int) string { return fmt.Sprintf("10.0.1.%d", i) }
		for i := range 100 {
			s.get(host(i), "/metrics")
		}
		s.get("10.0.0.1", "/metrics")
		for i := range 100 {
			s.hold(host(i))
			if d := s.get("10.0.0.1", "/metrics"); d < 0 || d > grace {
				t.Errorf("after %d: %v", i, d)
			}
		}
		time.Sleep(10 * time.Second)
	})
}

// A server that is short of CPU takes long for its pages. Its readers are not slow for that, and those that are, are found
// from the first byte on.
func TestASlowServerHasFastReaders(t *testing.T) {
	serve(t, func(s *served) {
		const long = 3 * grace / 2
		s.takes.Store(int64(long))
		known := func(host string) standing {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.known.of(clientOf(host), time.Now())
		}
		if d := s.get("10.0.0.1", "/metrics"); d != long || known("10.0.0.1") != proven {
			t.Errorf("a page after %v, standing %d", d, known("10.0.0.1"))
		}
		for round := range 10 {
			for i := range 16 {
				s.hold(fmt.Sprintf("10.0.%d.%d", 1+round, i))
			}
			if d := s.get("10.0.0.1", "/metrics"); d < 0 || d > 2*long+grace {
				t.Errorf("round %d: who is known waits for %v", round, d)
			}
			if d := s.get(fmt.Sprintf("10.1.0.%d", round), "/metrics"); d < 0 || d > 5*long {
				t.Errorf("round %d: who is new waits for %v", round, d)
			}
		}
		time.Sleep(10 * time.Second)
		s.takes.Store(int64(2 * maxWait))
		first := s.hold("10.0.0.2")
		s.hold("10.0.0.2")
		time.Sleep(maxWait / 2)
		s.hold("10.0.0.2") // waits, and takes the place of the first
		time.Sleep(maxWait/2 + grace)
		if !isClosed(first) || known("10.0.0.2") != fresh {
			t.Errorf("standing %d after the server took %v", known("10.0.0.2"), maxWait)
		}
		time.Sleep(10 * time.Second)
	})
}

// A request whose body does not come holds no place for it, whoever sends it.
func TestBodiesAreNotAwaited(t *testing.T) {
	serve(t, func(s *served) {
		host := func(i int) string { return fmt.Sprintf("10.0.1.%d", i) }
		for i := range 14 {
			s.get(host(i), "/metrics")
		}
		for i := range 14 {
			s.send(host(i), "Content-Length: 100000\r\n")
		}
		for i := range 8 {
			if d := s.get(fmt.Sprintf("10.2.0.%d", i), "/metrics"); d < 0 || d > maxWait {
				t.Errorf("who is new waits for %v", d)
			}
		}
		time.Sleep(10 * time.Second)
	})
}

// Connections that never send a request give way to others.
func TestIdleConnections(t *testing.T) {
	serve(t, func(s *served) {
		for i := range 200 {
			s.dial(fmt.Sprintf("10.0.1.%d", i))
			synctest.Wait()
			if s.Open() > 16 {
				t.Errorf("%d open", s.Open())
			}
		}
		if d := s.get("10.0.0.1", "/metrics"); d < 0 || d > minLife {
			t.Errorf("%v", d)
		}
		for range 9 {
			s.dial("10.0.2.1")
		}
		if _, _, n := s.counts("10.0.2.1"); n != 4 {
			t.Errorf("a source has %d connections, want 4", n)
		}
		time.Sleep(time.Minute)
	})
}

// What is known about clients is bounded, and ends.
func TestStandingsAreBounded(t *testing.T) {
	s, now := newStandings(), time.Unix(0, 0)
	for i := range 3 * maxStandings {
		c := clientOf(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&0xff, i&0xff))
		if i%2 == 0 {
			s.wasFast(c, now)
		} else {
			s.wasSlow(c, true, now)
		}
	}
	if len(s.proven) > maxStandings || len(s.slow) > maxStandings {
		t.Errorf("%d proven, %d slow", len(s.proven), len(s.slow))
	}
	f := func(after time.Duration, want standing, do func(client)) {
		t.Helper()
		c := clientOf("[fd00::1]:9")
		do(c)
		if got := s.of(c, now.Add(after)); got != want {
			t.Errorf("%v later: %d, want %d", after, got, want)
		}
	}
	none := func(client) {}
	f(0, fresh, none)
	f(0, proven, func(c client) { s.wasFast(c, now) })
	f(provenFor, fresh, none)
	f(0, fresh, func(c client) { s.wasSlow(c, false, now) })
	f(0, slow, func(c client) { s.wasSlow(c, false, now) })
	f(0, slow, func(c client) { s.wasFast(c, now) })
	f(slowFor, fresh, none)
	if c := clientOf("127.0.0.1"); c.source.String() != "127.0.0.1/32" {
		t.Error(c.source)
	}
	if c := clientOf("pipe"); c.addr.IsValid() || s.of(c, now) != fresh {
		t.Errorf("%+v", c)
	}
}
