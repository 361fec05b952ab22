// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package starved

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// Etcd is restored from a backup: the workload has the replicas of that time again, and the
// versions of all objects are older than those that the controller has seen. The controller
// is not restarted, and scales up again. The test ends there: the watches of the simulated
// kubelets begin after the versions of the new pods, as those of kubelets would, and nobody
// starts these pods before the kubelets are restarted. Nor does anybody end the pods that are
// younger than the backup, so that the load is more than all of them carry.
func TestEtcdRestored(t *testing.T) {
	load := &stack.Load{}
	s, err := stack.Start(t.Context(), stack.Config{
		Nodes: 2, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Workloads: []simnode.Workload{{
			Name: "quiet", Model: sim.Workload{Capacity: capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At,
		}},
	})
	must(t, err)
	defer s.Close()
	load.Set(0.3 * capacity)
	must(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}}))
	must(t, s.Client.Create(t.Context(), stack.Deployment("quiet", "quiet", 1, time.Second)))
	must(t, s.Client.Create(t.Context(), autoscaler("quiet", "quiet", v1alpha1.ActuationScale, v1alpha1.Signal{
		GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")},
	})))
	react(t, s, load) // the controller has written, and the workload is back at one replica
	await := func(what string, ok func(int32) bool) {
		t.Helper()
		began := time.Now()
		eventually(t, func() error {
			n, err := s.Replicas(t.Context(), "quiet", "quiet")
			if err == nil && !ok(n) {
				err = fmt.Errorf("%d replicas", n)
			}
			return err
		})
		t.Logf("%s after %v", what, time.Since(began).Round(100*time.Millisecond))
	}
	await("one replica", func(n int32) bool { return n == 1 })
	backup := filepath.Join(t.TempDir(), "etcd")
	must(t, s.Cluster.Backup(backup))
	load.Set(1.2 * capacity)
	await("scaled up", func(n int32) bool { return n > 1 })
	age(t, s)
	must(t, s.Cluster.Restore(t.Context(), backup))
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: "quiet", Name: "age"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Fatalf("after the restore there is an object that is younger than the backup: %v", err)
	}
	load.Set(8 * capacity)
	await("scaled up again", func(n int32) bool { return n > 1 })
}

// age raises the versions of objects by many writes, as hours do.
func age(t *testing.T, s *stack.Stack) {
	t.Helper()
	x := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "quiet", Name: "age"}}
	must(t, s.Client.Create(t.Context(), x))
	for i := range 1000 {
		x.Data = map[string]string{"i": fmt.Sprint(i)}
		must(t, s.Client.Update(t.Context(), x))
	}
}
