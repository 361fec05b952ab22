// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// loginLimits are the budgets of logins with unknown tokens. Each costs the API server a
// TokenReview.
var loginLimits = bearer.LoginLimits{Burst: 10, PerSecond: 0.2, Sources: 4096, TotalBurst: 100, TotalPerSecond: 10}

// The budgets of requests.
const (
	requestsBurst     = 200 // of one user
	requestsPerSecond = 40  // an open page sends 7
	requestsUsers     = 4096
	allRequestsBurst  = 1000 // without authentication, of all together
	allRequestsPerSec = 500
)

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
	// Payer is who pays for what the viewer asks for.
	Payer() fair.Payer
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
func (everybody) Payer() fair.Payer                     { return fair.Payer{} }
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
		token, err := bearer.Of(r, view.TokenHeader)
		if err != nil {
			unauthorized(w, err.Error())
			return nil, false
		}
		if v, ok = p.login(w, r, token, now); !ok {
			return nil, false
		}
		budget = p.users
	}
	if allowed, retry := budget.Take(v.Key(), now); !allowed {
		p.limited.requests.Add(1)
		refuse(w, http.StatusTooManyRequests, retry, "too many requests from this user; try again later")
		return nil, false
	}
	return v, true
}

// login authenticates a token, if the budget of its source allows it.
func (p *Page) login(w http.ResponseWriter, r *http.Request, token string, now time.Time) (Viewer, bool) {
	var paid *bearer.Login
	if source := bearer.SourceOf(r.RemoteAddr); !p.access.Known(token) {
		var retry time.Duration
		if paid, retry = p.logins.Begin(source, now); paid == nil {
			p.limited.logins.Add(1)
			refuse(w, http.StatusTooManyRequests, retry, "too many logins with invalid tokens; try again later")
			return nil, false
		}
	}
	v, err := p.access.Authenticate(r.Context(), token)
	switch {
	case err != nil:
		paid.Refund(now)
		unavailable(w)
	case v == nil:
		unauthorized(w, "the API server rejects the token; it may have expired")
	default:
		paid.Accepted(now)
		return v, true
	}
	return nil, false
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
