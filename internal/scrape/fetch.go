// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Doer sends a request; *http.Client does.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// NewClient makes a client as a Scraper wants it: one kept-open connection per
// target, no proxy, no redirects (a target must not send us elsewhere), no
// gzip (the network is near, the CPU is dear).
func NewClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1,
			// The default is 10 MB per target.
			MaxResponseHeaderBytes: maxHeader,
			IdleConnTimeout:        2 * time.Minute,
			TLSHandshakeTimeout:    5 * time.Second,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// maxHeader bounds the header of an answer; an exporter's has 200 bytes.
const maxHeader = 32 << 10

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

// failure is an error with its reason.
type failure struct {
	reason Reason
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func fail(r Reason, format string, args ...any) *failure {
	return &failure{r, fmt.Errorf(format, args...)}
}

// fetch feeds an answer to a page as it arrives, through a buffer of maxLine
// bytes: however long the answer and however many at once, no more is held.
func (s *Scraper) fetch(ctx context.Context, req *http.Request, p *page) *failure {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	resp, err := s.deps.Client.Do(req.WithContext(ctx))
	if err != nil {
		return s.netFailure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be kept
		return fail(BadStatus, "answered %s", resp.Status)
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

func (s *Scraper) readAll(b []byte, body io.Reader, p *page) error {
	p.begin()
	held, total := 0, int64(0) // bytes of the line that has begun, and of all
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
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fail(TimedOut, "no answer within %v: %w", s.cfg.Timeout, err)
	}
	return fail(Unreachable, "%w", err)
}

// newRequest makes the request that is sent again and again; names limits the
// page to these metrics, where it is not empty.
func newRequest(rawURL string, names []string) (*http.Request, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		q := u.Query()
		q["name[]"] = append(q["name[]"], names...)
		u.RawQuery = q.Encode()
	}
	req, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, */*;q=0.1")
	req.Header.Set("User-Agent", "gpupilot-controller")
	return req, nil
}
