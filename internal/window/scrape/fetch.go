// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
)

// Doer sends a request. *http.Client is one.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Reason is why a scrape failed.
type Reason uint8

// The reasons.
const (
	Unreachable Reason = iota // no connection, or it broke
	TimedOut
	BadStatus // not 200
	TooLarge  // longer than Config.MaxBody
	Garbage   // not a metrics page
	Stale     // the values are from an earlier collection and too old
	Internal  // the target's definition is invalid, or the store dropped the target
	NoMemory  // the memory limit of the windows has no room for the target
	numReasons
)

// String returns the reason as a label's value.
func (r Reason) String() string {
	return [...]string{"unreachable", "timeout", "status", "too_large", "garbage", "stale", "internal", "memory"}[r]
}

// failure is an error with its reason. err has no text of the target; detail may
// have some, and is for the log's debug level only.
type failure struct {
	reason Reason
	err    error
	detail string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(r Reason, format string, args ...any) *failure {
	return &failure{reason: r, err: fmt.Errorf(format, args...)}
}

// fetch scrapes a target and parses the response into the runner's page as it
// arrives. It holds no more than page.MaxLine bytes of the body at a time.
func (s *Scraper) fetch(ctx context.Context, r *runner) *failure {
	if r.req.wire != nil {
		return s.exchange(ctx, r)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	resp, err := s.client(r.have.Kind).Do(r.req.http.WithContext(ctx))
	if err != nil {
		return s.netFailure(err)
	}
	defer resp.Body.Close()
	r.take()
	return s.read(r, resp.StatusCode, resp.ContentLength, resp.Body)
}

// exchange is fetch over the runner's own connection.
func (s *Scraper) exchange(ctx context.Context, r *runner) (f *failure) {
	status := 0
	a, err := r.conn.exchange(ctx, r.dialer(), r.req, time.Now().Add(s.cfg.Timeout), r.take)
	if err == nil {
		defer r.conn.done(r.buffer)
		status = a.status
		f = s.read(r, a.status, a.length, a)
	} else {
		f = s.netFailure(err)
	}
	switch {
	case f == nil:
		r.protocol = protocol{}
	case f.reason == Unreachable || f.reason == BadStatus:
		if other := s.mismatch(ctx, r, err, status); other != nil {
			f.err = other
		}
	}
	return f
}

// read parses the body of a response into the runner's page.
func (s *Scraper) read(r *runner, code int, length int64, body io.Reader) *failure {
	if code != http.StatusOK {
		_, _ = io.CopyN(io.Discard, body, 4<<10) // so that the connection can be kept
		return fail(BadStatus, "answered %s", status(code))
	}
	if length > s.cfg.MaxBody {
		return fail(TooLarge, "response of %d bytes is longer than the limit of %d", length, s.cfg.MaxBody)
	}
	if err := r.page.ReadBody(body, r.buffer.bytes[:], s.cfg.MaxBody); err != nil {
		if large, ok := errors.AsType[page.TooLargeError](err); ok {
			return fail(TooLarge, "%w", large)
		}
		return s.netFailure(err)
	}
	return nil
}

// isPlain reports whether a target is scraped over its runner's connection, without
// credentials, and not through net/http. Pods with TLS always are: the client's TLS is for
// exporters.
func (s *Scraper) isPlain(t *Target) bool {
	if t.Kind == Pod && t.URL.Scheme == "https" {
		return true
	}
	return s.deps.Dial != nil && t.URL.Scheme == "http" &&
		(t.Kind == Pod || s.deps.Exporters == nil && (t.Kind == DCGM || s.deps.Agents == nil))
}

// client returns the client for targets of a kind. Only exporters get credentials.
func (s *Scraper) client(kind Kind) Doer {
	switch {
	case kind == Agent && s.deps.Agents != nil:
		return s.deps.Agents
	case kind != Pod && s.deps.Exporters != nil:
		return s.deps.Exporters
	}
	return s.deps.Client
}

func (s *Scraper) netFailure(err error) *failure {
	f := fail(Unreachable, "%s", describe(err))
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		f = fail(TimedOut, "no answer within %v", s.cfg.Timeout)
	}
	f.detail = err.Error()
	return f
}

// status returns a status code with its standard text. The response's own text is
// not shown.
func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// request is a target's request, which every scrape reuses.
type request struct {
	http *http.Request // nil for a plain target

	wire    []byte // the encoded request of a plain target
	address string // of a plain target, host:port
}

// newRequest returns a target's request. If names is not empty, it limits the page
// to these metrics.
func (s *Scraper) newRequest(t *Target, names []string) (*request, error) {
	req, err := newRequest(t.URL, names)
	if err != nil || !s.isPlain(t) {
		return &request{http: req}, err
	}
	var b bytes.Buffer
	err = req.Write(&b)
	return &request{wire: bytes.Clone(b.Bytes()), address: req.Host}, err
}

// newRequest returns a request for a URL. If names is not empty, it limits the page
// to these metrics.
func newRequest(u url.URL, names []string) (*http.Request, error) {
	if err := checkURL(&u); err != nil {
		return nil, err
	}
	if len(names) > 0 {
		q := u.Query()
		q["name[]"] = append(q["name[]"], names...)
		u.RawQuery = q.Encode()
	}
	return &http.Request{
		Method: http.MethodGet, URL: &u, Host: u.Host,
		Header: http.Header{
			"Accept":     {"text/plain;version=0.0.4, */*;q=0.1"},
			"User-Agent": {"gpupilot-controller"},
		},
	}, nil
}

// checkURL returns why a target's URL is invalid. The host must be an IP address and
// a port, and there must be no credentials.
func checkURL(u *url.URL) error {
	host, err := netip.ParseAddrPort(u.Host)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("URL %s: scheme %q is neither http nor https", u.Redacted(), u.Scheme)
	case err != nil || host.Port() == 0 || host.Addr().Zone() != "":
		return fmt.Errorf("URL %s: host %q is not an IP address and a port", u.Redacted(), u.Host)
	case u.User != nil || u.Opaque != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//"):
		return fmt.Errorf("URL %s: path %q must begin with exactly one slash, and there must be no credentials", u.Redacted(), u.Path)
	}
	return nil
}
