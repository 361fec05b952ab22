// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A watch ends after a large event, and a list is read to its end, however its bytes
// arrive. What is no watch is not touched.
func TestLargeWatchesEnd(t *testing.T) {
	message := func(kind string, size int) string {
		return "\n" + string(rune(len(kind))) + kind + strings.Repeat("BOOKMARK", size/8)
	}
	added, large, end := message("ADDED", 80), message("MODIFIED", largeFrame+8), message("BOOKMARK", 0)
	version := "watch=true&resourceVersion=7"
	f := func(kind string, listing bool, events []string, want int) {
		t.Helper()
		var body []byte
		sum := 0
		for i, e := range events {
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(e))), e...)
			if i < want {
				sum = len(body)
			}
		}
		for name, split := range map[string]func(io.Reader) io.Reader{"as they are": func(r io.Reader) io.Reader { return r }, "one by one": iotest.OneByteReader, "half": iotest.HalfReader} {
			address := &url.URL{Path: "/api/v1/pods", RawQuery: version}
			if listing {
				address.RawQuery = "watch=true&sendInitialEvents=true"
			}
			answer, err := endLargeWatches{roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(split(bytes.NewReader(body)))}, nil
			})}.RoundTrip(&http.Request{URL: address})
			if err != nil {
				t.Fatal(err)
			}
			got := readFrames(t, answer.Body, kind == "text/plain")
			if len(got) != sum {
				t.Errorf("%v bytes %s: %d of %d are read, want %d", kind, name, len(got), len(body), sum)
			}
		}
	}
	const watch = "application/vnd.kubernetes.protobuf;stream=watch"
	f(watch, false, []string{added, added, end, added}, 4)
	f(watch, false, []string{added, large, added, large}, 2)
	f(watch, true, []string{added, large, added, large, added, end, added}, 6)
	f(watch, true, []string{added, end, added, large, added}, 4)
	f(watch, true, []string{large, "", added}, 3)
	version = "watch=true&resourceVersion=0"
	f(watch, false, []string{added, large, added}, 3)
	f("text/plain", false, []string{added, large, added, large}, 4)
}

// readFrames reads as client-go does: the length, and then not beyond the event.
func readFrames(t *testing.T, r io.Reader, plain bool) (all []byte) {
	t.Helper()
	if plain {
		all, _ = io.ReadAll(r)
		return all
	}
	for {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		e := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(r, e); err != nil {
			t.Fatal(err)
		}
		all = append(append(all, length[:]...), e...)
	}
}
