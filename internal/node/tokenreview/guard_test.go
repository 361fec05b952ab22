// SPDX-License-Identifier: Apache-2.0

package tokenreview

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// apiServer reviews tokens: the JSON web token of user a has the subject a, and may is
// the paths that each user may get.
type apiServer struct {
	mu      sync.Mutex
	may     map[string][]string
	err     error
	delay   time.Duration
	tokens  int // TokenReviews
	rights  int // SubjectAccessReviews
	revoked bool
}

type claims struct {
	Subject   string   `json:"sub"`
	Audiences []string `json:"aud,omitempty"`
	Expires   int64    `json:"exp,omitempty"`
}

func (c claims) token() string {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(b) + ".sig"
}

func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *apiServer) reviews() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens
}

func (s *apiServer) Create(ctx context.Context, path string, object, answer any) error {
	s.mu.Lock()
	delay, err := s.delay, s.err
	if strings.HasSuffix(path, "/tokenreviews") {
		s.tokens++
	}
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r := object.(type) {
	case tokenReview:
		r.Status = s.authenticate(r.Spec)
		return copyTo(answer, r)
	case accessReview:
		s.rights++
		r.Status.Allowed = r.Spec.Path.Verb == "get" && slices.Contains(s.may[r.Spec.User], r.Spec.Path.Path) && slices.Equal(r.Spec.Groups, []string{"g"})
		return copyTo(answer, r)
	}
	return fmt.Errorf("unknown object %T at %s", object, path)
}

func (s *apiServer) authenticate(spec tokenSpec) (out tokenStatus) {
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(spec.Token+"..", ".")[1])
	var c claims
	if err != nil || json.Unmarshal(body, &c) != nil || s.may[c.Subject] == nil || s.revoked {
		return out
	}
	if c.Expires != 0 && time.Now().Unix() >= c.Expires {
		return out
	}
	wanted := spec.Audiences
	if wanted == nil {
		wanted = []string{"api"}
	}
	has := c.Audiences
	if has == nil {
		has = []string{"api"}
	}
	for _, a := range wanted {
		if slices.Contains(has, a) {
			out = tokenStatus{Authenticated: true, User: user{Username: c.Subject, Groups: []string{"g"}}, Audiences: []string{a}}
		}
	}
	return out
}

func copyTo(answer, from any) error {
	b, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, answer)
}

// world is a guarded agent and the API server. Tests run under synctest.
type world struct {
	*apiServer
	guard *Guard
	h     http.Handler
}

func newWorld() *world {
	s := &apiServer{may: map[string][]string{"prometheus": {"/metrics"}, "root": {"/metrics", "/debug/pprof"}, "tenant": {}}}
	g := New(s, slog.New(slog.DiscardHandler))
	return &world{s, g, g.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))}
}

// get asks for a path from an address, and returns the status.
func (w *world) get(path, from, token string) int {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}, Header: http.Header{}, RemoteAddr: from + ":1234"}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	rec := httptest.NewRecorder()
	w.h.ServeHTTP(rec, r)
	if rec.Code == 429 || rec.Code == 503 {
		if rec.Header().Get("Retry-After") == "" {
			return -rec.Code
		}
	}
	return rec.Code
}

func TestWhoMayRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := 0
		f := func(path, token string, want int) {
			t.Helper()
			n++
			if got := w.get(path, fmt.Sprintf("10.0.%d.%d", n/200, n%200), token); got != want {
				t.Errorf("%s with %.60q: %d, want %d", path, token, got, want)
			}
		}
		f("/metrics", "", 401)
		f("/metrics", claims{Subject: "prometheus"}.token(), 200)
		f("/metrics", claims{Subject: "prometheus", Audiences: []string{Audience}}.token(), 200)
		f("/metrics", claims{Subject: "prometheus", Audiences: []string{"other", Audience}}.token(), 200)
		f("/metrics", claims{Subject: "prometheus", Audiences: []string{"gpupilot.dev"}}.token(), 401)
		f("/metrics", claims{Subject: "tenant"}.token(), 403)
		f("/metrics", claims{Subject: "nobody"}.token(), 401)
		f("/metrics", claims{Subject: "prometheus", Expires: time.Now().Unix() - 1}.token(), 401)
		f("/metrics", strings.Repeat("x", 1<<20), 401)
		f("/metrics", "\x00\xff", 401)
		f("/metrics", "a b", 401)
		f("/api/v1/gpus", "", 401)
		f("/api/v1/gpus", claims{Subject: "prometheus"}.token(), 200)
		f("/", "", 401)
		f("/debug/pprof/heap", claims{Subject: "prometheus"}.token(), 403)
		f("/debug/pprof/heap", claims{Subject: "root"}.token(), 200)
		for _, open := range []string{"/health", "/healthz", "/readyz"} {
			f(open, "", 200)
		}
		for _, closed := range []string{"/healthz/", "//healthz", "/healthz/../metrics", "/healthz%2f", "/HEALTHZ"} {
			f(closed, "", 401)
		}
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.SetBasicAuth("prometheus", "x")
		rec := httptest.NewRecorder()
		if w.h.ServeHTTP(rec, r); rec.Code != 401 || rec.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("a password: %d %v", rec.Code, rec.Header())
		}
	})
}

// A scraper's token is reviewed every allowedTTL, and a revoked one is refused after that.
func TestAcceptedTokensAreReviewedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		token := claims{Subject: "prometheus"}.token()
		for range 600 {
			if got := w.get("/metrics", "10.0.0.1", token); got != 200 {
				t.Fatal(got)
			}
			time.Sleep(time.Second)
		}
		if n := w.reviews(); n != 20 {
			t.Errorf("%d reviews in 600 scrapes, want one each %v", n, allowedTTL)
		}
		w.set(func() { w.revoked = true })
		start := time.Now()
		for w.get("/metrics", "10.0.0.1", token) == 200 {
			time.Sleep(time.Second)
		}
		if d := time.Since(start); d > allowedTTL+time.Second {
			t.Errorf("a revoked token is valid for %v", d)
		}
		w.set(func() { w.revoked = false })
		time.Sleep(refusedTTL)
		if got := w.get("/metrics", "10.0.0.1", token); got != 200 {
			t.Errorf("valid again: %d", got)
		}
	})
}

// While the API server fails or hangs, known tokens go on until outageTTL or their own
// end, and their scrapes are not held up; unknown ones are refused.
func TestOutage(t *testing.T) {
	f := func(name string, fail func(*apiServer)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				const half = 30 * time.Minute
				long := claims{Subject: "prometheus", Audiences: []string{Audience}, Expires: time.Now().Add(24 * time.Hour).Unix()}.token()
				short := claims{Subject: "prometheus", Audiences: []string{Audience}, Expires: time.Now().Add(half).Unix()}.token()
				for _, token := range []string{long, short} {
					if got := w.get("/metrics", "10.0.0.1", token); got != 200 {
						t.Fatal(got)
					}
				}
				w.set(func() { fail(w.apiServer) })
				begin := time.Now()
				for time.Since(begin) < outageTTL-time.Minute {
					at := time.Now()
					if got := w.get("/metrics", "10.0.0.1", long); got != 200 {
						t.Fatalf("after %v: %d", time.Since(begin), got)
					}
					if d := time.Since(at); d > reviewPatience {
						t.Fatalf("a scrape took %v", d)
					}
					if got := w.get("/metrics", "10.0.0.1", short); got == 200 && time.Since(begin) > half+time.Second {
						t.Fatalf("a token is valid after its end")
					}
					if got := w.get("/metrics", "10.0.0.9", claims{Subject: "prometheus", Audiences: []string{Audience, time.Now().String()}}.token()); got != 503 && got != 429 {
						t.Fatalf("an unknown token: %d", got)
					}
					time.Sleep(5 * time.Second)
				}
				time.Sleep(time.Minute)
				if got := w.get("/metrics", "10.0.0.1", long); got == 200 {
					t.Errorf("a token is valid %v after its last review", time.Since(begin))
				}
				w.set(func() { w.err, w.delay = nil, 0 })
				time.Sleep(time.Minute)
				if got := w.get("/metrics", "10.0.0.1", long); got != 200 {
					t.Errorf("after the outage: %d", got)
				}
			})
		})
	}
	f("fails", func(s *apiServer) { s.err = errors.New("connection refused") })
	f("hangs", func(s *apiServer) { s.delay = time.Hour })
}

