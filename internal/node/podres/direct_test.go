// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Many calls go over one connection, the flow-control windows included: each
// answer here has more than a sixteenth of a connection's first window.
func TestDirectCalls(t *testing.T) {
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "p", Namespace: "n", Containers: []*podresources.ContainerResources{
			{Name: string(bytes.Repeat([]byte("c"), 5000)), Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-a")}},
		},
	}}}}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	stop := k.serve(t, socket)
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Allocations(t.Context()); err != nil { // which learns how a success ends
		t.Fatal(err)
	}
	for i := range 100 {
		answer, ending, err := c.caller.directly(t.Context(), list, maxAnswer)
		if err != nil || ending != "" {
			t.Fatalf("call %d: %q, %v", i, ending, err)
		}
		if pods, err := parseList(answer); err != nil || len(pods) != 1 || len(pods[0].containers[0].name) != 5000 {
			t.Fatalf("call %d: %v, %v", i, pods, err)
		}
	}
	if n := k.conns.Load(); n != 2 { // the first call's second one was net/http's
		t.Errorf("%d connections", n)
	}
	stop()
	if _, _, err := c.caller.directly(t.Context(), list, maxAnswer); err == nil {
		t.Error("a server that is gone answers")
	}
	if c.caller.direct != nil {
		t.Error("the connection to a server that is gone is kept")
	}
}

// answering is a direct connection to a server that answers with these bytes and
// then is silent.
func answering(t testing.TB, answer []byte) *direct {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		_, _ = theirs.Write(answer)
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
		<-done
	})
	return newDirect(ours)
}

// stream is that of the first call.
const stream = 3

func message(payload string) []byte {
	return append([]byte{0, 0, 0, 0, byte(len(payload))}, payload...)
}

func trailers() []byte {
	return appendFrame(nil, frameHeaders, flagEndStream|flagEndHeaders, stream, []byte("ok"))
}

func TestDirectFrames(t *testing.T) {
	f := func(what, want string, frames ...[]byte) {
		t.Helper()
		d := answering(t, bytes.Join(frames, nil))
		got, err := d.call(t.Context(), list, 8)
		if ok := want != ""; (err == nil) != ok || ok && string(got) != string(message(want)) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	data := func(flags byte, b []byte) []byte { return appendFrame(nil, frameData, flags, stream, b) }
	headers := appendFrame(nil, frameHeaders, flagEndHeaders, stream, []byte("any"))
	padded := append([]byte{3}, message("m")...)
	f("an answer", "m", headers, data(0, message("m")), trailers())
	f("in pieces", "12", headers, data(0, message("12")[:3]), data(0, message("12")[3:]), trailers())
	f("with padding", "m", headers, data(flagPadded, append(padded, 0, 0, 0)), trailers())
	f("with others' frames", "m", appendFrame(nil, frameSettings, 0, 0, nil), appendFrame(nil, framePing, 0, 0, make([]byte, 8)), headers,
		appendFrame(nil, frameData, 0, stream-2, []byte("x")), appendFrame(nil, frameWindow, 0, 0, make([]byte, 4)), data(0, message("m")), trailers())
	f("too long", "", headers, data(0, message("123456789")), trailers())
	f("without trailers", "", headers, data(flagEndStream, message("m")))
	f("too much padding", "", headers, data(flagPadded, []byte{9, 1}), trailers())
	f("a reset", "", headers, appendFrame(nil, frameReset, 0, stream, make([]byte, 4)))
	f("a push", "", appendFrame(nil, framePush, 0, stream, make([]byte, 4)))
	f("an end before the call", "", appendFrame(nil, frameGoAway, 0, 0, make([]byte, 8)))
	f("HTTP/1.1", "", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
}

// A server that is silent is waited for until the context is done.
func TestDirectCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := answering(t, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := d.call(ctx, list, 8); err == nil || !errors.Is(err, context.DeadlineExceeded) && time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Whatever a server sends, a call ends, and gives no more than was allowed.
func FuzzDirect(f *testing.F) {
	f.Add(append(appendFrame(nil, frameData, 0, stream, message("m")), trailers()...))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &direct{conn: discard{}, stream: 1, r: newReader(b)}
		if got, err := d.call(t.Context(), list, 8); err == nil && len(got) > 8+prefixLength {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// discard is a connection that takes what is written.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error)   { return len(b), nil }
func (discard) SetDeadline(_ time.Time) error { return nil }

func newReader(b []byte) *bufio.Reader { return bufio.NewReaderSize(bytes.NewReader(b), maxFrame) }

func BenchmarkAllocations(b *testing.B) {
	k := &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "p", Namespace: "n", Containers: []*podresources.ContainerResources{
			{Name: "c", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-a")}},
		},
	}}}}
	socket := filepath.Join(b.TempDir(), "kubelet.sock")
	k.serve(b, socket)
	c, err := New(socket)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Allocations(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
