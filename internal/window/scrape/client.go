// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/config"
)

// NewClient returns a client for a Scraper. It keeps one connection per target open
// and ignores the environment's proxies. It follows no redirects, because a target
// must not choose another address. It asks for no compression, because CPU time
// costs more than bytes in the cluster's network.
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

// ExporterClients returns the clients for exporters of other programs, with the
// configuration of NewConfiguredClient's file, and for agents, which also get the token.
// A client without any configuration is nil.
func ExporterClients(file, token string, https bool) (exporters, agents Doer, err error) {
	if file != "" {
		if exporters, err = NewConfiguredClient(file, "", https); err != nil {
			return nil, nil, err
		}
	}
	if token == "" {
		return exporters, exporters, nil
	}
	if agents, err = NewConfiguredClient(file, token, https); err != nil {
		return nil, nil, err
	}
	return exporters, agents, nil
}

// NewConfiguredClient returns a client like NewClient's, with the credentials and
// TLS settings of a file in the format of Prometheus's http_client_config. If token is
// not empty, it is the file of the bearer token. Secrets in other files, and the token,
// are read for each request. Every target of this client receives the credentials: use
// it only for exporters in the operator's namespaces.
func NewConfiguredClient(file, token string, https bool) (*http.Client, error) {
	cfg := &config.HTTPClientConfig{}
	if file != "" {
		var err error
		if cfg, _, err = config.LoadHTTPConfigFile(file); err != nil { // its relative paths are relative to it
			return nil, fmt.Errorf("HTTP configuration %s: %w", file, err)
		}
	}
	if tls := cfg.TLSConfig; !https && tls != (config.TLSConfig{}) {
		return nil, fmt.Errorf("HTTP configuration %s: %w", file, errors.New("tls_config is set, but exporters are scraped over http: remove it or scrape over https"))
	}
	if token != "" {
		if cfg.Authorization != nil || cfg.BasicAuth != nil || cfg.OAuth2 != nil {
			return nil, fmt.Errorf("HTTP configuration %s: %w", file, errors.New("it has credentials, and agents get a token: remove its authorization, basic_auth and oauth2"))
		}
		cfg.Authorization = &config.Authorization{Type: "Bearer", CredentialsFile: token}
	}
	// HTTP/2 gains nothing for one request at a time, and buffers more.
	rt, err := config.NewRoundTripperFromConfig(*cfg, "gpupilot", config.WithHTTP2Disabled())
	if err != nil {
		return nil, fmt.Errorf("HTTP configuration %s: %w", file, err)
	}
	return client(cloning{rt}), nil
}

// cloning sends a copy of each request. A runner reuses its request, and
// prometheus/common writes the credentials into the request's headers: without the
// copy, the next scrape would send the old credentials.
type cloning struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c cloning) RoundTrip(req *http.Request) (*http.Response, error) {
	return c.next.RoundTrip(req.Clone(req.Context()))
}

func client(rt http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
