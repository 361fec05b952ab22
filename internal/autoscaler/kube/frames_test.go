// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// Large events are decoded one at a time. A reader that is slow, or has gone, does not keep
// others.
func TestLargeEventsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		decoding := newTurn()
		open := func() io.ReadCloser {
			event := append(binary.BigEndian.AppendUint32(nil, largeFrame+1), make([]byte, largeFrame+1)...)
			body := iotest.OneByteReader(bytes.NewReader(bytes.Repeat(event, 3)))
			return &frames{ReadCloser: io.NopCloser(body), listing: true, turn: func() func() { return decoding.take(t.Context()) }}
		}
		read := func(r io.Reader) (waited time.Duration) {
			began := time.Now()
			if _, err := io.ReadFull(r, make([]byte, 4+largeFrame+1)); err != nil {
				t.Error(err)
			}
			return time.Since(began)
		}
		a, b := open(), open()
		if w := read(a); w != 0 {
			t.Errorf("the first one waited %v", w)
		}
		go func() {
			time.Sleep(maxTurn / 2) // it is decoded
			read(a)
		}()
		if w := read(b); w != maxTurn/2 {
			t.Errorf("the second one waited %v, want until the first one is decoded", w)
		}
		synctest.Wait()
		c := open()
		if w := read(c); w != maxTurn {
			t.Errorf("beside a slow reader another one waited %v, want %v", w, maxTurn)
		}
		for _, r := range []io.Closer{a, b, c} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if w := read(open()); w != 0 {
			t.Errorf("after the others were closed, one waited %v", w)
		}
	})
}

// A watch that ends while it waits for its turn leaves no turn behind.
func TestNoTurnAfterClose(t *testing.T) {
	decoding := newTurn()
	waits := make(chan struct{})
	event := append(binary.BigEndian.AppendUint32(nil, largeFrame+1), make([]byte, largeFrame+1)...)
	f := &frames{ReadCloser: io.NopCloser(bytes.NewReader(event)), turn: func() func() {
		close(waits)
		return decoding.take(t.Context())
	}}
	first := decoding.take(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = f.Read(make([]byte, 64))
	}()
	<-waits
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	first()
	<-done
	if len(decoding) > 0 {
		t.Error("a watch that has ended has a turn")
	}
}

// A connection says that it keeps few bytes of each answer: SETTINGS_INITIAL_WINDOW_SIZE.
func TestBuffersAreBounded(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	found := make(chan uint32, 1)
	server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, c *tls.Conn, _ http.Handler) {
		head := make([]byte, 24+9) // the preface, and the head of the first frame
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		settings := make([]byte, int(head[24])<<16|int(head[25])<<8|int(head[26]))
		_, _ = io.ReadFull(c, settings)
		for ; len(settings) >= 6; settings = settings[6:] {
			if binary.BigEndian.Uint16(settings) == 4 {
				found <- binary.BigEndian.Uint32(settings[2:])
			}
		}
	}}
	server.StartTLS()
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {"token": "x"}}],
		"clusters": [{"name": "x", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(Config{Kubeconfig: kubeconfig})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Set.Discovery().ServerVersion(); err == nil {
		t.Error("the server that does not answer has answered")
	}
	if n := <-found; n != receiveBuffer {
		t.Errorf("%d bytes, want %d", n, receiveBuffer)
	}
}

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
			}), newTurn()}.RoundTrip(&http.Request{URL: address})
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
