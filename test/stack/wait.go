// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Patience bounds every wait of a test. Only a failure takes that long, however busy the machine is.
const Patience = 5 * time.Minute

// startTimeout bounds each wait of a start. A busy API server delays the controller's.
const startTimeout = 2 * Patience

// pollEvery is the pause between two checks of a wait.
const pollEvery = 100 * time.Millisecond

// Eventually waits until check returns nil, for Patience. It may be called in a cleanup.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	if err := Await(context.WithoutCancel(t.Context()), Patience, check); err != nil {
		t.Fatal(err)
	}
}

// Await calls check until it returns nil. It returns the last error if the timeout or ctx ends before.
func Await(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v still: %w", timeout, err)
		case <-tick.C:
		}
	}
}
