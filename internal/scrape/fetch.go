// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
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

// fetch feeds an answer to a page as it arrives, through a buffer of maxLine
// bytes: however long the answer and however many at once, no more is held.
func (s *Scraper) fetch(ctx context.Context, kind Kind, req *http.Request, p *page) *failure {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	resp, err := s.client(kind).Do(req.WithContext(ctx))
	if err != nil {
		return s.netFailure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be kept
		return fail(BadStatus, "answered %s", status(resp.StatusCode))
	}
	if resp.ContentLength > s.cfg.MaxBody {
		return fail(TooLarge, "answer of %d bytes is longer than the limit of %d", resp.ContentLength, s.cfg.MaxBody)
	}
	buf := s.buffers.Get().(*[maxLine]byte)
	defer s.buffers.Put(buf)
	if err := s.readAll(buf[:], resp.Body, p); err != nil {
		if f := (*failure)(nil); errors.As(err, &f) {
			return f
		}
		return s.netFailure(ctx, err)
	}
	return nil
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

func (s *Scraper) netFailure(ctx context.Context, err error) *failure {
	f := fail(Unreachable, "%s", describe(err))
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		f = fail(TimedOut, "no answer within %v", s.cfg.Timeout)
	}
	f.detail = err.Error()
	return f
}

// status is a status as we call it; the words of an answer are its server's.
func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
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
