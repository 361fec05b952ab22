// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// The first error ends all goroutines, and is the group's.
func TestTheFirstErrorEndsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no more")
		g := newGroup(t.Context())
		ended := false
		g.run(never(func(ctx context.Context) {
			<-ctx.Done()
			ended = true
		}))
		g.run(func(context.Context) error { return failure })
		if err := g.wait(quiet()); !errors.Is(err, failure) || !ended {
			t.Errorf("%v, the other one ended: %v", err, ended)
		}
	})
}

// The end of the context is no error, and a goroutine that stays holds nothing up.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := newGroup(ctx)
		stay := make(chan struct{})
		g.run(never(func(context.Context) { <-stay }))
		cancel()
		began := time.Now()
		if err := g.wait(quiet()); err != nil || time.Since(began) != grace {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		close(stay)
	})
}
