// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
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
