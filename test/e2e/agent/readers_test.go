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
	"path/filepath"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/readers"
)

// attacks are readers and writers that hold what they have.
func attacks(l *readers.Link) []readers.Attack {
	metrics, health := "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
	f := func(name string, sources, connections int, does readers.Client) readers.Attack {
		return readers.Attack{Name: name, Sources: sources, Connections: connections, Does: does}
	}
	return []readers.Attack{
		f("16 readers of one source that never read /metrics", 1, 16, readers.Asks(metrics, readers.Never)),
		f("400 readers of 200 sources that never read /metrics", 200, 400, readers.Asks(metrics, readers.Never)),
		f("2000 readers of 200 sources that never read /api/v1/gpus", 200, 2000, readers.Asks("GET /api/v1/gpus HTTP/1.1\r\nHost: a\r\n\r\n", readers.Never)),
		f("400 readers of one byte a second", 200, 400, readers.Asks(metrics, readers.Trickle)),
		f("400 half-closed readers", 200, 400, readers.Asks(metrics, readers.HalfClose)),
		f("400 requests without an end", 200, 400, readers.Asks("GET /metrics HTTP/1.1\r\nHost: a\r\nX: ", readers.Slowly)),
		f("400 bodies without an end", 200, 400, readers.Asks("GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", readers.Slowly)),
		f("400 connections that do nothing", 200, 400, readers.Asks("", readers.Never)),
		f("400 connections that stay after a health check", 200, 400, readers.Asks(health, readers.Never)),
		f("200 sources that read well, then never", 200, 400, turncoat(l)),
		f("200 requests at a time for health checks that are not read", 50, 200, readers.Repeats(health)),
	}
}

// turncoat reads three pages as a scraper does, then no more.
func turncoat(l *readers.Link) readers.Client {
	return func(ctx context.Context, c net.Conn) {
		from := int(c.LocalAddr().(*net.TCPAddr).IP.To4()[3])
		for range 3 {
			if res, err := get(ctx, &http.Client{Transport: &http.Transport{DialContext: l.From(from), DisableKeepAlives: true}}, "http://"+c.RemoteAddr().String()+"/metrics"); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		}
		readers.Asks("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", readers.Never)(ctx, c)
	}
}

func get(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

const (
	scrapes    = 40
	maxReaders = 40 << 20 // bytes of memory beyond the idle agent's
)

// Slow clients, from one source or from 200, keep out neither the controller, nor a Prometheus that is new, nor the
// kubelet's probes, and cost little memory.
func TestSlowReadersKeepNobodyOut(t *testing.T) {
	l := readers.NewLink(t)
	for i, x := range attacks(l) {
		t.Run(x.Name, func(t *testing.T) {
			target := fmt.Sprintf("%s:%d", l.Host, 9400+i)
			a, err := agentrig.Start(t.Context(), agentrig.Config{
				Binary: filepath.Join(bin, "gpupilot-agent"), Args: []string{"--backend", "sim", "--sim-gpus", "32", "--address", target},
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
				res, err := get(t.Context(), c, a.URL+path)
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
				return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: l.From(i), DisableKeepAlives: !keep}}
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
			go func() { defer close(attacked); x.Run(ctx, l, target) }()
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
