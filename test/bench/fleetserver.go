// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

const (
	fleetGPUs   = 8
	fleetFields = 4
	// fleetTick is the agents' interval, fleetTook how long they say that a
	// collection takes.
	fleetTick = time.Second
	fleetTook = 5 * time.Millisecond
)

// agentAddress is the loopback address of the i-th simulated agent. Linux routes
// all of 127.0.0.0/8 to one listener, which serves all agents at one port.
func agentAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(20 + i/62500), byte(1 + i/250%250), byte(1 + i%250)})
}

// agentIndex is the inverse of agentAddress.
func agentIndex(a netip.Addr) int {
	b := a.Unmap().As4()
	return (int(b[1])-20)*62500 + (int(b[2])-1)*250 + int(b[3]) - 1
}

// simulatedAgent is one agent's page. Everything on it has a fixed width, so
// that a collection writes in place.
type simulatedAgent struct {
	mu     sync.Mutex
	phase  time.Duration
	tick   int64
	answer []byte
	stamp  []byte // within answer
	values []fixedValue
}

// fixedValue is a number's place in the answer, and its range.
type fixedValue struct {
	text     []byte
	low      float64
	high     float64
	decimals int
}

// fleetValues are the fields of the simulated agents, with ranges in which all
// values have the same number of characters.
var fleetValues = [fleetFields]struct {
	name      string
	low, high float64
	decimals  int
}{
	{"DCGM_FI_DEV_GPU_UTIL", 10, 99, 2},
	{"DCGM_FI_DEV_FB_USED", 10000, 80000, 0},
	{"DCGM_FI_DEV_POWER_USAGE", 100, 699, 3},
	{"DCGM_FI_DEV_GPU_TEMP", 30, 89, 0}, // these four the controller reads always
}

func newSimulatedAgent(i int) *simulatedAgent {
	a := &simulatedAgent{phase: time.Duration(rand.Int64N(int64(fleetTick)))}
	var page bytes.Buffer
	fmt.Fprintf(&page, "# HELP gpupilot_collection_timestamp_seconds When the values were collected.\n# TYPE gpupilot_collection_timestamp_seconds gauge\n")
	fmt.Fprintf(&page, "gpupilot_collection_timestamp_seconds ")
	stamp := page.Len()
	fmt.Fprintf(&page, "1800000000.000000\ngpupilot_collection_interval_seconds %v\ngpupilot_collection_duration_seconds %v\n",
		fleetTick.Seconds(), fleetTook.Seconds())
	uuid := func(g int) string { return fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", i, g) }
	for g := range fleetGPUs {
		fmt.Fprintf(&page, "gpupilot_gpu_allocation_info{uuid=%q,namespace=\"ns-%d\",pod=\"pod-%d-%d\",container=\"server\",replica=\"\"} 1\n", uuid(g), i%100, i, g)
	}
	var at []int
	for _, f := range fleetValues {
		fmt.Fprintf(&page, "# HELP %s What this is (in its unit).\n# TYPE %s gauge\n", f.name, f.name)
		for g := range fleetGPUs {
			fmt.Fprintf(&page, `%s{gpu="%d",UUID=%q,pci_bus_id="00000000:%02X:00.0",device="nvidia%d",modelName="NVIDIA H200",Hostname="%s",container="server",namespace="ns-%d",pod="pod-%d-%d"} `,
				f.name, g, uuid(g), g, g, fleetNode(i), i%100, i, g)
			at = append(at, page.Len())
			fmt.Fprintf(&page, "%.*f\n", f.decimals, f.low)
		}
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nDate: Sun, 22 Nov 2026 09:00:00 GMT\r\nContent-Length: %d\r\n\r\n", page.Len())
	a.answer = append([]byte(head), page.Bytes()...)
	a.stamp = a.answer[len(head)+stamp : len(head)+stamp+len("1800000000.000000")]
	for n, from := range at {
		f := fleetValues[n/fleetGPUs]
		from += len(head)
		a.values = append(a.values, fixedValue{a.answer[from : from+len(strconv.FormatFloat(f.low, 'f', f.decimals, 64))], f.low, f.high, f.decimals})
	}
	return a
}

// fleetNode is the name of the i-th simulated agent's node.
func fleetNode(i int) string { return fmt.Sprintf("node-%05d", i) }

// write answers one request with what the agent collected last.
func (a *simulatedAgent) write(w io.Writer, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := now.Add(-a.phase - fleetTook)
	if tick := at.UnixNano() / int64(fleetTick); tick != a.tick {
		a.tick = tick
		collected := time.Unix(0, tick*int64(fleetTick)).Add(a.phase)
		var buf [32]byte
		copy(a.stamp, strconv.AppendFloat(buf[:0], float64(collected.UnixMicro())/1e6, 'f', 6, 64))
		for _, v := range a.values {
			copy(v.text, strconv.AppendFloat(buf[:0], v.low+rand.Float64()*(v.high-v.low), 'f', v.decimals, 64))
		}
	}
	_, err := w.Write(a.answer)
	return err
}

// serveFleet answers for n agents until ctx ends. It does no more with HTTP than
// the answer needs: net/http in the server would take the cores from the client.
func serveFleet(ctx context.Context, cfg config, out io.Writer) error {
	agents := make([]*simulatedAgent, cfg.fleet)
	for i := range agents {
		agents[i] = newSimulatedAgent(i)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	fmt.Fprintf(out, "msg=serving address=127.0.0.1:%d\n", l.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed): // by the end of ctx
			return ctx.Err()
		case err != nil:
			return err
		}
		i := agentIndex(conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr())
		if i < 0 || i >= len(agents) {
			_ = conn.Close()
			continue
		}
		go answerAll(conn, agents[i])
	}
}

// answerAll answers the requests of one connection.
func answerAll(conn net.Conn, a *simulatedAgent) {
	defer func() { _ = conn.Close() }()
	var buf [2048]byte
	held := 0
	for {
		n, err := conn.Read(buf[held:])
		if err != nil {
			return // the client is gone
		}
		held += n
		if !bytes.HasSuffix(buf[:held], []byte("\r\n\r\n")) {
			if held == len(buf) {
				return
			}
			continue
		}
		held = 0
		if err := a.write(conn, time.Now()); err != nil && !errors.Is(err, net.ErrClosed) {
			return
		}
	}
}
