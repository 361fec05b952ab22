// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// attack is what one hostile connection does once it is open, until ctx ends or the agent closes it.
type attack struct {
	name        string
	sources     int // addresses that connect
	connections int // in total
	does        func(ctx context.Context, c net.Conn)
}

// attacks are readers and writers that hold what they have.
var attacks = []attack{
	{"16 readers of one source that never read /metrics", 1, 16, asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", never)},
	{"400 readers of 200 sources that never read /metrics", 200, 400, asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", never)},
	{"2000 readers of 200 sources that never read /api/v1/gpus", 200, 2000, asks("GET /api/v1/gpus HTTP/1.1\r\nHost: a\r\n\r\n", never)},
	{"400 readers of one byte a second", 200, 400, asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", trickle)},
	{"400 half-closed readers", 200, 400, asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", halfClose)},
	{"400 requests without an end", 200, 400, asks("GET /metrics HTTP/1.1\r\nHost: a\r\nX: ", slowly)},
	{"400 bodies without an end", 200, 400, asks("GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", slowly)},
	{"400 connections that do nothing", 200, 400, asks("", never)},
	{"400 connections that stay after a health check", 200, 400, asks("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", never)},
	{"200 sources that read well, then never", 200, 400, turncoat},
	{"200 requests at a time for health checks that are not read", 50, 200, pipelined},
}

func asks(request string, then func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		if _, err := io.WriteString(c, request); err == nil {
			then(ctx, c)
		}
	}
}

// never waits until the agent closes the connection. It peeks, so that it reads nothing.
func never(ctx context.Context, c net.Conn) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	each(ctx, 100*time.Millisecond, func() bool {
		var n int
		var got error
		if err := raw.Control(func(fd uintptr) {
			n, _, got = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}); err != nil {
			return false
		}
		return n > 0 || errors.Is(got, syscall.EAGAIN)
	})
}

func trickle(ctx context.Context, c net.Conn) {
	each(ctx, time.Second, func() bool {
		_, err := c.Read(make([]byte, 1))
		return err == nil
	})
}

func slowly(ctx context.Context, c net.Conn) {
	each(ctx, time.Second, func() bool {
		_, err := c.Write([]byte("x"))
		return err == nil
	})
}

func halfClose(ctx context.Context, c net.Conn) {
	_ = c.(*net.TCPConn).CloseWrite()
	never(ctx, c)
}

// turncoat reads three pages as a scraper does, then no more.
func turncoat(ctx context.Context, c net.Conn) {
	for range 3 {
		res, err := (&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: c.LocalAddr().(*net.TCPAddr).IP}}).DialContext(ctx, "tcp", c.RemoteAddr().String())
		}, DisableKeepAlives: true}).RoundTrip(must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a/metrics", nil)))
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", never)(ctx, c)
}

func pipelined(ctx context.Context, c net.Conn) {
	each(ctx, 100*time.Millisecond, func() bool {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		return err == nil
	})
}

func must(r *http.Request, err error) *http.Request {
	if err != nil {
		panic(err)
	}
	return r
}

// each calls f at an interval until it returns false or ctx ends.
func each(ctx context.Context, every time.Duration, f func() bool) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// network is a link between this machine and a network namespace, as between two nodes: loopback's buffers take a whole
// page, and hide a reader that does not read.
type network struct{ namespace, agent, prefix string }

func newNetwork(t *testing.T) network {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and ip (Debian's package iproute2) for a network namespace")
	}
	id := os.Getpid() % 0x10000
	n := network{fmt.Sprintf("gpupilot-%d", id), "", fmt.Sprintf("10.%d.%d", 128+id>>8&0x7f, id&0xff)}
	n.agent = n.prefix + ".1"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("ip %v: %v: %s", args, err, out)
		}
	}
	host, inside := fmt.Sprintf("gpua%d", id), fmt.Sprintf("gpub%d", id)
	ip("netns", "add", n.namespace)
	t.Cleanup(func() {
		_ = exec.Command("ip", "link", "del", host).Run()
		if out, err := exec.Command("ip", "netns", "del", n.namespace).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	ip("link", "add", host, "mtu", "1500", "type", "veth", "peer", "name", inside, "mtu", "1500", "netns", n.namespace)
	ip("netns", "exec", n.namespace, "ip", "address", "add", n.agent+"/24", "dev", inside)
	ip("netns", "exec", n.namespace, "ip", "link", "set", "lo", "up")
	ip("netns", "exec", n.namespace, "ip", "link", "set", inside, "up")
	ip("link", "set", host, "up")
	for i := 2; i < 255; i++ {
		ip("address", "add", fmt.Sprintf("%s.%d/24", n.prefix, i), "dev", host)
	}
	return n
}

// dialer connects from address i of the network.
func (n network) dialer(i int) *net.Dialer {
	return &net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("%s.%d", n.prefix, i))}}
}

