// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reviewers answers reviews: the token of a user is token-USER, and a user may
// read what is in rights, as USER NAMESPACE or USER PATH.
type reviewers struct {
	mu       sync.Mutex
	rights   map[string]bool
	err      error
	delay    time.Duration
	audience string // that tokens are bound to
	tokens   []authenticationv1.TokenReviewSpec
	accesses []string
}

func (f *reviewers) wait(ctx context.Context) error {
	f.mu.Lock()
	delay, err := f.delay, f.err
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
		return err
	}
}

type tokenReviews struct{ *reviewers }

func (f tokenReviews) Create(ctx context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	f.mu.Lock()
	f.tokens = append(f.tokens, r.Spec)
	f.mu.Unlock()
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	out := r.DeepCopy()
	name, ok := strings.CutPrefix(r.Spec.Token, "token-")
	out.Status.Authenticated = ok || f.audience != "" && slices.Contains(r.Spec.Audiences, f.audience)
	if out.Status.Authenticated {
		out.Status.Audiences = r.Spec.Audiences
		out.Status.User = authenticationv1.UserInfo{Username: name, Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	}
	return out, nil
}

type accessReviews struct{ *reviewers }

func (f accessReviews) Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	var what string
	if a := r.Spec.ResourceAttributes; a != nil {
		what = a.Namespace
		if a.Verb != "get" || a.Group != "gpupilot.dev" || a.Resource != "gpuautoscalers" {
			return nil, fmt.Errorf("asked for %+v", a)
		}
	} else {
		what = r.Spec.NonResourceAttributes.Path
	}
	if len(r.Spec.Groups) != 1 || len(r.Spec.Extra["k"]) != 1 {
		return nil, fmt.Errorf("a user without its groups: %+v", r.Spec)
	}
	f.mu.Lock()
	f.accesses = append(f.accesses, what)
	allowed := f.rights[r.Spec.User+" "+what]
	f.mu.Unlock()
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	out := r.DeepCopy()
	out.Status.Allowed = allowed
	return out, nil
}

func (f *reviewers) access() *Reviewer {
	return newAccess(tokenReviews{f}, accessReviews{f}, slog.New(slog.DiscardHandler))
}

func (f *reviewers) asked() (tokens, accesses int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tokens), len(f.accesses)
}

func TestAnswersAreKeptBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &reviewers{}
		a := f.access()
		want := func(tokens int) {
			t.Helper()
			if got, _ := f.asked(); got != tokens {
				t.Errorf("%d TokenReviews, want %d", got, tokens)
			}
		}
		for range 3 {
			if v, err := a.Authenticate(t.Context(), "token-ann"); err != nil || v == nil || v.Name() != "ann" {
				t.Fatalf("%+v, %v", v, err)
			}
			if v, err := a.Authenticate(t.Context(), "wrong"); err != nil || v != nil {
				t.Fatalf("a wrong token: %+v, %v", v, err)
			}
		}
		want(2)
		time.Sleep(refusedTTL + time.Second)
		_, _ = a.Authenticate(t.Context(), "wrong")
		want(3)
		time.Sleep(acceptedTTL)
		if !a.Known("token-ann") {
			t.Error("a token that was good a minute ago needs a budget of logins")
		}
		_, _ = a.Authenticate(t.Context(), "token-ann")
		want(4)
		if a.Known("never seen") {
			t.Error("a token that was never seen is known")
		}
	})
}

// Concurrent requests with one token share one review. A caller that gives up does not
// cancel it for the others.
func TestReviewsCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &reviewers{delay: time.Second}
		a := f.access()
		var all sync.WaitGroup
		leaving, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		all.Go(func() {
			if _, err := a.Authenticate(leaving, "token-ann"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("whoever left got %v", err)
			}
		})
		synctest.Wait()
		for range 50 {
			all.Go(func() {
				if v, err := a.Authenticate(t.Context(), "token-ann"); err != nil || v == nil {
					t.Errorf("%+v, %v", v, err)
				}
			})
		}
		all.Wait()
		if n, _ := f.asked(); n != 1 {
			t.Errorf("%d TokenReviews, want 1", n)
		}
	})
}

func TestNoAnswerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &reviewers{rights: map[string]bool{"ann a": true}}
		a := f.access()
		v, err := a.Authenticate(t.Context(), "token-ann")
		if err != nil {
			t.Fatal(err)
		}
		f.err = errors.New("connection refused")
		if _, err := a.Authenticate(t.Context(), "token-bob"); err == nil {
			t.Error("no answer is an answer")
		}
		if got, _, err := v.Readable(t.Context(), []string{"a"}); err == nil || got != nil {
			t.Errorf("rights without an answer: %v, %v", got, err)
		}
		f.err, f.delay = nil, time.Hour // it hangs
		began := time.Now()
		if _, err := a.Authenticate(t.Context(), "token-bob"); err == nil || time.Since(began) > reviewTimeout {
			t.Errorf("a hanging API server: %v after %v", err, time.Since(began))
		}
		f.delay = 0
		if v, err := a.Authenticate(t.Context(), "token-bob"); err != nil || v == nil {
			t.Errorf("an error was kept: %v", err)
		}
		time.Sleep(acceptedTTL + time.Second)
		f.err = errors.New("connection refused")
		if _, err := a.Authenticate(t.Context(), "token-ann"); err == nil {
			t.Error("a token is accepted without the API server after its time")
		}
		if s := a.Stats(); s.Failed == 0 || s.Accepted != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &reviewers{rights: map[string]bool{"ann a": true, "ann c": true, "root ": true, "prom /metrics": true}}
		a := f.access()
		viewer := func(token string) *Viewer {
			v, err := a.Authenticate(t.Context(), token)
			if err != nil || v == nil {
				t.Fatalf("%s: %v", token, err)
			}
			return v
		}
		ann, root, prom := viewer("token-ann"), viewer("token-root"), viewer("token-prom")
		for range 2 { // the second time from memory
			got, unasked, err := ann.Readable(t.Context(), []string{"a", "b", "c"})
			if err != nil || unasked != 0 || !slices.Equal(got, []string{"a", "c"}) {
				t.Errorf("%v, %d, %v", got, unasked, err)
			}
		}
		if _, n := f.asked(); n != 3 {
			t.Errorf("%d SubjectAccessReviews, want 3", n)
		}
		f2 := func(v *Viewer, all, metrics bool) {
			t.Helper()
			gotAll, err1 := v.All(t.Context())
			gotMetrics, err2 := v.Metrics(t.Context())
			if err := errors.Join(err1, err2); err != nil || gotAll != all || gotMetrics != metrics {
				t.Errorf("%s: all %v, metrics %v, %v", v.Name(), gotAll, gotMetrics, err)
			}
		}
		f2(ann, false, false)
		f2(root, true, true)
		f2(prom, false, true)
		f.rights["ann a"] = false
		time.Sleep(allowedTTL + time.Second)
		if got, _, _ := ann.Readable(t.Context(), []string{"a"}); len(got) != 0 {
			t.Errorf("a right that was taken away is there after its time: %v", got)
		}
	})
}

// A namespace with many accounts, each of which asks for many rights, delays a viewer of
// another one by a few reviews, and not until it gives up.
func TestOnePayerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &reviewers{rights: map[string]bool{}}
		a := f.access()
		var all []string
		for i := range maxRightsPerCall {
			all = append(all, fmt.Sprintf("ns-%d", i))
		}
		viewer := func(user string) *Viewer {
			v, err := a.Authenticate(t.Context(), "token-"+user)
			if err != nil || v == nil {
				t.Fatalf("%s: %v", user, err)
			}
			return v
		}
		ann := viewer("system:serviceaccount:team:ann")
		var evil sync.WaitGroup
		attackers := make([]*Viewer, 100)
		for i := range attackers {
			attackers[i] = viewer(fmt.Sprintf("system:serviceaccount:evil:a%d", i))
		}
		f.mu.Lock()
		f.delay = 200 * time.Millisecond
		f.mu.Unlock()
		for _, v := range attackers {
			evil.Go(func() { _, _, _ = v.Readable(t.Context(), all) })
		}
		synctest.Wait()
		began := time.Now()
		if _, unasked, err := ann.Readable(t.Context(), all); err != nil || unasked != 0 {
			t.Errorf("%d unasked, %v", unasked, err)
		}
		// It has 8 of 16 slots, so that 64 reviews take 8 rounds.
		if took := time.Since(began); took > 12*200*time.Millisecond {
			t.Errorf("the rights of %d namespaces took %v", len(all), took)
		}
		if _, err := a.Authenticate(t.Context(), "token-new"); err != nil {
			t.Errorf("a login: %v", err)
		}
		evil.Wait()
		if running, waiting := a.slots.Counts(); running+waiting != 0 {
			t.Errorf("in the end %d run and %d wait", running, waiting)
		}
	})
}

// One answer asks for a bounded number of rights; the following ones go on.
func TestRightsOfManyNamespaces(t *testing.T) {
	f := &reviewers{rights: map[string]bool{"ann ns-199": true}}
	v, err := f.access().Authenticate(t.Context(), "token-ann")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range 200 {
		all = append(all, fmt.Sprintf("ns-%d", i))
	}
	for _, want := range []int{136, 72, 8, 0} {
		got, unasked, err := v.Readable(t.Context(), all)
		if err != nil || unasked != want || (len(got) == 1) != (want == 0) {
			t.Fatalf("%v, %d unasked, %v; want %d", got, unasked, err, want)
		}
	}
}

// A token that is bound to our audience is reviewed with it, and only such a one.
func TestAudience(t *testing.T) {
	jwt := func(claims string) string {
		return "x." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".y"
	}
	f := func(claims string, audience string, ok bool) {
		t.Helper()
		r := &reviewers{audience: audience}
		v, err := r.access().Authenticate(t.Context(), jwt(claims))
		if err != nil || (v != nil) != ok {
			t.Errorf("%s for %q: %+v, %v", claims, audience, v, err)
		}
	}
	f(`{"aud": ["gpupilot.dev"]}`, "gpupilot.dev", true)
	f(`{"aud": "gpupilot.dev"}`, "gpupilot.dev", true)
	f(`{"aud": ["gpupilot.dev"]}`, "other", false)
	f(`{"aud": ["other"]}`, "other", false) // not asked about with it
}

// What the caches hold is bounded, and wrong tokens do not push out good ones.
func TestWrongTokensDoNotEvictGoodOnes(t *testing.T) {
	f := &reviewers{}
	a := f.access()
	if _, err := a.Authenticate(t.Context(), "token-ann"); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxTokens {
		if _, err := a.Authenticate(t.Context(), fmt.Sprint("wrong", i)); err != nil {
			t.Fatal(err)
		}
	}
	before, _ := f.asked()
	if v, err := a.Authenticate(t.Context(), "token-ann"); v == nil || err != nil {
		t.Error("the good token is gone")
	}
	if after, _ := f.asked(); after != before {
		t.Error("the good token was asked about again")
	}
	if n := len(a.refused.Keys()); n > maxTokens {
		t.Errorf("%d refused tokens are kept", n)
	}
}
