// SPDX-License-Identifier: Apache-2.0

// Package access authenticates and authorizes the viewers of the page by TokenReviews and
// SubjectAccessReviews.
package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/meter"
)

// Audience is the token audience that a Reviewer accepts in addition to the API server's
// own. Other programs do not accept a token with this audience.
const Audience = "gpupilot.dev"

// The lifetimes and numbers of cached reviews. A revoked token, or a removed
// permission, remains valid for this long.
const (
	acceptedTTL = 30 * time.Second // a token's owner
	refusedTTL  = 10 * time.Second // a token without an owner
	allowedTTL  = time.Minute      // a permission, granted or denied
	knownTTL    = time.Hour        // a token that was accepted before
	maxTokens   = 1024             // of accepted, refused and known tokens each
	maxRights   = 16 << 10
)

// The bounds of requests to the API server.
const (
	reviewTimeout      = 5 * time.Second
	maxParallelReviews = 16
	maxParallelOfPayer = 8  // those that wait take turns by payer
	reviewsQPS         = 50 // separate from other requests: many reviews must not delay the lease
	reviewsBurst       = 100
	maxParallelRights  = 8  // of one payer, for calls of Readable; twice as many of all
	maxRightsPerCall   = 64 // the next call reviews the others
)

// tokenReviewer creates TokenReviews; client-go's typed client does.
type tokenReviewer interface {
	Create(ctx context.Context, r *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// accessReviewer creates SubjectAccessReviews; client-go's typed client does.
type accessReviewer interface {
	Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Reviewer authenticates and authorizes tokens through the API server. It caches the
// results briefly, and sends concurrent equal requests only once.
type Reviewer struct {
	tokens tokenReviewer
	rights accessReviewer
	log    *slog.Logger
	salt   [32]byte // so that the cache keys do not reveal the tokens

	accepted, refused, known *cache.LRUExpireCache // by the token's hash
	allowed                  *cache.LRUExpireCache // by user and right
	inFlight                 singleflight.Group
	slots                    *fair.Slots // of reviews
	readers                  *fair.Slots // of calls of Readable

	mu      sync.Mutex
	failing bool // the last review failed

	counts struct{ accepted, refused, allowed, denied, failed atomic.Uint64 }
}

// New makes a Reviewer with a request rate limit of its own.
func New(rc *rest.Config, log *slog.Logger) (*Reviewer, error) {
	own := rest.CopyConfig(rc)
	own.QPS, own.Burst = reviewsQPS, reviewsBurst
	set, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("make a client for TokenReviews: %w", err)
	}
	return newAccess(set.AuthenticationV1().TokenReviews(), set.AuthorizationV1().SubjectAccessReviews(), log), nil
}

func newAccess(tokens tokenReviewer, rights accessReviewer, log *slog.Logger) *Reviewer {
	a := &Reviewer{
		tokens: tokens, rights: rights, log: log, slots: fair.NewSlots(fair.Config{Slots: maxParallelReviews, Share: maxParallelOfPayer}),
		readers:  fair.NewSlots(fair.Config{Slots: 2 * maxParallelRights, Share: maxParallelRights}),
		accepted: cache.NewLRUExpireCache(maxTokens), refused: cache.NewLRUExpireCache(maxTokens),
		known: cache.NewLRUExpireCache(maxTokens), allowed: cache.NewLRUExpireCache(maxRights),
	}
	_, _ = rand.Read(a.salt[:]) // it never fails
	return a
}

func (a *Reviewer) hash(parts ...string) string {
	h := hmac.New(sha256.New, a.salt[:])
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return string(h.Sum(nil))
}

// Known reports whether a token does not count as a new login: its result is cached,
// or it was accepted within the last hour.
func (a *Reviewer) Known(token string) bool {
	key := a.hash(token)
	for _, c := range []*cache.LRUExpireCache{a.known, a.refused} {
		if _, ok := c.Get(key); ok {
			return true
		}
	}
	return false
}

// Authenticate returns the owner of a token. It returns nil if the token has none, and
// an error if the API server does not answer.
func (a *Reviewer) Authenticate(ctx context.Context, token string) (*Viewer, error) {
	key := a.hash(token)
	if v, ok := a.accepted.Get(key); ok {
		return v.(*Viewer), nil
	}
	if _, ok := a.refused.Get(key); ok {
		return nil, nil
	}
	// What an invalid token claims may be false, but invalid ones have a budget of their own.
	v, err := a.doOnce(ctx, fair.Account(bearer.ReadClaims(token).Subject), "token/"+key, func(ctx context.Context) (any, error) { return a.review(ctx, key, token) })
	if err != nil {
		return nil, err
	}
	return v.(*Viewer), nil
}

// review creates a TokenReview. It requests our audience only for tokens that contain
// it, because tokens for the API server would not match.
func (a *Reviewer) review(ctx context.Context, key, token string) (*Viewer, error) {
	r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	ours := slices.Contains(bearer.ReadClaims(token).Audiences, Audience)
	if ours {
		r.Spec.Audiences = []string{Audience}
	}
	r, err := a.tokens.Create(ctx, r, metav1.CreateOptions{})
	if err = a.noteResult(err); err != nil {
		return nil, fmt.Errorf("review a token: %w", err)
	}
	if !r.Status.Authenticated || ours && !slices.Contains(r.Status.Audiences, Audience) {
		a.counts.refused.Add(1)
		a.known.Remove(key)
		a.refused.Add(key, true, refusedTTL)
		return nil, nil
	}
	a.counts.accepted.Add(1)
	who, err := json.Marshal(r.Status.User)
	if err != nil {
		return nil, fmt.Errorf("encode a user: %w", err)
	}
	v := &Viewer{access: a, key: a.hash("user", string(who)), user: r.Status.User}
	a.accepted.Add(key, v, acceptedTTL)
	a.known.Add(key, true, knownTTL)
	return v, nil
}

// doOnce sends a request once for all concurrent callers with the same key, in a slot of
// the payer. The request has a context of its own, so that a caller that gives up does not cancel it
// for the others.
func (a *Reviewer) doOnce(ctx context.Context, payer fair.Payer, key string, f func(context.Context) (any, error)) (any, error) {
	answer := a.inFlight.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		release, err := a.slots.Acquire(ctx, fair.Request{Payer: payer})
		if err != nil {
			return nil, fmt.Errorf("%d reviews are under way, or %d that %s pays for: %w", maxParallelReviews, maxParallelOfPayer, payer, err)
		}
		defer release()
		return f(ctx)
	})
	select {
	case r := <-answer:
		return r.Val, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// noteResult counts failures, and logs the first and the end of consecutive failures.
func (a *Reviewer) noteResult(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.counts.failed.Add(1)
		if !a.failing {
			a.log.Warn("cannot review tokens or permissions, the page answers 503", "err", err)
		}
	case a.failing:
		a.log.Info("reviews of tokens and permissions work again")
	}
	a.failing = err != nil
	return err
}

// Viewer is the owner of a token.
type Viewer struct {
	access *Reviewer
	key    string
	user   authenticationv1.UserInfo
}

// Key identifies the user and its groups. It is the same for all tokens of one user.
func (v *Viewer) Key() string { return v.key }

// Name is the user's name.
func (v *Viewer) Name() string { return v.user.Username }

// Payer is who pays for what the viewer asks for: the namespace of a service account, or the user.
func (v *Viewer) Payer() fair.Payer { return fair.Account(v.user.Username) }

// All reports whether the viewer may get GPUAutoscalers in all namespaces.
func (v *Viewer) All(ctx context.Context) (bool, error) {
	return v.isAllowed(ctx, getAutoscalersIn(""))
}

// Metrics reports whether the viewer may read /metrics: with the permission for that
// path, as for the components of Kubernetes, or if All is true.
func (v *Viewer) Metrics(ctx context.Context) (bool, error) {
	ok, err := v.isAllowed(ctx, right{key: "path//metrics", spec: authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	}})
	if ok || err != nil {
		return ok, err
	}
	return v.All(ctx)
}

