// SPDX-License-Identifier: Apache-2.0

// Package client queries a PromQL backend over HTTP: Prometheus, Thanos, Mimir or
// VictoriaMetrics. A query returns one number or an error with the reason. An empty,
// ambiguous, NaN or outdated result is an error, never 0.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Config holds the settings of a Client. Zero values mean the defaults.
type Config struct {
	// URL is the address above /api/v1, such as http://prometheus:9090 or, for
	// Mimir, http://mimir/prometheus.
	URL string
	// HTTPConfig is a file with Prometheus's own http_client_config: basic_auth,
	// authorization, oauth2, tls_config, proxy_url, http_headers (a tenant's
	// X-Scope-OrgID, say). Empty: none. Secrets that it names as files are read
	// again when they change.
	HTTPConfig string
	Timeout    time.Duration // of one query; 5 s
	// MaxAge is the maximum age of a sample that a query uses: the lookback of the
	// backend, if it supports the parameter. An older value is an error. 2 min.
	MaxAge    time.Duration
	MaxAnswer int64  // bytes of one answer; 1 MiB
	UserAgent string // empty: Go's
}

// Client queries one backend.
type Client struct {
	api v1.API
	cfg Config
	now func() time.Time
}

// New makes a client. It sends no request.
func New(cfg Config) (*Client, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, 2*time.Minute)
	cfg.MaxAnswer = cmp.Or(cfg.MaxAnswer, 1<<20)
	if u, err := url.Parse(cfg.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a PromQL backend, such as http://prometheus:9090", cfg.URL)
	}
	rt, err := roundTripper(&cfg)
	if err != nil {
		return nil, err
	}
	c, err := api.NewClient(api.Config{Address: cfg.URL, Client: &http.Client{
		Transport: limitTransport{rt, cfg.MaxAnswer}, CheckRedirect: checkRedirect,
	}})
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", cfg.URL, err)
	}
	return &Client{api: v1.NewAPI(c), cfg: cfg, now: time.Now}, nil
}

// checkRedirect follows redirects within the backend's address, and from HTTP to HTTPS on its host: the transport adds
// credentials to each request, and another host may be one that only this process can reach.
func checkRedirect(req *http.Request, via []*http.Request) error {
	from, to := via[0].URL, req.URL
	same := to.Scheme == from.Scheme && to.Host == from.Host
	upgrade := from.Scheme == "http" && to.Scheme == "https" && to.Hostname() == from.Hostname()
	if !same && !upgrade || len(via) > 3 {
		return fmt.Errorf("the redirect to %s://%s is refused", to.Scheme, excerpt.Of(to.Host, 100))
	}
	return nil
}

func roundTripper(cfg *Config) (http.RoundTripper, error) {
	h := config.DefaultHTTPClientConfig
	if cfg.HTTPConfig != "" {
		// Relative paths in the file are relative to its directory.
		read, _, err := config.LoadHTTPConfigFile(cfg.HTTPConfig)
		if err != nil {
			return nil, fmt.Errorf("HTTP configuration %s: %w", cfg.HTTPConfig, err)
		}
		h = *read
	}
	var opts []config.HTTPClientOption
	if cfg.UserAgent != "" {
		opts = append(opts, config.WithUserAgent(cfg.UserAgent))
	}
	rt, err := config.NewRoundTripperFromConfig(h, "gpupilot", opts...)
	if err != nil {
		return nil, fmt.Errorf("HTTP configuration %s: %w", cfg.HTTPConfig, err)
	}
	return rt, nil
}

// Query evaluates promql now. It returns one number, from a scalar or from a vector
// with one element, with the backend's timestamp.
func (c *Client) Query(ctx context.Context, promql string) (series.Sample, error) {
	now := c.now()
	v, err := c.run(ctx, func(ctx context.Context) (model.Value, error) {
		v, _, _, err := c.api.Query(ctx, promql, now, v1.WithTimeout(c.cfg.Timeout), v1.WithLookbackDelta(c.cfg.MaxAge), v1.WithLimit(2))
		return v, err
	})
	if err != nil {
		return series.Sample{}, err
	}
	s, err := singleValue(v)
	if err != nil {
		return series.Sample{}, err
	}
	if age := now.Sub(s.At); age > c.cfg.MaxAge {
		return series.Sample{}, newValueError("stale", "the value is older than %s", c.cfg.MaxAge)
	}
	return s, nil
}

// Series is one series of a range.
type Series struct {
	Labels  map[string]string
	Samples []series.Sample // oldest first; values may be NaN
}

