// SPDX-License-Identifier: Apache-2.0

// Package tokenreview serves the agent's metrics only to clients with a Kubernetes token
// whose owner may get them, as the API server's components do: the API server reviews
// the token (TokenReview) and the right to get the path (SubjectAccessReview).
//
// Clients are hostile: every pod can reach the agent with as many tokens as it likes.
// So results are cached, and the reviews of unknown tokens have a budget per source.
package tokenreview

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
)

// Audience is the token audience that agents accept in addition to the API server's own.
// Other programs do not accept a token with this audience, so that it is worth nothing
// to whoever takes an agent's address.
const Audience = "agent.gpupilot.dev"

// The lifetimes and numbers of cached results. A revoked token, or a removed right,
// remains valid for allowedTTL and one more request.
const (
	allowedTTL = 30 * time.Second
	refusedTTL = 10 * time.Second
	outageTTL  = time.Hour // since the last answer, while the API server does not answer
	maxAllowed = 256
	maxRefused = 1024
)

// The bounds of reviews.
const (
	reviewTimeout = 5 * time.Second
	// reviewAgain is the shortest time between two reviews of a token that was accepted,
	// and reviewPatience how long its owner waits for them. An API server that hangs
	// delays one scrape in reviewAgain, by this time.
	reviewAgain    = 5 * time.Second
	reviewPatience = 250 * time.Millisecond
)

// limits are the budgets of unknown tokens. However many pods try, an agent begins at most
// two reviews a second for them, and one for clients whose token it has accepted before.
var limits = bearer.LoginLimits{Burst: 5, PerSecond: 0.1, Sources: 1024, TotalBurst: 10, TotalPerSecond: 1}

// API creates objects of the API server; *apiwatch.Client does.
type API interface {
	Create(ctx context.Context, path string, object, answer any) error
}

// Guard lets clients through whose token may read.
type Guard struct {
	api    API
	log    *slog.Logger
	salt   [32]byte // so that memory does not hold what a token can be recognised by
	logins *bearer.Logins

	mu      sync.Mutex
	allowed map[key]answer
	refused map[key]refusal
	running map[key]*pending
	failing bool // the last review failed
}

// key is the digest of a token and a path.
type key [sha256.Size]byte

// answer is a token that was accepted.
type answer struct {
	at    time.Time // of the last review with an answer
	until time.Time // the end of outageTTL, or the token's own
	asked time.Time // when the last review began, if at was too long ago
}

type refusal struct {
	verdict verdict
	at      time.Time
}

// verdict is the result of a review.
type verdict uint8

const (
	allowed   verdict = iota + 1
	forbidden         // the owner of the token may not get the path
	invalid           // the token has no owner
)

// New returns a Guard.
func New(api API, log *slog.Logger) *Guard {
	g := &Guard{
		api: api, log: log, logins: bearer.NewLogins(limits),
		allowed: map[key]answer{}, refused: map[key]refusal{}, running: map[key]*pending{},
	}
	_, _ = rand.Read(g.salt[:]) // it never fails
	return g
}

// Wrap requires a token for everything but the health checks.
func (g *Guard) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health", "/healthz", "/readyz":
			h.ServeHTTP(w, r)
			return
		}
		token, err := bearer.Of(r, "")
		if err != nil {
			unauthorized(w, err.Error())
			return
		}
		path := rightOf(r.URL.Path)
		v, retry, err := g.check(r.Context(), token, path, bearer.SourceOf(r.RemoteAddr))
		switch {
		case v == allowed:
			h.ServeHTTP(w, r)
		case v == forbidden:
			http.Error(w, "the token's owner may not get "+path+"; the ClusterRole gpupilot:metrics-reader has the right to get /metrics", http.StatusForbidden)
		case v == invalid:
			unauthorized(w, "the API server rejects the token; it may have expired")
		case err != nil:
			refuse(w, http.StatusServiceUnavailable, time.Second, "the API server does not answer a review of the token; try again")
		default:
			refuse(w, http.StatusTooManyRequests, retry, "too many unknown tokens from this address, or from all together; try again later")
		}
	})
}

// rightOf returns the path that a client must have the right to get. The right to read
// metrics does not include profiles, which have parts of the memory.
func rightOf(path string) string {
	if strings.HasPrefix(path, "/debug/") {
		return "/debug/pprof"
	}
	return "/metrics"
}

func unauthorized(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="gpupilot-agent"`)
	http.Error(w, why, http.StatusUnauthorized)
}

func refuse(w http.ResponseWriter, status int, retry time.Duration, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(retry.Seconds())))))
	http.Error(w, why, status)
}

func (g *Guard) keyOf(token, path string) key {
	h := hmac.New(sha256.New, g.salt[:])
	_, _ = h.Write([]byte(path + " " + token)) // neither has a space; writing to a hash cannot fail
	return key(h.Sum(nil))
}

// errNoReview is the error of an unknown token while the API server does not answer.
var errNoReview = errors.New("the API server does not answer")

// check returns whether a token may get the path. Without a verdict and an error, the
// budget of reviews is used up for the time retry.
func (g *Guard) check(ctx context.Context, token, path, source string) (v verdict, retry time.Duration, err error) {
	k := g.keyOf(token, path)
	p, v, retry := g.begin(k, token, path, source, time.Now())
	if p == nil {
		return v, retry, nil
	}
	patience := reviewTimeout + time.Second // the review ends before
	if v == allowed {
		patience = reviewPatience
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		if p.err == nil {
			return p.verdict, 0, nil
		}
	case <-timer.C:
	case <-ctx.Done():
	}
	if v == allowed {
		return allowed, 0, nil // it was, within outageTTL
	}
	return 0, 0, errNoReview
}

// begin returns the cached verdict. If that is unknown or old, it also returns the review
// to wait for.
func (g *Guard) begin(k key, token, path, source string, now time.Time) (*pending, verdict, time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.refused[k]; ok && now.Sub(r.at) < refusedTTL {
		return nil, r.verdict, 0
	}
	p := g.running[k]
	a, ok := g.allowed[k]
	if ok && now.Before(a.until) {
		if p != nil || now.Sub(a.at) < allowedTTL || now.Sub(a.asked) < reviewAgain {
			return nil, allowed, 0
		}
		a.asked = now
		g.allowed[k] = a
		return g.start(k, token, path, source, nil), allowed, 0
	}
	if p != nil {
		return p, 0, 0
	}
	login, retry := g.logins.Begin(source, now)
	if login == nil {
		return nil, 0, retry
	}
	return g.start(k, token, path, source, login), 0, 0
}
