// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
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
	numReasons
)

// String is the reason as a label's value.
func (r Reason) String() string {
	return [...]string{"unreachable", "timeout", "status", "too_large", "garbage", "stale", "internal"}[r]
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

// fetch gets a page into a buffer that is taken when the answer begins to
// arrive; the caller gives it back with release.
func (s *Scraper) fetch(ctx context.Context, kind Kind, req *http.Request) (*[]byte, *failure) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	resp, err := s.client(kind).Do(req.WithContext(ctx))
	if err != nil {
		return nil, s.netFailure(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be kept
		return nil, fail(BadStatus, "answered %s", resp.Status)
	}
	if resp.ContentLength > s.cfg.MaxBody {
		return nil, fail(TooLarge, "answer of %d bytes is longer than the limit of %d", resp.ContentLength, s.cfg.MaxBody)
	}
	buf := s.buffers.Get().(*[]byte)
	if err := s.readAll(buf, resp); err != nil {
		s.release(buf)
		if f := (*failure)(nil); errors.As(err, &f) {
			return nil, f
		}
		return nil, s.netFailure(ctx, err)
	}
	return buf, nil
}

// client is what asks targets of a kind: credentials are for exporters only.
func (s *Scraper) client(kind Kind) Doer {
	if kind != Pod && s.deps.Exporters != nil {
		return s.deps.Exporters
	}
	return s.deps.Client
}

func (s *Scraper) readAll(buf *[]byte, resp *http.Response) error {
	b := (*buf)[:0]
	if n := resp.ContentLength; n > 0 {
		b = slices.Grow(b, int(n)+1)
	}
	defer func() { *buf = b }()
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, max(4<<10, len(b)))
		}
		n, err := resp.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if int64(len(b)) > s.cfg.MaxBody {
			return fail(TooLarge, "answer is longer than the limit of %d bytes", s.cfg.MaxBody)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// maxPooled is the size beyond which a buffer is not kept: 8 GPUs × 7 MIG
// instances × 40 fields are 800 KB.
const maxPooled = 1 << 20

func (s *Scraper) release(buf *[]byte) {
	if cap(*buf) <= maxPooled {
		s.buffers.Put(buf)
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
