// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/stack"
)

// rises fails if the replicas went down once, or beyond what the load needs.
func rises(t *testing.T, values []int32, load float64) {
	t.Helper()
	if !slices.IsSorted(values) {
		t.Errorf("replicas went %v: down in the middle of a rise", values)
	}
	if peak := slices.Max(values); float64(peak) > 1.5*float64(stack.Need(load)) {
		t.Errorf("replicas went %v: more than 1.5 times the %d that were needed", values, stack.Need(load))
	}
}

// An API server that hangs, its connections open, demotes the leader. It serves on, and what was the case
// before the hang is not acted on when the API server answers again.
func TestAPIServerHangs(t *testing.T) {
	const name, load = "hung", 1.6
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, time.Second)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)

	if err := rig.Cluster.PauseAPIServer(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Cluster.ResumeAPIServer() })
	stack.Leads(t, rig.ControllerURL, false)
	// The load goes away and comes back: nothing of it may be made up for.
	rig.Offer(name, 0)
	idle(t, name, 3)
	rig.Offer(name, load)
	rig.Spread(t, name, 3)
	if err := rig.Cluster.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	rig.Stays(t, name, 3, 10)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v, and the load before and after asks for 3", v)
	}
	rig.Offer(name, 3)
	rig.WantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
}

// idle waits until the controller sees the replicas of a workload do nothing.
func idle(t *testing.T, name string, replicas int) {
	t.Helper()
	stack.Eventually(t, func() error {
		n := 0
		for _, u := range rig.Utilizations(t, name) {
			if u < 5 {
				n++
			}
		}
		if n != replicas {
			return fmt.Errorf("%d of %d replicas of %s are idle", n, replicas, name)
		}
		return nil
	})
}

// The API server's certificate has expired: the log says so, nothing scales, the page is served. A new
// certificate is enough to go on: the controller is not restarted.
func TestServerCertificateExpires(t *testing.T) {
	const name, load = "certificate", 1.6
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, time.Second)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	began := stack.Meter(t, rig.ControllerURL, "process_start_time_seconds")
	logged, err := os.ReadFile(rig.ControllerLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Cluster.RenewServerCertificate() })
	if err := rig.Cluster.ExpireServerCertificate(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, false)
	stack.Eventually(t, func() error {
		log, err := os.ReadFile(rig.ControllerLog())
		if err == nil && !strings.Contains(string(log[len(logged):]), "certificate has expired") {
			err = errors.New("the log does not say that the certificate has expired")
		}
		return err
	})

	if err := rig.Cluster.RenewServerCertificate(); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	rig.Stays(t, name, 3, 5)
	rig.Offer(name, 3)
	rig.WantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
	if now := stack.Meter(t, rig.ControllerURL, "process_start_time_seconds"); now != began {
		t.Errorf("the controller was started anew: at %v, before at %v", now, began)
	}
}
