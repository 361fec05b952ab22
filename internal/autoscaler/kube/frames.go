// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
)

// largeFrame is the size of a watch's event, in bytes, after which the watch is started
// anew. A watch of client-go keeps a buffer of the size of its largest event, up to 2 MiB
// for each kind.
const largeFrame = 128 << 10

// endLargeWatches ends watches after events of large objects. The reflector continues from
// the last event with a new watch.
type endLargeWatches struct{ next http.RoundTripper }

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
		answer.Body = &frames{ReadCloser: answer.Body, listing: listing}
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
}

// bookmark begins a message of the type BOOKMARK, the field 1. A list ends with one.
var bookmark = []byte("\n\x08BOOKMARK")

// Read implements io.Reader. It ends the answer between two events.
func (f *frames) Read(p []byte) (int, error) {
	if f.left == 0 && len(f.head) == 0 && f.large && !f.listing {
		return 0, io.EOF
	}
	n, err := f.ReadCloser.Read(p)
	for p = p[:n]; len(p) > 0; {
		if missing := 4 - len(f.head); missing > 0 {
			f.head, p = append(f.head, p[:min(missing, len(p))]...), p[min(missing, len(p)):]
			if len(f.head) == 4 {
				f.left = int(binary.BigEndian.Uint32(f.head))
				f.large = f.large || f.left > largeFrame
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
