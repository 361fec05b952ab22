// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// A node goes, with its agent and its pods: the replicas that remain decide, and what is missing takes nothing away.
func TestNodeRemoved(t *testing.T) {
	const name, before, load = "noderemoved", 2.0, 3.4
	rig.Offer(name, before)
	rig.Deploy(t, name, 4, time.Second)
	rig.Spread(t, name, 4)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 4)

	node := nodeOf(t, name)
	if err := rig.Nodes.PowerOff(node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { powerOn(t, node) })
	rig.Offer(name, load)
	rig.WantReplicas(t, name, "what the load needs", func(n int32) bool { return n >= stack.Need(load) })
	remove(t.Context(), t, node)
	rig.Serves(t, name, load)
	rises(t, seen.Values(), load)
}

// nodeOf is a node with pods of the workload, but not with all of them.
func nodeOf(t *testing.T, name string) string {
	t.Helper()
	var pods corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for i := range pods.Items {
		on[pods.Items[i].Spec.NodeName]++
	}
	for node, n := range on {
		if n < len(pods.Items) {
			return node
		}
	}
	t.Fatalf("all %d pods of %s are on one node: %v", len(pods.Items), name, on)
	return ""
}

// remove deletes a node and what was on it, as the cluster does with a node that does not come back.
func remove(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	if err := rig.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := rig.Client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if err := rig.Client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
}

// powerOn brings a node back for the tests that follow.
func powerOn(t *testing.T, node string) {
	ctx := context.WithoutCancel(t.Context())
	remove(ctx, t, node)
	if err := errors.Join(rig.Nodes.PowerOn(ctx, node), awaitAgents(ctx, len(rig.Nodes.NodeNames()))); err != nil {
		t.Error(err)
	}
}

func awaitAgents(ctx context.Context, n int) error {
	return stack.Await(ctx, stack.Patience, func() error {
		ready, err := rig.ReadyPods(ctx, stack.Namespace, client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"})
		if err == nil && len(ready) != n {
			err = fmt.Errorf("%d of %d agents are ready", len(ready), n)
		}
		return err
	})
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
