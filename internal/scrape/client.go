// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/config"
)

// NewClient makes a client as a Scraper wants it: one kept-open connection per
// target, no proxy whatever the environment says, no redirects (a target must
// not send us elsewhere), no gzip (the network is near, the CPU is dear).
func NewClient() *http.Client {
	return client(&http.Transport{
		Proxy:                  nil,
		MaxIdleConnsPerHost:    1,
		MaxResponseHeaderBytes: 16 << 10,
		IdleConnTimeout:        2 * time.Minute,
		TLSHandshakeTimeout:    5 * time.Second,
		DisableCompression:     true,
	})
}

// NewConfiguredClient makes a client like NewClient's that authenticates and
// speaks TLS as a file says, in the form of Prometheus's http_client_config.
// Secrets that the file names as files are read again when they change. It is
// for exporters of the operator's own namespaces: every target that it asks
// gets the credentials.
func NewConfiguredClient(file string, https bool) (*http.Client, error) {
	// The file's relative paths are relative to it.
	cfg, _, err := config.LoadHTTPConfigFile(file)
	if err != nil {
		return nil, fmt.Errorf("HTTP configuration %s: %w", file, err)
	}
	if tls := cfg.TLSConfig; !https && tls != (config.TLSConfig{}) {
		return nil, fmt.Errorf("HTTP configuration %s: %w", file, errors.New("it has tls_config, and exporters are asked over http"))
	}
	// HTTP/2 gains nothing for one request at a time, and buffers more.
	rt, err := config.NewRoundTripperFromConfig(*cfg, "gpupilot", config.WithHTTP2Disabled())
	if err != nil {
		return nil, fmt.Errorf("HTTP configuration %s: %w", file, err)
	}
	return client(fresh{rt}), nil
}

// fresh sends copies of requests. A runner sends one request again and again,
// and prometheus/common writes credentials into the headers that it is given:
// the next one would go out with the old credentials.
type fresh struct{ next http.RoundTripper }

// RoundTrip is http.RoundTripper's.
func (f fresh) RoundTrip(req *http.Request) (*http.Response, error) {
	return f.next.RoundTrip(req.Clone(req.Context()))
}

func client(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