// Readable returns those of the namespaces in which the viewer may get GPUAutoscalers.
// It reviews a limited number of namespaces per call; unasked is the number of
// namespaces that are left for the next call.
func (v *Viewer) Readable(ctx context.Context, namespaces []string) (readable []string, unasked int, err error) {
	var ask []string
	for _, ns := range namespaces {
		switch ok, cached := v.cached(getAutoscalersIn(ns)); {
		case ok:
			readable = append(readable, ns)
		case cached:
		case len(ask) < maxRightsPerCall:
			ask = append(ask, ns)
		default:
			unasked++
		}
	}
	var (
		mu     sync.Mutex
		failed error
	)
	err = v.access.readers.Each(ctx, fair.Request{Payer: v.Payer()}, len(ask), func(i int) {
		ok, err := v.isAllowed(ctx, getAutoscalersIn(ask[i]))
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = cmp.Or(failed, err)
		} else if ok {
			readable = append(readable, ask[i])
		}
	})
	if err = cmp.Or(failed, err); err != nil {
		return nil, 0, err
	}
	slices.Sort(readable)
	return readable, unasked, nil
}

// right is a permission: a SubjectAccessReview without its user.
type right struct {
	key  string
	spec authorizationv1.SubjectAccessReviewSpec
}

func getAutoscalersIn(ns string) right {
	return right{key: "namespace/" + ns, spec: authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Group: v1alpha1.GroupVersion.Group, Resource: "gpuautoscalers", Namespace: ns,
		},
	}}
}