// 10,000 different tokens a second from 200 pods, valid and not: the reviews and the
// memory are bounded, and neither a known scraper nor the next token of one notices.
func TestFloodOfTokens(t *testing.T) {
	var pods []string
	for i := range 200 {
		pods = append(pods, fmt.Sprintf("10.1.0.%d", i))
	}
	f := func(name string, token func(i int) string) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				scraper := func(n int) string {
					return claims{Subject: "prometheus", Audiences: []string{Audience, fmt.Sprint(n)}}.token()
				}
				if got := w.get("/metrics", "10.0.0.1", scraper(0)); got != 200 {
					t.Fatal(got)
				}
				heap := heapNow()
				before, seconds := w.reviews(), 3
				for s := range seconds {
					for i := range 10_000 {
						if got := w.get("/metrics", pods[i%len(pods)], token(s*10_000+i)); got == 200 || got < 0 {
							t.Fatalf("a token of the flood: %d", got)
						}
					}
					if got := w.get("/metrics", "10.0.0.1", scraper(0)); got != 200 {
						t.Fatalf("the scraper after %d s: %d", s, got)
					}
					time.Sleep(time.Second)
				}
				// It rotates its token in the middle of the flood.
				if got := w.get("/metrics", "10.0.0.1", scraper(1)); got != 200 {
					t.Errorf("the scraper's next token: %d", got)
				}
				if n, most := w.reviews()-before, 2*seconds+2*10+5; n > most {
					t.Errorf("%d reviews in %d s, want at most %d", n, seconds, most)
				}
				if grown := int64(heapNow()) - int64(heap); grown > 4<<20 {
					t.Errorf("%d KiB more memory", grown>>10)
				}
				if len(w.guard.allowed) > 3 || len(w.guard.refused) > maxRefused || len(w.guard.running) != 0 {
					t.Errorf("%d allowed, %d refused, %d running", len(w.guard.allowed), len(w.guard.refused), len(w.guard.running))
				}
			})
		})
	}
	f("invalid", func(i int) string { return fmt.Sprintf("guess-%d", i) })
	tail := strings.Repeat("x", 15<<10)
	f("long", func(i int) string { return fmt.Sprint(i) + tail })
	f("of a tenant", func(i int) string {
		return claims{Subject: "tenant", Audiences: []string{Audience, fmt.Sprint(i)}}.token()
	})
}

func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Concurrent scrapes with one token cost one review, and a client that gives up does not
// end it for the others.
func TestConcurrentScrapesShareAReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set(func() { w.delay = time.Second })
		token := claims{Subject: "prometheus"}.token()
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		go w.h.ServeHTTP(httptest.NewRecorder(), r)
		synctest.Wait()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if got := w.get("/metrics", "10.0.0.1", token); got != 200 {
					t.Errorf("%d", got)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if n := w.reviews(); n != 1 {
			t.Errorf("%d reviews", n)
		}
	})
}

// The accepted tokens are bounded: the one that was reviewed the longest time ago goes.
func TestAcceptedTokensAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 2 * maxAllowed {
			if got := w.get("/metrics", fmt.Sprintf("10.0.%d.%d", i/200, i%200), claims{Subject: "root", Audiences: []string{Audience, fmt.Sprint(i)}}.token()); got != 200 {
				t.Fatalf("%d: %d", i, got)
			}
			time.Sleep(time.Second)
		}
		if len(w.guard.allowed) != maxAllowed {
			t.Errorf("%d tokens", len(w.guard.allowed))
		}
	})
}
