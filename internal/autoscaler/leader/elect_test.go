// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
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

// A leader whose renewals arrive, but whose answers do not, keeps its lease: it expires
// when the writes of the leader have ended. client-go would release it at once.
func TestLeaseIsNotReleasedByAFailedRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := fake.NewClientset()
		var mu sync.Mutex
		cut, released := false, 0
		clients.PrependReactor("update", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			update := a.(clienttesting.UpdateAction)
			if holder := update.GetObject().(*coordinationv1.Lease).Spec.HolderIdentity; holder == nil || *holder == "" {
				released++
			}
			if !cut {
				return false, nil, nil
			}
			if err := clients.Tracker().Update(a.GetResource(), update.GetObject(), a.GetNamespace()); err != nil {
				t.Error(err)
			}
			return true, nil, errors.New("the connection was cut")
		})
		e, err := New(Config{Leases: clients.CoordinationV1(), Namespace: "n", Name: "l", Identity: "me"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { e.Run(ctx) })
		time.Sleep(2 * time.Second) // synctest's clock
		mu.Lock()
		cut = true
		mu.Unlock()
		time.Sleep(10 * time.Second)
		mu.Lock()
		if cut = false; released > 0 {
			t.Errorf("the lease was released %d times", released)
		}
		mu.Unlock()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if !e.Leading() {
			t.Error("it does not lead again")
		}
		cancel()
		all.Wait()
		if mu.Lock(); released != 1 {
			t.Errorf("the lease was released %d times at the end, want once", released)
		}
		mu.Unlock()
	})
}
