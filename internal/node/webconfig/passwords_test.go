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
		if !p.check(t.Context(), "pod", users, "prom", "right") {
			t.Fatal("the right password is refused")
		}
		const attackers, each = 40, 10
		for a := range attackers {
			go func() {
				for i := range each {
					if p.check(t.Context(), fmt.Sprint(a), users, "prom", fmt.Sprintf("wrong %d %d", a, i)) {
						t.Error("a wrong password is taken")
					}
				}
			}()
		}
		for range attackers * each / 2 {
			time.Sleep(time.Second)
			start := time.Now()
			if !p.check(t.Context(), "pod", users, "prom", "right") {
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
			go p.check(t.Context(), "pod", users, "prom", "wrong")
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
				if got := p.check(t.Context(), "pod", users, u.user, u.password); got != u.want {
					t.Errorf("%s with %s: %v", u.user, u.password, got)
				}
			}
		}
	})
}

// A password that is used for the first time, as after a rotation, waits for few of the
// wrong ones that a pod sends, however many they are.
func TestNewPasswordsWaitForFewWrongOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, _ := slowly(p)
		for i := range 1000 {
			go p.check(t.Context(), "attacker", users, "prom", fmt.Sprint("wrong ", i))
		}
		synctest.Wait()
		start := time.Now()
		if !p.check(t.Context(), "prometheus", users, "prom", "right") {
			t.Error("the right password is refused")
		}
		if took := time.Since(start); took > (maxWaiting+1)*time.Second {
			t.Errorf("the right password waits %v", took)
		}
		time.Sleep(time.Hour)
		if made() != maxWaiting+1 || len(p.waiting) != 0 {
			t.Errorf("%d comparisons, %d sources wait", made(), len(p.waiting))
		}
	})
}

// A user whose hash changes or who is removed is not remembered.
func TestChangedUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		slowly(p)
		f := func(users map[string]string, password string, want bool) {
			t.Helper()
			if got := p.check(t.Context(), "pod", users, "prom", password); got != want {
				t.Errorf("%s of %v: %v", password, users, got)
			}
		}
		for range 2 {
			f(map[string]string{"prom": "old"}, "old", true)
			f(map[string]string{"prom": "new"}, "old", false)
			f(map[string]string{"prom": "new"}, "new", true)
			f(map[string]string{"other": "old"}, "old", false)
			f(nil, nobody, false)
		}
	})
}

// Who goes away leaves the queue.
func TestWaitingForAComparisonEndsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, _ := slowly(p)
		go p.check(t.Context(), "pod", users, "prom", "wrong")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if p.check(ctx, "pod", users, "prom", "right") || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
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
	p.check(b.Context(), "pod", users, "prom", "right")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for a := range 40 {
		go func() {
			for i := 0; ctx.Err() == nil; i++ {
				p.check(ctx, fmt.Sprint(a), users, "prom", fmt.Sprintf("wrong %d %d", a, i))
			}
		}()
	}
	var worst time.Duration
	for b.Loop() {
		time.Sleep(time.Millisecond) // the scraper has work of its own between scrapes
		start := time.Now()
		p.check(b.Context(), "pod", users, "prom", "right")
		worst = max(worst, time.Since(start))
	}
	b.ReportMetric(float64(worst.Microseconds()), "worst-µs")
}

// After a change of the hashes, scrapes of one source come with the right password at once:
// none is refused, one comparison is made, and its place is free for others. The end of the
// request that compares refuses no other one.
func TestOnePasswordTakesOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords()
		made, _ := slowly(p)
		first, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.check(t.Context(), "pod", users, "other", "wrong") }) // holds the slot
		synctest.Wait()
		all.Go(func() { p.check(first, "pod", users, "prom", "right") })
		synctest.Wait()
		for range 50 {
			all.Go(func() {
				if !p.check(t.Context(), "pod", users, "prom", "right") {
					t.Error("the right password is refused")
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		if made() != 2 || len(p.waiting)+len(p.comparing) != 0 {
			t.Errorf("%d comparisons, want 2; left are %v and %d", made(), p.waiting, len(p.comparing))
		}
	})
}
