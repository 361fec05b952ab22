// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// TokenHeader carries a token where Authorization does not reach us: the API
// server's service proxy removes that header.
const TokenHeader = "X-Gpupilot-Token" //nolint:gosec // the name of a header

// maxToken is the longest token that is looked at. Tokens with many groups have
// some kilobytes.
const maxToken = 16 << 10

// Access says who owns a token.
type Access interface {
	// Known reports whether Authenticate is cheap for the token: its answer is in
	// memory, or the token was accepted not long ago.
	Known(token string) bool
	// Authenticate returns nil for a token without an owner, and an error if
	// nobody can tell now.
	Authenticate(ctx context.Context, token string) (Viewer, error)
}

// Viewer is the owner of a token. An error of its methods means that nobody can
// tell now.
type Viewer interface {
	// Key is the same for all requests of one user.
	Key() string
	// All reports whether the viewer may see all namespaces, nodes and targets.
	All(ctx context.Context) (bool, error)
	// Metrics reports whether the viewer may read /metrics.
	Metrics(ctx context.Context) (bool, error)
	// Readable returns those of the namespaces that the viewer may see, sorted.
	// unasked is how many of them a later call will ask about.
	Readable(ctx context.Context, namespaces []string) (readable []string, unasked int, err error)
}

// everybody is the viewer without authentication.
type everybody struct{}

func (everybody) Key() string                           { return "" }
func (everybody) All(context.Context) (bool, error)     { return true, nil }
func (everybody) Metrics(context.Context) (bool, error) { return true, nil }
func (everybody) Readable(_ context.Context, namespaces []string) ([]string, int, error) {
	return namespaces, 0, nil
}

// viewer finds out who asks. ok is false if the request has been answered.
func (p *Page) viewer(w http.ResponseWriter, r *http.Request) (v Viewer, ok bool) {
	now := time.Now()
	budget := p.everybody
	if v = (everybody{}); p.access != nil {
		token, err := tokenOf(r)
		if err != nil {
			unauthorized(w, err.Error())
			return nil, false
		}
		if v, ok = p.login(w, r, token, now); !ok {
			return nil, false
		}
		budget = p.users
	}
	if allowed, retry := budget.take(v.Key(), now); !allowed {
		p.limited.requests.Add(1)
		refuse(w, http.StatusTooManyRequests, retry, "too many requests of one user; try again later")
		return nil, false
	}
	return v, true
}

// login authenticates a token, if the budget of its source allows it.
func (p *Page) login(w http.ResponseWriter, r *http.Request, token string, now time.Time) (Viewer, bool) {
	var paid *login
	if source := sourceOf(r.RemoteAddr); !p.access.Known(token) {
		var retry time.Duration
		if paid, retry = p.logins.begin(source, now); paid == nil {
			p.limited.logins.Add(1)
			refuse(w, http.StatusTooManyRequests, retry, "too many logins with wrong tokens; try again later")
			return nil, false
		}
	}
	v, err := p.access.Authenticate(r.Context(), token)
	switch {
	case err != nil:
		paid.refund(1, now)
		unavailable(w)
	case v == nil:
		unauthorized(w, "the API server does not accept the token; it may have expired")
	default:
		paid.refund(successRefund, now)
		return v, true
	}
	return nil, false
}

// tokenOf is the request's token. Both headers are accepted, but not two tokens.
func tokenOf(r *http.Request) (string, error) {
	token := r.Header.Get(TokenHeader)
	if auth := r.Header.Get("Authorization"); auth != "" && token == "" {
		scheme, rest, _ := strings.Cut(auth, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", errors.New("want a bearer token of Kubernetes in the header Authorization")
		}
		token = strings.TrimSpace(rest)
	}
	switch {
	case token == "":
		return "", errors.New("give a token of Kubernetes: Authorization: Bearer TOKEN, or " + TokenHeader + ": TOKEN")
	case len(token) > maxToken:
		return "", errors.New("the token is longer than " + strconv.Itoa(maxToken) + " bytes")
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", errors.New("the token has characters that no token has")
	}
	return token, nil
}

func unauthorized(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="gpupilot"`)
	writeError(w, http.StatusUnauthorized, why)
}

func unavailable(w http.ResponseWriter) {
	refuse(w, http.StatusServiceUnavailable, time.Second, "the API server does not say who may look; try again")
}

func refuse(w http.ResponseWriter, status int, retry time.Duration, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(retry.Seconds())))))
	writeError(w, status, why)
}

func writeError(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, map[string]string{"error": why})
}

// GuardMetrics lets only those read next who may read /metrics.
func (p *Page) GuardMetrics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, ok := p.viewer(w, r)
		if !ok {
			return
		}
		switch ok, err := v.Metrics(r.Context()); {
		case err != nil:
			unavailable(w)
		case !ok:
			writeError(w, http.StatusForbidden, "the token's owner needs the right to get /metrics, or to get gpuautoscalers.gpupilot.dev in all namespaces")
		default:
			next.ServeHTTP(w, r)
		}
	})
}
