// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// instantConn answers each request with one page, in no time. The page's time is now if
// the answer has one.
type instantConn struct {
	net.Conn
	answer []byte
	left   bytes.Reader
}

func (c *instantConn) Write(b []byte) (int, error) {
	const stamp = "\ngpupilot_collection_timestamp_seconds "
	if at := bytes.Index(c.answer, []byte(stamp)); at >= 0 {
		digits := c.answer[at+len(stamp):]
		digits = digits[:bytes.IndexByte(digits, '\n')]
		copy(digits, fmt.Sprintf("%0*.6f", len(digits), float64(time.Now().UnixMicro())/1e6))
	}
	c.left.Reset(c.answer)
	return len(b), nil
}

func (c *instantConn) Read(b []byte) (int, error)  { return c.left.Read(b) }
func (c *instantConn) Close() error                { return nil }
func (c *instantConn) SetDeadline(time.Time) error { return nil }

// What the account says of a fleet is what the fleet takes, before its windows
// fill and without what the kernel has.
func TestTheAccountIsTrue(t *testing.T) { testAccount(t, nil) }

// The same with the labels of all series.
func TestTheAccountWithLabelsIsTrue(t *testing.T) { testAccount(t, page.NewNames(true, nil, nil)) }

func testAccount(t *testing.T, names *page.Names) {
	const targets = 500
	list, dial := quickFleet(targets)
	synctest.Test(t, func(t *testing.T) {
		before := heap()
		store := series.New(series.Config{})
		s := New(Config{}, Deps{Dial: dial, Store: store, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		s.SetNames(names)
		runFleet(t, s, list)
		used, st := float64(heap()-before), store.Stats()
		t.Logf("%d targets: %.1f KiB of heap each, %.1f KiB in the account, %.1f KiB of them samples",
			st.Targets, used/targets/1024, float64(st.Memory)/targets/1024, float64(st.Bytes)/targets/1024)
		if account := float64(st.Memory); st.Samples < 10*targets || used > account || used < account*2/3 {
			t.Errorf("%d samples; the heap has %.1f MiB, the account says %.1f", st.Samples, used/(1<<20), account/(1<<20))
		}
		runtime.KeepAlive(list)
	})
}

// The memory of labels that no query reads any more is free with the next page, not when
// the window has passed. The series of wanted names keep their past.
func TestLabelsThatNobodyReadsAreFreeAtOnce(t *testing.T) {
	const targets = 20
	const name = "DCGM_FI_DEV_GPU_UTIL"
	synctest.Test(t, func(t *testing.T) {
		sizes := map[bool]int64{}
		for _, before := range []bool{true, false} { // all series, before the named ones
			list, dial := quickFleet(targets)
			store := series.New(series.Config{})
			s := New(Config{}, Deps{Dial: dial, Store: store, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
			s.SetNames(page.NewNames(before, []string{name}, nil))
			started := time.Now()
			runFleet(t, s, list)
			s.SetNames(page.NewNames(false, []string{name}, nil))
			pass(3 * time.Second)
			for _, target := range list {
				for _, x := range store.Target(target.Name, target.Labels).Exposures(nil) {
					set, ok := x.Labels.(labels.Labels)
					if !ok {
						t.Fatalf("labels are %T", x.Labels)
					}
					if series := set.Get(model.MetricNameLabel); series == name && x.From > started.Add(2*time.Second).UnixNano() {
						t.Fatalf("%v begins at %v, after the names had changed", set, time.Unix(0, x.From))
					}
					if x.Until != series.Open {
						t.Fatalf("%v has ended and is kept", set)
					}
				}
			}
			sizes[before] = store.Stats().Memory - store.Stats().Bytes
		}
		if all, some := sizes[true], sizes[false]; all > some+some/4 {
			t.Errorf("beside samples, %d bytes are left where %d are in use", all, some)
		}
	})
}

// quickFleet returns targets and the connections that answer for them.
func quickFleet(n int) ([]Target, Dialer) {
	answers := map[string][]byte{}
	list := make([]Target, n)
	for i := range list {
		page := pagetest.Node(i, 4)
		address := fmt.Sprintf("10.0.%d.%d:9400", i/250, i%250+1)
		answers[address] = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(page)), page...)
		list[i] = Target{Name: "agent/gpupilot-system/agent-" + strconv.Itoa(i), Kind: Agent, URL: parse("http://" + address + "/metrics"), Labels: series.TargetLabels{Node: address}}
	}
	return list, func(_ context.Context, _, address string) (net.Conn, error) {
		return &instantConn{answer: answers[address]}, nil
	}
}

// runFleet scrapes the targets for 3 s, and on until the test ends.
func runFleet(t *testing.T, s *Scraper, list []Target) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	s.Sync(list)
	pass(3 * time.Second)
}
