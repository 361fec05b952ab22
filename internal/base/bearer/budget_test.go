// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"fmt"
	"testing"
	"time"
)

func TestSources(t *testing.T) {
	f := func(remote, want string) {
		t.Helper()
		if got := SourceOf(remote); got != want {
			t.Errorf("%s: %s, want %s", remote, got, want)
		}
	}
	f("10.1.2.3:4", "10.1.2.3")
	f("[::ffff:10.1.2.3]:4", "10.1.2.3")
	f("[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64")
	f("[fe80::1%eth0]:5", "fe80::/64")
	f("pipe", "pipe")
}

// Buckets are forgotten, and those that are used are kept.
func TestBucketsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	b := NewBuckets(1, 1, 10)
	b.Take("mine", now)
	for i := range 1000 {
		b.Take(fmt.Sprint(i), now)
		if ok, _ := b.Take("mine", now); ok {
			t.Fatal("a bucket in use was forgotten")
		}
	}
	if len(b.byKey) != 10 || b.order.Len() != 10 {
		t.Errorf("%d buckets, %d in order", len(b.byKey), b.order.Len())
	}
}

// Guesses from many addresses use up the totals of guesses and of new addresses. An
// address whose token was accepted has another one, and gets in with its next token.
func TestKnownSourcesHaveTheirOwnTotal(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLogins(LoginLimits{Burst: 5, PerSecond: 0.1, Sources: 1000, TotalBurst: 10, TotalPerSecond: 1})
	first, _ := l.Begin("prometheus", now)
	first.Accepted(now)
	now = now.Add(time.Hour)
	reviews := 0
	for i := range 10_000 {
		if a, retry := l.Begin(fmt.Sprint("pod", i%900), now); a != nil {
			reviews++
		} else if retry <= 0 {
			t.Fatal("refused, and may try at once")
		}
	}
	if reviews > 20 {
		t.Errorf("%d reviews, want at most the totals of new and of failed sources", reviews)
	}
	if a, _ := l.Begin("newcomer", now); a != nil {
		t.Error("the total of new sources has no end")
	}
	if a, _ := l.Begin("prometheus", now); a == nil {
		t.Error("a known source is refused")
	}
	// What a failing API server is asked is bounded by the totals.
	now = now.Add(knownFor)
	reviews = 0
	for range 10_000 {
		if a, _ := l.Begin("prometheus", now); a != nil {
			reviews++
			a.Unanswered(now)
		}
	}
	if reviews != 10 {
		t.Errorf("%d reviews of an API server that does not answer, want 10", reviews)
	}
}

// The known sources are bounded too, and the oldest do not keep new ones out.
func TestKnownSourcesAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLogins(LoginLimits{Burst: 5, PerSecond: 1, Sources: 10, TotalBurst: 1e6, TotalPerSecond: 1})
	for i := range 1000 {
		a, _ := l.Begin(fmt.Sprint(i), now)
		a.Accepted(now)
	}
	if len(l.known) != 10 {
		t.Errorf("%d known sources", len(l.known))
	}
	now = now.Add(knownFor)
	a, _ := l.Begin("next", now)
	a.Accepted(now)
	if !l.isKnown("next", now) || len(l.known) != 1 {
		t.Errorf("known: %v", l.known)
	}
}
