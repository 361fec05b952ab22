// SPDX-License-Identifier: Apache-2.0

package tokenreview

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
)

// The fields of authentication.k8s.io/v1 and authorization.k8s.io/v1 that are used.
type (
	tokenReview struct {
		APIVersion string      `json:"apiVersion"`
		Kind       string      `json:"kind"`
		Spec       tokenSpec   `json:"spec"`
		Status     tokenStatus `json:"status,omitzero"`
	}
	tokenSpec struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences,omitempty"`
	}
	tokenStatus struct {
		Authenticated bool     `json:"authenticated"`
		User          user     `json:"user"`
		Audiences     []string `json:"audiences"`
	}
	user struct {
		Username string              `json:"username"`
		UID      string              `json:"uid"`
		Groups   []string            `json:"groups"`
		Extra    map[string][]string `json:"extra"`
	}
	accessReview struct {
		APIVersion string       `json:"apiVersion"`
		Kind       string       `json:"kind"`
		Spec       accessSpec   `json:"spec"`
		Status     accessStatus `json:"status,omitzero"`
	}
	accessSpec struct {
		Path   pathRight           `json:"nonResourceAttributes"`
		User   string              `json:"user"`
		UID    string              `json:"uid,omitempty"`
		Groups []string            `json:"groups,omitempty"`
		Extra  map[string][]string `json:"extra,omitempty"`
	}
	pathRight struct {
		Path string `json:"path"`
		Verb string `json:"verb"`
	}
	accessStatus struct {
		Allowed bool `json:"allowed"`
		Denied  bool `json:"denied"`
	}
)

// review asks the API server whose token it is, and whether its owner may get the path.
// It requests our audience only for tokens that claim it, because tokens for the API
// server would not match.
func (g *Guard) review(ctx context.Context, token string, claims bearer.Claims, path string) (verdict, error) {
	who := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: tokenSpec{Token: token}}
	ours := slices.Contains(claims.Audiences, Audience)
	if ours {
		who.Spec.Audiences = []string{Audience}
	}
	if err := g.api.Create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", who, &who); err != nil {
		return 0, fmt.Errorf("create a TokenReview: %w", err)
	}
	if !who.Status.Authenticated || ours && !slices.Contains(who.Status.Audiences, Audience) {
		return invalid, nil
	}
	u := who.Status.User
	may := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview", Spec: accessSpec{
		Path: pathRight{path, "get"}, User: u.Username, UID: u.UID, Groups: u.Groups, Extra: u.Extra,
	}}
	if err := g.api.Create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", may, &may); err != nil {
		return 0, fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	if !may.Status.Allowed || may.Status.Denied {
		return forbidden, nil
	}
	return allowed, nil
}

// pending is a review that is under way.
type pending struct {
	done    chan struct{} // closed: verdict and err are set
	verdict verdict
	err     error
}

// start starts a review of a token in its own goroutine: a client that gives up does not
// end it for the others. login is nil for a token that was accepted before. The caller
// holds g.mu.
func (g *Guard) start(k key, token, path, source string, login *bearer.Login) *pending {
	p := &pending{done: make(chan struct{})}
	g.running[k] = p
	go func() {
		defer close(p.done)
		ctx, cancel := context.WithTimeout(context.Background(), reviewTimeout)
		defer cancel()
		claims := bearer.ReadClaims(token)
		p.verdict, p.err = g.review(ctx, token, claims, path)
		now := time.Now()
		g.note(p.err)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.running, k)
		switch {
		case p.err != nil:
			login.Unanswered(now)
		case p.verdict == allowed:
			login.Accepted(now)
			g.logins.Accepted(source, now) // also without a login
			g.remember(k, claims.Expires, now)
		default:
			delete(g.allowed, k)
			g.refuse(k, p.verdict, now)
		}
	}()
	return p
}

// remember stores a token that may read. The caller holds g.mu.
func (g *Guard) remember(k key, expires, now time.Time) {
	a := answer{at: now, until: now.Add(outageTTL)}
	if !expires.IsZero() && expires.Before(a.until) {
		a.until = expires
	}
	if _, ok := g.allowed[k]; !ok && len(g.allowed) >= maxAllowed {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(g.allowed)), func(x, y key) int { return g.allowed[x].at.Compare(g.allowed[y].at) })
		delete(g.allowed, oldest)
	}
	g.allowed[k] = a
}

// refuse stores a token that may not read. The caller holds g.mu.
func (g *Guard) refuse(k key, v verdict, now time.Time) {
	if len(g.refused) >= maxRefused {
		clear(g.refused)
	}
	g.refused[k] = refusal{v, now}
}

// note logs the first and the end of consecutive failures of the API server.
func (g *Guard) note(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case err != nil && !g.failing:
		g.log.Warn("tokens cannot be reviewed; those that were accepted within the last hour remain valid", "err", err)
	case err == nil && g.failing:
		g.log.Info("tokens are reviewed again")
	}
	g.failing = err != nil
}