func (v *Viewer) cached(r right) (ok, cached bool) {
	x, cached := v.access.allowed.Get(v.key + r.key)
	ok, _ = x.(bool)
	return ok, cached
}

func (v *Viewer) isAllowed(ctx context.Context, r right) (bool, error) {
	if ok, cached := v.cached(r); cached {
		return ok, nil
	}
	ok, err := v.access.doOnce(ctx, v.Payer(), "right/"+v.key+r.key, func(ctx context.Context) (any, error) { return v.review(ctx, r) })
	if err != nil {
		return false, err
	}
	return ok.(bool), nil
}

func (v *Viewer) review(ctx context.Context, r right) (bool, error) {
	spec := r.spec
	spec.User, spec.UID, spec.Groups = v.user.Username, v.user.UID, v.user.Groups
	if len(v.user.Extra) > 0 {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(v.user.Extra))
		for name, values := range v.user.Extra {
			spec.Extra[name] = authorizationv1.ExtraValue(values)
		}
	}
	answer, err := v.access.rights.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err = v.access.noteResult(err); err != nil {
		return false, fmt.Errorf("review a user's permissions: %w", err)
	}
	ok := answer.Status.Allowed && !answer.Status.Denied
	if ok {
		v.access.counts.allowed.Add(1)
	} else {
		v.access.counts.denied.Add(1)
	}
	v.access.allowed.Add(v.key+r.key, ok, allowedTTL)
	return ok, nil
}

// Stats counts reviews since the start.
type Stats struct {
	Accepted, Refused uint64 // TokenReviews
	Allowed, Denied   uint64 // SubjectAccessReviews
	Failed            uint64 // either kind, without an answer
}

// Stats returns the counts of reviews.
func (a *Reviewer) Stats() Stats {
	c := &a.counts
	return Stats{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		Allowed: c.allowed.Load(), Denied: c.denied.Load(), Failed: c.failed.Load(),
	}
}

// Meter collects the metrics of the reviews.
func (a *Reviewer) Meter(to meter.Sink) {
	s := a.Stats()
	for result, n := range map[string]uint64{"accepted": s.Accepted, "refused": s.Refused, "allowed": s.Allowed, "denied": s.Denied, "error": s.Failed} {
		to.Counter("gpupilot_access_reviews_total", "TokenReviews (accepted, refused) and SubjectAccessReviews (allowed, denied) for viewers of the page, and those without an answer.", float64(n), "result", result)
	}
}
