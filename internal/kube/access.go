// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
)

// Audience is an audience of tokens that Access accepts beside the API server's
// own. A token that is bound to it is useless anywhere else.
const Audience = "gpupilot.dev"

// How long an answer of the API server is used, and how many are kept. A token
// that is revoked, or a right that is taken away, works for this long.
const (
	acceptedFor = 30 * time.Second // a token's owner
	refusedFor  = 10 * time.Second // that a token has no owner
	allowedFor  = time.Minute      // a right, and its absence
	knownFor    = time.Hour        // that a token was accepted once
	maxTokens   = 1024             // accepted; as many refused and known ones
	maxRights   = 16 << 10
)

// Bounds of what the API server is asked.
const (
	reviewTimeout  = 5 * time.Second
	reviewsAtOnce  = 16
	reviewsQPS     = 50 // a budget of its own: a flood of reviews must not delay the lease
	reviewsBurst   = 100
	rightsAtOnce   = 8  // for one answer
	rightsAnAnswer = 64 // the rest is asked with the next one
)

// tokenReviewer creates TokenReviews; client-go's typed client does.
type tokenReviewer interface {
	Create(ctx context.Context, r *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// accessReviewer creates SubjectAccessReviews; client-go's typed client does.
type accessReviewer interface {
	Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, opts metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Access asks the API server who owns a token and what the owner may read. It
// keeps answers briefly; concurrent equal questions are asked once.
type Access struct {
	tokens tokenReviewer
	rights accessReviewer
	log    *slog.Logger
	salt   [32]byte // so that the keys below tell nothing of the tokens

	accepted, refused, known *cache.LRUExpireCache // by the token's hash
	allowed                  *cache.LRUExpireCache // by user and right
	asking                   singleflight.Group
	slots                    chan struct{}

	mu   sync.Mutex
	lost bool // the last review failed

	counts struct{ accepted, refused, allowed, denied, failed atomic.Uint64 }
}

// NewAccess makes an Access with its own budget of requests.
func NewAccess(rc *rest.Config, log *slog.Logger) (*Access, error) {
	own := rest.CopyConfig(rc)
	own.QPS, own.Burst = reviewsQPS, reviewsBurst
	set, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("make a client for TokenReviews: %w", err)
	}
	return newAccess(set.AuthenticationV1().TokenReviews(), set.AuthorizationV1().SubjectAccessReviews(), log), nil
}

func newAccess(tokens tokenReviewer, rights accessReviewer, log *slog.Logger) *Access {
	a := &Access{
		tokens: tokens, rights: rights, log: log, slots: make(chan struct{}, reviewsAtOnce),
		accepted: cache.NewLRUExpireCache(maxTokens), refused: cache.NewLRUExpireCache(maxTokens),
		known: cache.NewLRUExpireCache(maxTokens), allowed: cache.NewLRUExpireCache(maxRights),
	}
	_, _ = rand.Read(a.salt[:]) // it never fails
	return a
}

func (a *Access) hash(parts ...string) string {
	h := hmac.New(sha256.New, a.salt[:])
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return string(h.Sum(nil))
}

// Known reports whether a token needs no budget of logins: its answer is in
// memory, or it was accepted within the last hour.
func (a *Access) Known(token string) bool {
	key := a.hash(token)
	for _, c := range []*cache.LRUExpireCache{a.known, a.refused} {
		if _, ok := c.Get(key); ok {
			return true
		}
	}
	return false
}

// Authenticate finds the owner of a token. It returns nil if the token has
// none, and an error if the API server does not say.
func (a *Access) Authenticate(ctx context.Context, token string) (*Viewer, error) {
	key := a.hash(token)
	if v, ok := a.accepted.Get(key); ok {
		return v.(*Viewer), nil
	}
	if _, ok := a.refused.Get(key); ok {
		return nil, nil
	}
	v, err := a.ask(ctx, "token/"+key, func(ctx context.Context) (any, error) { return a.review(ctx, key, token) })
	if err != nil {
		return nil, err
	}
	return v.(*Viewer), nil
}

// review asks whose token it is. Only a token that is bound to our audience is
// asked about with it: one of the API server's own would not match.
func (a *Access) review(ctx context.Context, key, token string) (*Viewer, error) {
	r := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	ours := slices.Contains(audiences(token), Audience)
	if ours {
		r.Spec.Audiences = []string{Audience}
	}
	r, err := a.tokens.Create(ctx, r, metav1.CreateOptions{})
	if err = a.answered(err); err != nil {
		return nil, fmt.Errorf("ask the API server whose token it is: %w", err)
	}
	if !r.Status.Authenticated || ours && !slices.Contains(r.Status.Audiences, Audience) {
		a.counts.refused.Add(1)
		a.known.Remove(key)
		a.refused.Add(key, true, refusedFor)
		return nil, nil
	}
	a.counts.accepted.Add(1)
	who, err := json.Marshal(r.Status.User)
	if err != nil {
		return nil, fmt.Errorf("encode a user: %w", err)
	}
	v := &Viewer{access: a, key: a.hash("user", string(who)), user: r.Status.User}
	a.accepted.Add(key, v, acceptedFor)
	a.known.Add(key, true, knownFor)
	return v, nil
}

// ask makes a request once for all that want its answer, in a context of its
// own: one of them that leaves does not take the answer from the others.
func (a *Access) ask(ctx context.Context, key string, f func(context.Context) (any, error)) (any, error) {
	answer := a.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		select {
		case a.slots <- struct{}{}:
			defer func() { <-a.slots }()
		case <-ctx.Done():
			return nil, fmt.Errorf("%d reviews are under way: %w", reviewsAtOnce, ctx.Err())
		}
		return f(ctx)
	})
	select {
	case r := <-answer:
		return r.Val, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answered logs the first of a row of failures, and its end.
func (a *Access) answered(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err != nil:
		a.counts.failed.Add(1)
		if !a.lost {
			a.log.Warn("cannot review tokens or rights, the page answers 503", "err", err)
		}
	case a.lost:
		a.log.Info("reviews of tokens and rights work again")
	}
	a.lost = err != nil
	return err
}

// Viewer is the owner of a token.
type Viewer struct {
	access *Access
	key    string
	user   authenticationv1.UserInfo
}

// Key is the same for all tokens of one user with the same groups.
func (v *Viewer) Key() string { return v.key }

// Name is the user's name.
func (v *Viewer) Name() string { return v.user.Username }

// All reports whether the viewer may get GPUAutoscalers in all namespaces.
func (v *Viewer) All(ctx context.Context) (bool, error) { return v.may(ctx, inNamespace("")) }

// Metrics reports whether the viewer may read /metrics: by the right to that
// path, as the components of Kubernetes have it, or like All.
func (v *Viewer) Metrics(ctx context.Context) (bool, error) {
	ok, err := v.may(ctx, right{key: "path//metrics", spec: authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	}})
	if ok || err != nil {
		return ok, err
	}
	return v.All(ctx)
}

