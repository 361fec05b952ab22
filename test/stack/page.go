// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Page answers requests at a pod's address, as a program in that pod would. It counts
// them.
type Page struct {
	Requests atomic.Int64
	server   *http.Server
}

// ServePage serves at an address and a port until Close.
func ServePage(ip string, port int, h http.HandlerFunc) (*Page, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	p := &Page{}
	p.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Requests.Add(1)
		h(w, r)
	})}
	go func() { _ = p.server.Serve(l) }() // ends with Close
	return p, nil
}

// Close ends the server and its connections.
func (p *Page) Close() error { return p.server.Close() }

// Text is a handler that answers with a page in the text format of metrics.
func Text(page func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(page())) // a client that went away is no error
	}
}

// Meter reads a sample of a replica's /metrics: a name, with its labels as they are written there; 0: there is none.
func Meter(t *testing.T, url, sample string) float64 {
	t.Helper()
	for line := range strings.Lines(Get(t, url+"/metrics")) {
		if text, ok := strings.CutPrefix(line, sample+" "); ok {
			return value(t, text)
		}
	}
	return 0
}

func value(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Get returns a page. A server that does not answer fails the test.
func Get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := pages.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

var pages = &http.Client{Timeout: Patience}

// Leads waits until a replica leads, or does not. It has to serve its page and metrics all the while.
func Leads(t *testing.T, url string, want bool) {
	t.Helper()
	Eventually(t, func() error {
		Get(t, url+"/api/v1/view")
		if is := Meter(t, url, "gpupilot_leader") == 1; is != want {
			return fmt.Errorf("%s leads: %v, want %v", url, is, want)
		}
		return nil
	})
}
