// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A program that has just been installed has a minute. The error is the last answer.
func TestCheckWaits(t *testing.T) {
	f := func(failures int, want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			began, asked := time.Now(), 0
			q := question{"page", func(ctx context.Context, _ string) error {
				if asked++; asked > failures {
					return nil
				}
				return errors.Join(errors.New("not ready"), ctx.Err())
			}}
			err := q.answered(t.Context())
			if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) || time.Since(began) > checkPatience {
				t.Errorf("%d failures: %v after %v, want %q", failures, err, time.Since(began), want)
			}
		})
	}
	f(0, "")
	f(59, "")
	f(1000, "not ready")
}