// run keeps the connections of an attack open until ctx ends.
func (x attack) run(ctx context.Context, n network, target string) {
	var all sync.WaitGroup
	defer all.Wait()
	for i := range x.connections {
		all.Go(func() {
			dial := n.dialer(10 + i%x.sources)
			dial.Control = func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
			}
			each(ctx, 250*time.Millisecond, func() bool {
				c, err := dial.DialContext(ctx, "tcp", target)
				if err != nil {
					return true
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				x.does(ctx, c)
				_ = c.Close()
				return true
			})
		})
	}
}

const (
	scrapes    = 40
	maxReaders = 40 << 20 // bytes of memory beyond the idle agent's
)

// Slow clients, from one source or from 200, keep out neither the controller, nor a Prometheus that is new, nor the
// kubelet's probes, and cost little memory.
func TestSlowReadersKeepNobodyOut(t *testing.T) {
	n := newNetwork(t)
	for i, x := range attacks {
		t.Run(x.name, func(t *testing.T) {
			target := fmt.Sprintf("%s:%d", n.agent, 9400+i)
			a, err := agentrig.Start(t.Context(), agentrig.Config{
				Runner: []string{"ip", "netns", "exec", n.namespace}, Binary: filepath.Join(bin, "gpupilot-agent"),
				Args: []string{"--backend", "sim", "--sim-gpus", "32", "--address", target},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := a.Stop(); err != nil {
					t.Error(err)
				}
			}()
			get := func(c *http.Client, path string) error {
				res, err := c.Get(a.URL + path)
				if err != nil {
					return err
				}
				defer func() { _ = res.Body.Close() }()
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					return err
				}
				if res.StatusCode != http.StatusOK {
					return errors.New(res.Status)
				}
				return nil
			}
			client := func(i int, keep bool) *http.Client {
				return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: n.dialer(i).DialContext, DisableKeepAlives: !keep}}
			}
			controller, prometheus, kubelet := client(2, true), client(3, false), client(4, false)
			for get(controller, "/metrics") != nil { // the first collection
				select {
				case <-time.After(50 * time.Millisecond):
				case <-t.Context().Done():
					t.Fatal("no page")
				}
			}
			idle, err := a.RSS()
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(t.Context())
			attacked := make(chan struct{})
			go func() { defer close(attacked); x.run(ctx, n, target) }()
			defer func() { end(); <-attacked }()
			failed, most, longest := map[string]int{}, uint64(0), time.Duration(0)
			count := func(who string, err error) {
				if err != nil {
					failed[who]++
					t.Logf("%s: %v", who, err)
				}
			}
			for range scrapes {
				time.Sleep(100 * time.Millisecond) // the load of an attack is its own
				begin := time.Now()
				count("controller", get(controller, "/metrics"))
				longest = max(longest, time.Since(begin))
				count("prometheus", get(prometheus, "/metrics"))
				count("kubelet", get(kubelet, "/healthz"))
				rss, err := a.RSS()
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, rss)
			}
			t.Logf("controller %d, Prometheus %d, kubelet %d of %d; memory %.1f MiB, idle %.1f; the longest scrape took %v", scrapes-failed["controller"],
				scrapes-failed["prometheus"], scrapes-failed["kubelet"], scrapes, float64(most)/(1<<20), float64(idle)/(1<<20), longest.Round(time.Millisecond))
			if len(failed) > 0 {
				t.Errorf("failed: %v of %d", failed, scrapes)
			}
			if most > idle+maxReaders {
				t.Errorf("memory grew from %d to %d bytes", idle, most)
			}
		})
	}
}
