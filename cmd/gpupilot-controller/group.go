// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// grace bounds the time of a shutdown, in which the lease is released. Open connections
// are closed without waiting.
const grace = 1500 * time.Millisecond

// group runs goroutines until one of them fails or ctx is done.
type group struct {
	ctx    context.Context // the lifetime of what it runs
	cancel context.CancelCauseFunc
	done   chan struct{}
	n      int
}

// newGroup returns a group whose goroutines end with ctx.
func newGroup(ctx context.Context) *group {
	g := &group{done: make(chan struct{}, 16)}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

// run runs f in a goroutine. Its error ends the group.
func (g *group) run(f func(ctx context.Context) error) {
	g.n++
	go func() {
		if err := f(g.ctx); err != nil && g.ctx.Err() == nil {
			g.cancel(err)
		}
		g.done <- struct{}{}
	}()
}

// wait waits until all goroutines have ended, at most grace after ctx is done. It
// returns the error that ended the group.
func (g *group) wait(log *slog.Logger) error {
	<-g.ctx.Done()
	late := time.NewTimer(grace)
	defer late.Stop()
	for ; g.n > 0; g.n-- {
		select {
		case <-g.done:
		case <-late.C:
			log.Warn("goroutines did not end in time, exiting", "goroutines", g.n)
			return g.cause()
		}
	}
	return g.cause()
}

func (g *group) cause() error {
	if err := context.Cause(g.ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// never is f, which has no error to return.
func never(f func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		f(ctx)
		return nil
	}
}
