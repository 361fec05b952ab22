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
)

// Doer sends a request; *http.Client does.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Reason says why a scrape failed.
type Reason uint8

// The reasons.
const (
	Unreachable Reason = iota // no connection, or it broke
	TimedOut
	BadStatus // not 200
	TooLarge  // longer than Config.MaxBody
	Garbage   // not a metrics page
	Stale     // the agent has not collected anew, again and again
	Internal  // the target's own definition is wrong
	NoMemory  // the memory limit of the windows leaves no room for it
	numReasons
)

// String is the reason as a label's value.
func (r Reason) String() string {
	return [...]string{"unreachable", "timeout", "status", "too_large", "garbage", "stale", "internal", "memory"}[r]
}

// failure is an error with its reason. Nothing that the target sent is in err;
// detail may have some of it, and is for the log at its debug level.
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

// fetch feeds an answer to the runner's page as it arrives, through a buffer of
// maxLine bytes: however long the answer and however many at once, no more is held.
func (s *Scraper) fetch(ctx context.Context, r *runner) *failure {
	if r.req.wire != nil {
		a, err := r.conn.exchange(ctx, s.deps.Dial, r.req, time.Now().Add(s.cfg.Timeout), r.take)
		if err != nil {
			return s.netFailure(err)
		}
		defer r.conn.done(r.buffer)
		return s.read(r, a.status, a.length, a)
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

// read feeds the body of an answer to the runner's page.
func (s *Scraper) read(r *runner, code int, length int64, body io.Reader) *failure {
	if code != http.StatusOK {
		_, _ = io.CopyN(io.Discard, body, 4<<10) // so that the connection can be kept
		return fail(BadStatus, "answered %s", status(code))
	}
	if length > s.cfg.MaxBody {
		return fail(TooLarge, "answer of %d bytes is longer than the limit of %d", length, s.cfg.MaxBody)
	}
	if err := s.readAll(r.buffer.bytes[:], body, r.page); err != nil {
		if f := (*failure)(nil); errors.As(err, &f) {
			return f
		}
		return s.netFailure(err)
	}
	return nil
}

// isPlain says whether a target is asked over a connection of its runner's own:
// that speaks HTTP without TLS, and has no credentials.
func (s *Scraper) isPlain(t *Target) bool {
	return s.deps.Dial != nil && t.URL.Scheme == "http" && (t.Kind == Pod || s.deps.Exporters == nil)
}

// client is what asks targets of a kind: credentials are for exporters only.
func (s *Scraper) client(kind Kind) Doer {
	if kind != Pod && s.deps.Exporters != nil {
		return s.deps.Exporters
	}
	return s.deps.Client
}

func (s *Scraper) readAll(b []byte, body io.Reader, p *page) error {
	p.begin()
	held, total := 0, int64(0) // bytes of the line that has begun, and of all
	defer func() { p.bytes = total }()
	for {
		n, err := body.Read(b[held:])
		held += n
		if total += int64(n); total > s.cfg.MaxBody {
			return fail(TooLarge, "answer is longer than the limit of %d bytes", s.cfg.MaxBody)
		}
		used := p.feedLines(b[:held])
		held = copy(b, b[used:held])
		if held == len(b) {
			p.skip()
			held = 0
		}
		if err := p.tooMuch(); err != nil {
			return fail(TooLarge, "%w", err)
		}
		switch {
		case err == io.EOF:
			p.feed(b[:held])
			return nil
		case err != nil:
			return err
		}
	}
}

func (s *Scraper) netFailure(err error) *failure {
	f := fail(Unreachable, "%s", describe(err))
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		f = fail(TimedOut, "no answer within %v", s.cfg.Timeout)
	}
	f.detail = err.Error()
	return f
}

// status is a status as we call it; the words of an answer are its server's.
func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// request is what a target is asked, again and again.
type request struct {
	http *http.Request // as net/http has it

	wire    []byte // of a plain target: as it is sent, in place of http
	address string
}

// newRequest makes a target's request; names limits the page to these metrics,
// where it is not empty.
func (s *Scraper) newRequest(t *Target, names []string) (*request, error) {
	req, err := newRequest(t.URL, names)
	if err != nil || !s.isPlain(t) {
		return &request{http: req}, err
	}
	var b bytes.Buffer
	err = req.Write(&b)
	return &request{wire: bytes.Clone(b.Bytes()), address: req.Host}, err
}

// newRequest makes the request that is sent again and again; names limits the
// page to these metrics, where it is not empty.
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

// checkURL says what is wrong with a target's URL: its host is an IP address
// with a port, and it has no credentials.
func checkURL(u *url.URL) error {
	host, err := netip.ParseAddrPort(u.Host)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("URL %s: scheme %q is neither http nor https", u.Redacted(), u.Scheme)
	case err != nil || host.Port() == 0 || host.Addr().Zone() != "":
		return fmt.Errorf("URL %s: host %q is not an IP address and a port", u.Redacted(), u.Host)
	case u.User != nil || u.Opaque != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//"):
		return fmt.Errorf("URL %s: path %q does not begin with one slash, or there are credentials", u.Redacted(), u.Path)
	}
	return nil
}