// Range evaluates promql at every step between two times. The result must have at most
// one series. Values may be NaN; times without a value are left out.
func (c *Client) Range(ctx context.Context, promql string, from, to time.Time, step time.Duration) ([]series.Sample, error) {
	m, err := c.matrix(ctx, promql, from, to, step)
	switch {
	case err != nil:
		return nil, err
	case len(m) > 1:
		return nil, fmt.Errorf("the query returns %d series, such as %s: aggregate them to one", len(m), excerpt.Of(m[0].Metric.String(), maxQuoted))
	case len(m) == 0:
		return nil, nil
	}
	return samplesOf(m[0]), nil
}

// Matrix evaluates promql at every step between two times, to any number of series.
// Histograms are left out.
func (c *Client) Matrix(ctx context.Context, promql string, from, to time.Time, step time.Duration) ([]Series, error) {
	m, err := c.matrix(ctx, promql, from, to, step)
	if err != nil {
		return nil, err
	}
	out := make([]Series, 0, len(m))
	for _, s := range m {
		labels := make(map[string]string, len(s.Metric))
		for name, value := range s.Metric {
			labels[string(name)] = string(value)
		}
		out = append(out, Series{labels, samplesOf(s)})
	}
	return out, nil
}

func (c *Client) matrix(ctx context.Context, promql string, from, to time.Time, step time.Duration) (model.Matrix, error) {
	v, err := c.run(ctx, func(ctx context.Context) (model.Value, error) {
		v, _, _, err := c.api.QueryRange(ctx, promql, v1.Range{Start: from, End: to, Step: step}, v1.WithTimeout(c.cfg.Timeout))
		return v, err
	})
	if err != nil {
		return nil, err
	}
	m, ok := v.(model.Matrix)
	if !ok {
		return nil, errors.New("the answer is not a range of values")
	}
	return m, nil
}

func samplesOf(s *model.SampleStream) []series.Sample {
	out := make([]series.Sample, 0, len(s.Values))
	for _, p := range s.Values {
		out = append(out, series.Sample{At: p.Timestamp.Time(), Value: float64(p.Value)})
	}
	return out
}

// run sends a query with the configured timeout.
func (c *Client) run(ctx context.Context, query func(context.Context) (model.Value, error)) (model.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	v, err := query(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, newTimeoutError(ctx, "no answer within %s", c.cfg.Timeout)
	case err != nil:
		return nil, newRequestError(err)
	}
	return v, nil
}

// singleValue returns the only number of a query's result.
func singleValue(v model.Value) (series.Sample, error) {
	switch v := v.(type) {
	case *model.Scalar:
		return finiteSample(v.Timestamp, v.Value)
	case model.Vector:
		switch {
		case len(v) == 0:
			return series.Sample{}, newValueError("no_series", "the query returns nothing: no series matches")
		case len(v) > 1:
			return series.Sample{}, newValueError("several_series", "the query returns several series, such as %s: aggregate them to one", excerpt.Of(v[0].Metric.String(), maxQuoted))
		case v[0].Histogram != nil:
			return series.Sample{}, newValueError("no_number", "the query returns a histogram: select a quantile, a sum or a count of it")
		}
		return finiteSample(v[0].Timestamp, v[0].Value)
	}
	if v == nil {
		return series.Sample{}, newValueError("no_number", "the answer has no result")
	}
	return series.Sample{}, newValueError("no_number", "the query returns a %s: it must return one number", v.Type())
}

func finiteSample(at model.Time, x model.SampleValue) (series.Sample, error) {
	switch f := float64(x); {
	case math.IsNaN(f):
		const text = "the query returns NaN"
		return series.Sample{}, &Error{reason: "no_number", public: text, answered: true, nan: true, err: errors.New(text)}
	case math.IsInf(f, 0):
		return series.Sample{}, newValueError("no_number", "the query returns %s", x)
	}
	return series.Sample{At: at.Time(), Value: float64(x)}, nil
}

// limitTransport refuses answers of more than maxBytes bytes.
type limitTransport struct {
	next     http.RoundTripper
	maxBytes int64
}

// RoundTrip implements http.RoundTripper.
func (l limitTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &limitedBody{Reader: io.LimitReader(resp.Body, l.maxBytes+1), body: resp.Body, maxBytes: l.maxBytes}
	return resp, nil
}

type limitedBody struct {
	io.Reader
	body     io.Closer
	maxBytes int64
	read     int64
}

// Read implements io.Reader.
func (l *limitedBody) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	if l.read += int64(n); l.read > l.maxBytes {
		return 0, &errAnswerTooLong{l.maxBytes}
	}
	return n, err
}

// Close implements io.Closer.
func (l *limitedBody) Close() error { return l.body.Close() }

// maxQuoted limits the backend's text in an error, in bytes.
const maxQuoted = 120
