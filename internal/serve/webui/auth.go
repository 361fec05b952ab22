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

// TokenHeader is the header for a token behind the API server's service proxy, which
// removes the header Authorization.
const TokenHeader = "X-Gpupilot-Token" // the name of a header

// maxToken is the length limit of tokens in bytes. Tokens with many groups have some
// kilobytes.
const maxToken = 16 << 10

// Access authenticates tokens.
type Access interface {
	// Known reports whether Authenticate is cheap for the token: the result is in
	// memory, or the token was accepted recently.
	Known(token string) bool
	// Authenticate returns the owner of a token; nil if the token is not valid. It
	// returns an error if the API server does not answer.
	Authenticate(ctx context.Context, token string) (Viewer, error)
}

// Viewer is the owner of a token. Its methods return an error if the API server does
// not answer.
type Viewer interface {
	// Key is the same for all requests of one user.
	Key() string
	// All reports whether the viewer may see all namespaces, nodes and targets.
	All(ctx context.Context) (bool, error)
	// Metrics reports whether the viewer may read /metrics.
	Metrics(ctx context.Context) (bool, error)
	// Readable returns the namespaces that the viewer may see, sorted. unasked is the
	// number of namespaces whose rights are not known yet; later calls ask for them.
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

// viewer returns the viewer of a request. If it returns false, it has already sent
// an error.
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
		refuse(w, http.StatusTooManyRequests, retry, "too many requests from this user; try again later")
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
			refuse(w, http.StatusTooManyRequests, retry, "too many logins with invalid tokens; try again later")
			return nil, false
		}
	}
	v, err := p.access.Authenticate(r.Context(), token)
	switch {
	case err != nil:
		paid.refund(1, now)
		unavailable(w)
	case v == nil:
		unauthorized(w, "the API server rejects the token; it may have expired")
	default:
		paid.refund(successRefund, now)
		return v, true
	}
	return nil, false
}

// tokenOf returns the request's token. TokenHeader has precedence over Authorization.
func tokenOf(r *http.Request) (string, error) {
	token := r.Header.Get(TokenHeader)
	if auth := r.Header.Get("Authorization"); auth != "" && token == "" {
		scheme, rest, _ := strings.Cut(auth, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", errors.New("the header Authorization needs a Kubernetes token: Bearer TOKEN")
		}
		token = strings.TrimSpace(rest)
	}
	switch {
	case token == "":
		return "", errors.New("a Kubernetes token is required: Authorization: Bearer TOKEN, or " + TokenHeader + ": TOKEN")
	case len(token) > maxToken:
		return "", errors.New("the token is longer than " + strconv.Itoa(maxToken) + " bytes")
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", errors.New("the token has characters that are not printable ASCII")
	}
	return token, nil
}

func unauthorized(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="gpupilot"`)
	writeError(w, http.StatusUnauthorized, why)
}

func unavailable(w http.ResponseWriter) {
	refuse(w, http.StatusServiceUnavailable, time.Second, "the API server does not answer a check of the token or its rights; try again")
}

func refuse(w http.ResponseWriter, status int, retry time.Duration, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(retry.Seconds())))))
	writeError(w, status, why)
}

func writeError(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, map[string]string{"error": why})
}

// GuardMetrics serves next only to viewers with the right to read /metrics.
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
