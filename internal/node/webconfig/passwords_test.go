// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// slowly makes p take a second for a comparison, and gives how many it made and
// the most at one time.
func slowly(p *passwords) (made, most func() int) {
	var mu sync.Mutex
	running, n, peak := 0, 0, 0
	add := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		running += by
		n, peak = n+max(by, 0), max(peak, running)
	}
	read := func(of *int) func() int {
		return func() int {
			mu.Lock()
			defer mu.Unlock()
			return *of
		}
	}
	p.compare = func(hash, password []byte) error {
		add(1)
		time.Sleep(time.Second)
		add(-1)
		if bytes.Equal(hash, password) {
			return nil
		}
		return bcrypt.ErrMismatchedHashAndPassword
	}
	return read(&n), read(&peak)
}

var users = map[string]string{"prom": "right", "other": "different"}

// A scraper whose password is known never waits, whatever wrong ones others
// send, and bcrypt runs once at a time.
func TestWrongPasswordsSlowNoScraper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, most := slowly(p)
		if !p.check(t.Context(), users, "prom", "right") {
			t.Fatal("the right password is refused")
		}
		const attackers, each = 40, 10
		for a := range attackers {
			go func() {
				for i := range each {
					if p.check(t.Context(), users, "prom", fmt.Sprintf("wrong %d %d", a, i)) {
						t.Error("a wrong password is taken")
					}
				}
			}()
		}
		for range attackers * each / 2 {
			time.Sleep(time.Second)
			start := time.Now()
			if !p.check(t.Context(), users, "prom", "right") {
				t.Error("the right password is refused")
			}
			if took := time.Since(start); took != 0 {
				t.Fatalf("the scraper waits %v", took)
			}
		}
		time.Sleep(attackers * each * time.Second)
		if made() != 1+attackers*each || most() != 1 {
			t.Errorf("%d comparisons, %d at one time; want %d and 1", made(), most(), 1+attackers*each)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.right) != 1 || len(p.wrong) > maxWrong {
			t.Errorf("%d right and %d wrong ones are remembered", len(p.right), len(p.wrong))
		}
	})
}

// The same wrong password is compared once, however many send it at once.
func TestAWrongPasswordIsComparedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, _ := slowly(p)
		for range 40 {
			go p.check(t.Context(), users, "prom", "wrong")
		}
		time.Sleep(time.Minute)
		if made() != 1 {
			t.Errorf("%d comparisons", made())
		}
		// Users are told apart, known and unknown ones.
		for _, u := range []struct {
			user, password string
			want           bool
		}{{"other", "different", true}, {"other", "right", false}, {"nobody", nobody, false}, {"prom", "different", false}} {
			for range 2 {
				if got := p.check(t.Context(), users, u.user, u.password); got != u.want {
					t.Errorf("%s with %s: %v", u.user, u.password, got)
				}
			}
		}
		p.forget()
		n := made()
		if !p.check(t.Context(), users, "other", "different") || made() != n+1 {
			t.Errorf("after the users have changed: %d comparisons more, want 1", made()-n)
		}
	})
}

// Who goes away leaves the queue.
func TestWaitingForAComparisonEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, _ := slowly(p)
		go p.check(t.Context(), users, "prom", "wrong")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if p.check(ctx, users, "prom", "right") || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Error("it did not give up")
		}
		time.Sleep(time.Minute)
		if made() != 1 {
			t.Errorf("%d comparisons, want 1", made())
		}
	})
}

// BenchmarkScrapeAmidWrongPasswords is a known scraper's check while 40 clients
// send wrong passwords.
func BenchmarkScrapeAmidWrongPasswords(b *testing.B) {
	h, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.DefaultCost)
	if err != nil {
		b.Fatal(err)
	}
	users := map[string]string{"prom": string(h)}
	p := newPasswords()
	p.check(b.Context(), users, "prom", "right")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for a := range 40 {
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				p.check(ctx, users, "prom", fmt.Sprintf("wrong %d %d", a, i))
			}
		}()
	}
	var worst time.Duration
	for b.Loop() {
		time.Sleep(time.Millisecond) // the scraper has work of its own between scrapes
		start := time.Now()
		p.check(b.Context(), users, "prom", "right")
		worst = max(worst, time.Since(start))
	}
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
}
