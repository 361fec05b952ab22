// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/stack"
)

// meter reads a sample of a replica's /metrics: a name, with its labels as they are written there. A replica
// that does not answer within two seconds fails the test.
func meter(t *testing.T, url, sample string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for line := range strings.Lines(get(ctx, t, url+"/metrics")) {
		if value, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			return v
		}
	}
	return 0
}

func get(ctx context.Context, t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// leads waits until a replica leads, or does not. It has to serve its page and metrics all the while.
func leads(t *testing.T, url string, want bool) {
	t.Helper()
	eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		get(ctx, t, url+"/api/v1/view")
		if is := meter(t, url, "gpupilot_leader") == 1; is != want {
			return fmt.Errorf("%s leads: %v, want %v", url, is, want)
		}
		return nil
	})
}

// measured waits until the last decision is about n replicas with data.
func measured(t *testing.T, name string, n int32) {
	t.Helper()
	eventually(t, func() error {
		if d := status(t, name).LastDecision; d == nil || len(d.Inputs) == 0 || d.Inputs[0].Replicas != n {
			return fmt.Errorf("not all %d replicas of %s are measured: %+v", n, name, d)
		}
		return nil
	})
}

// serves waits until as many replicas serve as a load needs.
func serves(t *testing.T, name string, load float64) {
	t.Helper()
	eventually(t, func() error {
		if n := serving(t, name); n < int(need(load)) {
			return fmt.Errorf("%d replicas of %s serve, %d are needed", n, name, need(load))
		}
		return nil
	})
}

// rises fails if the replicas went down once, or beyond what the load needs.
func rises(t *testing.T, values []int32, load float64) {
	t.Helper()
	if !slices.IsSorted(values) {
		t.Errorf("replicas went %v: down in the middle of a rise", values)
	}
	if peak := slices.Max(values); float64(peak) > 1.5*float64(need(load)) {
		t.Errorf("replicas went %v: more than 1.5 times the %d that were needed", values, need(load))
	}
}

// A node goes, with its agent and its pods: the replicas that remain decide, and what is missing takes nothing away.
func TestNodeRemoved(t *testing.T) {
	const name, before, load = "noderemoved", 2.0, 3.4
	offer(name, before)
	deploy(t, name, 4, time.Second)
	spread(t, name, 4)
	seen := record(t, name)
	autoscale(t, name, nil)
	measured(t, name, 4)

	node := nodeOf(t, name)
	if err := rig.Nodes.PowerOff(node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { powerOn(t, node) })
	offer(name, load)
	wantReplicas(t, name, "what the load needs", func(n int32) bool { return n >= need(load) })
	remove(t.Context(), t, node)
	serves(t, name, load)
	rises(t, seen.values(), load)
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
	return stack.Eventually(ctx, patience, func() error {
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
	offer(name, load)
	deploy(t, name, 3, time.Second)
	spread(t, name, 3)
	autoscale(t, name, nil)
	measured(t, name, 3)
	seen := record(t, name)

	if err := rig.Cluster.PauseAPIServer(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Cluster.ResumeAPIServer() })
	leads(t, rig.ControllerURL, false)
	// The load goes away and comes back: nothing of it may be made up for.
	offer(name, 0)
	idle(t, name, 3)
	offer(name, load)
	spread(t, name, 3)
	if err := rig.Cluster.ResumeAPIServer(); err != nil {
		t.Fatal(err)
	}
	leads(t, rig.ControllerURL, true)
	stays(t, name, 3, 6*time.Second) // longer than the window
	if v := seen.values(); len(v) != 1 {
		t.Errorf("replicas went %v, and the load before and after asks for 3", v)
	}
	offer(name, 3)
	wantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
}

// idle waits until the controller sees the replicas of a workload do nothing.
func idle(t *testing.T, name string, replicas int) {
	t.Helper()
	eventually(t, func() error {
		n := 0
		for _, u := range utilizations(t, name) {
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
	offer(name, load)
	deploy(t, name, 3, time.Second)
	spread(t, name, 3)
	autoscale(t, name, nil)
	measured(t, name, 3)
	began := meter(t, rig.ControllerURL, "process_start_time_seconds")
	logged, err := os.ReadFile(rig.ControllerLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Cluster.RenewServerCertificate() })
	if err := rig.Cluster.ExpireServerCertificate(t.Context()); err != nil {
		t.Fatal(err)
	}
	leads(t, rig.ControllerURL, false)
	eventually(t, func() error {
		log, err := os.ReadFile(rig.ControllerLog())
		if err == nil && !strings.Contains(string(log[len(logged):]), "certificate has expired") {
			err = errors.New("the log does not say that the certificate has expired")
		}
		return err
	})

	if err := rig.Cluster.RenewServerCertificate(); err != nil {
		t.Fatal(err)
	}
	leads(t, rig.ControllerURL, true)
	stays(t, name, 3, 3*time.Second)
	offer(name, 3)
	wantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
	if now := meter(t, rig.ControllerURL, "process_start_time_seconds"); now != began {
		t.Errorf("the controller was started anew: at %v, before at %v", now, began)
	}
}
