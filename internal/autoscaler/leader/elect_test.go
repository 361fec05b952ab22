// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A leader that loses the API server is demoted before another may lead, and
// leads again afterwards; it never exits.
func TestElectionDemotesAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := fake.NewClientset()
		var mu sync.Mutex
		down := false
		clients.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return down, nil, errors.New("no connection")
		})
		away := func(is bool) { mu.Lock(); down = is; mu.Unlock() }
		var changes []bool
		e, err := New(Config{
			Leases: clients.CoordinationV1(), Namespace: "n", Name: "l", Identity: "me",
		})
		if err != nil {
			t.Fatal(err)
		}
		e.OnChange(func(leading bool) { mu.Lock(); changes = append(changes, leading); mu.Unlock() })
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { e.Run(ctx) })
		step := func(after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after) // synctest's clock
			synctest.Wait()
			if e.Leading() != want {
				t.Errorf("leading is %v, want %v", e.Leading(), want)
			}
		}
		step(2*time.Second, true)
		away(true)
		step(3*time.Second, true)  // renewals may fail for a while
		step(3*time.Second, false) // before the lease of 6 s is over
		away(false)
		step(15*time.Second, true)
		cancel()
		all.Wait()
		if e.Leading() || e.Leader() != "" {
			t.Errorf("leading is %v, the leader %q after the end", e.Leading(), e.Leader())
		}
	})
}