// Readable returns those of the namespaces in which the viewer may get
// GPUAutoscalers. It asks for a limited number of rights; unasked is how many
// namespaces the next call will ask about.
func (v *Viewer) Readable(ctx context.Context, namespaces []string) (readable []string, unasked int, err error) {
	var ask []string
	for _, ns := range namespaces {
		switch ok, cached := v.cached(inNamespace(ns)); {
		case ok:
			readable = append(readable, ns)
		case cached:
		case len(ask) < rightsAnAnswer:
			ask = append(ask, ns)
		default:
			unasked++
		}
	}
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, rightsAtOnce)
		fails []error
	)
	for _, ns := range ask {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ok, err := v.may(ctx, inNamespace(ns))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				fails = append(fails, err)
			} else if ok {
				readable = append(readable, ns)
			}
		})
	}
	all.Wait()
	if len(fails) > 0 {
		return nil, 0, fails[0]
	}
	slices.Sort(readable)
	return readable, unasked, nil
}

// right is what a SubjectAccessReview is about, without its user.
type right struct {
	key  string
	spec authorizationv1.SubjectAccessReviewSpec
}

func inNamespace(ns string) right {
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

func (v *Viewer) may(ctx context.Context, r right) (bool, error) {
	if ok, cached := v.cached(r); cached {
		return ok, nil
	}
	ok, err := v.access.ask(ctx, "right/"+v.key+r.key, func(ctx context.Context) (any, error) { return v.review(ctx, r) })
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
	if err = v.access.answered(err); err != nil {
		return false, fmt.Errorf("ask the API server for a user's rights: %w", err)
	}
	ok := answer.Status.Allowed && !answer.Status.Denied
	if ok {
		v.access.counts.allowed.Add(1)
	} else {
		v.access.counts.denied.Add(1)
	}
	v.access.allowed.Add(v.key+r.key, ok, allowedFor)
	return ok, nil
}

// AccessStats are counts of reviews since the start.
type AccessStats struct {
	Accepted, Refused uint64 // TokenReviews
	Allowed, Denied   uint64 // SubjectAccessReviews
	Failed            uint64 // of both, without an answer
}

// Stats meters the reviews.
func (a *Access) Stats() AccessStats {
	c := &a.counts
	return AccessStats{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(),
		Allowed: c.allowed.Load(), Denied: c.denied.Load(), Failed: c.failed.Load(),
	}
}

// audiences reads the audiences of a JSON web token without checking it: the
// API server does that. It returns none for anything else.
func audiences(token string) []string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var claims struct {
		Audience any `json:"aud"`
	}
	if json.Unmarshal(body, &claims) != nil {
		return nil
	}
	switch aud := claims.Audience.(type) {
	case string:
		return []string{aud}
	case []any:
		out := make([]string, 0, len(aud))
		for _, x := range aud {
			if s, ok := x.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}
