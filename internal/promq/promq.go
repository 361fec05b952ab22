// SPDX-License-Identifier: Apache-2.0

// Package promq asks a PromQL backend over HTTP: Prometheus, Thanos, Mimir,
// VictoriaMetrics. A query gives one number or an error that says why not: what
// is empty, NaN, several or too old is never a zero.
package promq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"github.com/gpupilot/gpupilot/internal/series"
)

// Config says whom to ask, and how. Zero values take the defaults.
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
	// MaxAge is how old a sample may be that a query sees: the backend looks
	// back no further, where it can be told. A value from further back is an
	// error. 2 min.
	MaxAge    time.Duration
	MaxAnswer int64  // bytes of one answer; 1 MiB, where one number is enough
	UserAgent string // empty: Go's
}

// Client asks one backend.
type Client struct {
	api v1.API
	cfg Config
	now func() time.Time
}

// New makes a client; it asks nothing yet.
func New(cfg Config) (*Client, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, 2*time.Minute)
	cfg.MaxAnswer = cmp.Or(cfg.MaxAnswer, 1<<20)
	if u, err := url.Parse(cfg.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is no address of a PromQL backend, such as http://prometheus:9090", cfg.URL)
	}
	rt, err := roundTripper(&cfg)
	if err != nil {
		return nil, err
	}
	c, err := api.NewClient(api.Config{Address: cfg.URL, RoundTripper: limit{rt, cfg.MaxAnswer}})
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", cfg.URL, err)
	}
	return &Client{api: v1.NewAPI(c), cfg: cfg, now: time.Now}, nil
}

func roundTripper(cfg *Config) (http.RoundTripper, error) {
	h := config.DefaultHTTPClientConfig
	if cfg.HTTPConfig != "" {
		// The file's relative paths are relative to it.
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

// Query evaluates promql now. It gives one number, of a scalar or of a vector's
// only element, with the time that the backend gives it.
func (c *Client) Query(ctx context.Context, promql string) (series.Sample, error) {
	now := c.now()
	v, err := c.ask(ctx, func(ctx context.Context) (model.Value, error) {
		v, _, _, err := c.api.Query(ctx, promql, now, v1.WithTimeout(c.cfg.Timeout), v1.WithLookbackDelta(c.cfg.MaxAge), v1.WithLimit(2))
		return v, err
	})
	if err != nil {
		return series.Sample{}, err
	}
	s, err := number(v)
	if err != nil {
		return series.Sample{}, err
	}
	if age := now.Sub(s.At); age > c.cfg.MaxAge {
		return series.Sample{}, answered("stale", "its value is older than %s", c.cfg.MaxAge)
	}
	return s, nil
}

// Range evaluates promql at every step from one time to another. It must give
// one series at most; a value may be NaN, and times without one are left out.
func (c *Client) Range(ctx context.Context, promql string, from, to time.Time, step time.Duration) ([]series.Sample, error) {
	v, err := c.ask(ctx, func(ctx context.Context) (model.Value, error) {
		v, _, _, err := c.api.QueryRange(ctx, promql, v1.Range{Start: from, End: to, Step: step}, v1.WithTimeout(c.cfg.Timeout))
		return v, err
	})
	if err != nil {
		return nil, err
	}
	m, ok := v.(model.Matrix)
	switch {
	case !ok:
		return nil, errors.New("the answer is no range of values")
	case len(m) > 1:
		return nil, fmt.Errorf("it gives %d series, such as %s: sum them, so that there is one", len(m), clip(m[0].Metric.String()))
	case len(m) == 0:
		return nil, nil
	}
	out := make([]series.Sample, 0, len(m[0].Values))
	for _, p := range m[0].Values {
		out = append(out, series.Sample{At: p.Timestamp.Time(), Value: float64(p.Value)})
	}
	return out, nil
}

// ask makes a query within its time.
func (c *Client) ask(ctx context.Context, query func(context.Context) (model.Value, error)) (model.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	v, err := query(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, late(ctx, "no answer within %s", c.cfg.Timeout)
	case err != nil:
		return nil, failed(err)
	}
	return v, nil
}

// number is the one number that a query gave.
func number(v model.Value) (series.Sample, error) {
	switch v := v.(type) {
	case *model.Scalar:
		return finite(v.Timestamp, v.Value)
	case model.Vector:
		switch {
		case len(v) == 0:
			return series.Sample{}, answered("no_series", "it gives nothing: no series matches")
		case len(v) > 1:
			return series.Sample{}, answered("several_series", "it gives several series, such as %s: sum them, so that there is one", clip(v[0].Metric.String()))
		case v[0].Histogram != nil:
			return series.Sample{}, answered("no_number", "it gives a histogram: take a quantile, a sum or a count of it")
		}
		return finite(v[0].Timestamp, v[0].Value)
	}
	if v == nil {
		return series.Sample{}, answered("no_number", "the answer has no result")
	}
	return series.Sample{}, answered("no_number", "it gives a %s: it must give one number", v.Type())
}

func finite(at model.Time, x model.SampleValue) (series.Sample, error) {
	if f := float64(x); math.IsNaN(f) || math.IsInf(f, 0) {
		return series.Sample{}, answered("no_number", "it gives %s", x)
	}
	return series.Sample{At: at.Time(), Value: float64(x)}, nil
}

// clip keeps an error short that names a series or quotes the backend. It cuts
// between characters.
func clip(s string) string {
	const most = 120
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// limit refuses answers of more than most bytes.
type limit struct {
	next http.RoundTripper
	most int64
}

// RoundTrip is http.RoundTripper's.
func (l limit) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &limited{Reader: io.LimitReader(resp.Body, l.most+1), body: resp.Body, most: l.most}
	return resp, nil
}

type limited struct {
	io.Reader
	body io.Closer
	most int64
	read int64
}

// Read is io.Reader's.
func (l *limited) Read(b []byte) (int, error) {
	n, err := l.Reader.Read(b)
	if l.read += int64(n); l.read > l.most {
		return 0, &errTooLong{l.most}
	}
	return n, err
}

// Close is io.Closer's.
func (l *limited) Close() error { return l.body.Close() }
