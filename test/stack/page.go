// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
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
func Meter(t testing.TB, url, sample string) float64 {
	t.Helper()
	m, err := Meters(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return m[sample]
}

// Meters reads /metrics, by names with labels as they are written there.
func Meters(ctx context.Context, url string) (map[string]float64, error) {
	page, err := get(ctx, url+"/metrics")
	out := map[string]float64{}
	for line := range strings.Lines(page) {
		if at := strings.LastIndexByte(line, ' '); at > 0 && line[0] != '#' {
			if v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
				out[line[:at]] = v
			}
		}
	}
	return out, err
}

// Get returns a page. A server that does not answer fails the test.
func Get(t testing.TB, url string) string {
	t.Helper()
	page, err := get(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := pages.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return string(body), err
}

// pages waits as long as any wait: the pages of a busy machine come late.
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
