// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// receiveBuffer is the most bytes of an answer that wait to be read. With Go's 4 MiB, the
// watches together keep more than 50 MiB of large objects while one is decoded.
const receiveBuffer = 256 << 10

// boundBuffers sets receiveBuffer. It must be called before the first request.
func boundBuffers(rt http.RoundTripper) {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: receiveBuffer}
			return
		case utilnet.RoundTripperWrapper:
			rt = t.WrappedRoundTripper()
		default:
			return
		}
	}
}

// turn lets one large object be decoded at a time: while it is decoded, it takes several
// times its size.
type turn chan struct{}

// maxTurn is the longest wait for a turn. An object whose reader is slow delays others by
// that much at most.
const maxTurn = time.Second

func newTurn() turn { return make(turn, 1) }

// take waits until no other large object is decoded. The result ends the turn.
func (t turn) take(ctx context.Context) (end func()) {
	timer := time.NewTimer(maxTurn)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return func() { <-t }
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// largeFrame is the size of a watch's event, in bytes, after which the watch is started
// anew. A watch of client-go keeps a buffer of the size of its largest event, up to 2 MiB
// for each kind.
const largeFrame = 128 << 10

// endLargeWatches ends watches after events of large objects. The reflector continues from
// the last event with a new watch.
type endLargeWatches struct {
	next http.RoundTripper
	turn turn
}

// WrappedRoundTripper lets client-go cancel a request that times out.
func (e endLargeWatches) WrappedRoundTripper() http.RoundTripper { return e.next }

// RoundTrip implements http.RoundTripper.
func (e endLargeWatches) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := e.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	q, kind := r.URL.Query(), answer.Header.Get("Content-Type")
	listing, version := q.Get("sendInitialEvents") == "true", q.Get("resourceVersion")
	fromStart := !listing && (version == "" || version == "0") // would begin with all objects each time
	if strings.Contains(kind, "protobuf") && strings.Contains(kind, "stream=watch") && !fromStart {
		answer.Body = &frames{ReadCloser: answer.Body, listing: listing, turn: func() func() { return e.turn.take(r.Context()) }}
	}
	return answer, nil
}

// frames are the events of a watch: each is its length in four bytes, and a message.
type frames struct {
	io.ReadCloser
	listing bool   // the events are still a list, which is only of use as a whole
	large   bool   // an event was large
	head    []byte // the first bytes of the event that is being read, its length included
	left    int    // bytes of the event that follow, without its length

	turn func() (end func())

	mu     sync.Mutex
	end    func() // ends the turn of the large event that was read; nil: there is none
	closed bool
}

// takeTurn waits for the turn of a large event.
func (f *frames) takeTurn() {
	f.endTurn()
	end := f.turn()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		end()
		return
	}
	f.end = end
}

// endTurn ends the turn of the last event.
func (f *frames) endTurn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		f.end()
		f.end = nil
	}
}

// Close implements io.Closer. It may be called during a Read.
func (f *frames) Close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.endTurn()
	return f.ReadCloser.Close()
}

// bookmark begins a message of the type BOOKMARK, the field 1. A list ends with one.
var bookmark = []byte("\n\x08BOOKMARK")

// Read implements io.Reader. It ends the answer between two events.
func (f *frames) Read(p []byte) (int, error) {
	if f.left == 0 && len(f.head) == 0 {
		f.endTurn() // the last event has been decoded
		if f.large && !f.listing {
			return 0, io.EOF
		}
	}
	n, err := f.ReadCloser.Read(p)
	for p = p[:n]; len(p) > 0; {
		if missing := 4 - len(f.head); missing > 0 {
			f.head, p = append(f.head, p[:min(missing, len(p))]...), p[min(missing, len(p)):]
			if len(f.head) == 4 {
				f.left = int(binary.BigEndian.Uint32(f.head))
				if f.left > largeFrame {
					f.large = true
					f.takeTurn()
				}
			}
			if len(f.head) < 4 || f.left > 0 {
				continue
			}
		}
		used := min(f.left, len(p))
		if missing := 4 + len(bookmark) - len(f.head); missing > 0 {
			f.head = append(f.head, p[:min(missing, used)]...)
		}
		if f.left, p = f.left-used, p[used:]; f.left == 0 {
			f.listing = f.listing && !bytes.HasPrefix(f.head[4:], bookmark)
			f.head = f.head[:0]
		}
	}
	return n, err
}
