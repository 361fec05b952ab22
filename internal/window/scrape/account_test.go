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

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/page/pagetest"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// instantConn answers each request with one page, in no time.
type instantConn struct {
	net.Conn
	answer []byte
	left   bytes.Reader
}

func (c *instantConn) Write(b []byte) (int, error) {
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
func TestTheAccountWithLabelsIsTrue(t *testing.T) { testAccount(t, page.NewNames(true, nil)) }

func testAccount(t *testing.T, names *page.Names) {
	const targets = 500
	answers := map[string][]byte{}
	list := make([]Target, targets)
	for i := range list {
		page := pagetest.Node(i, 4)
		address := fmt.Sprintf("10.0.%d.%d:9400", i/250, i%250+1)
		answers[address] = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(page)), page...)
		list[i] = Target{Name: "agent/gpupilot-system/agent-" + strconv.Itoa(i), Kind: Agent, URL: parse("http://" + address + "/metrics"), Labels: series.TargetLabels{Node: address}}
	}
	synctest.Test(t, func(t *testing.T) {
		before := heap()
		store := series.New(series.Config{})
		dial := func(_ context.Context, _, address string) (net.Conn, error) {
			return &instantConn{answer: answers[address]}, nil
		}
		s := New(Config{}, Deps{Dial: dial, Store: store, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		s.SetNames(names)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		s.Sync(list)
		pass(3 * time.Second)
		used, st := float64(heap()-before), store.Stats()
		t.Logf("%d targets: %.1f KiB of heap each, %.1f KiB in the account, %.1f KiB of them samples",
			st.Targets, used/targets/1024, float64(st.Memory)/targets/1024, float64(st.Bytes)/targets/1024)
		if account := float64(st.Memory); st.Samples < 10*targets || used > account || used < account*2/3 {
			t.Errorf("%d samples; the heap has %.1f MiB, the account says %.1f", st.Samples, used/(1<<20), account/(1<<20))
		}
		cancel()
		<-done
		runtime.KeepAlive(list)
	})
}
