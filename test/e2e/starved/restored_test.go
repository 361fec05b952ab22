// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package starved

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/stack"
)

// Etcd is restored from a backup: the workload has the replicas of that time again, and the
// versions of all objects are older than those that the controller has seen. The controller
// is not restarted, and scales up again. The test ends there: the watches of the simulated
// kubelets begin after the versions of the new pods, as those of kubelets would, and nobody
// starts these pods before the kubelets are restarted. Nor does anybody end the pods that are
// younger than the backup, so that the load is more than all of them carry.
func TestEtcdRestored(t *testing.T) {
	s := stack.New(t, stack.Config{Nodes: 2})
	stack.Must(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	s.Offer(quiet, 0.3)
	stack.Must(t, s.Client.Create(t.Context(), stack.Deployment(namespace, quiet, 1, time.Second)))
	stack.Must(t, s.Client.Create(t.Context(), stack.Autoscaler(quiet)))
	more, one := func(n int32) bool { return n > 1 }, func(n int32) bool { return n == 1 }
	s.Measured(t, quiet, 1)
	s.Offer(quiet, 1.2) // so that the controller has written
	s.WantReplicas(t, quiet, "more than 1", more)
	s.Offer(quiet, 0.3)
	s.WantReplicas(t, quiet, "1", one)
	backup := filepath.Join(t.TempDir(), "etcd")
	stack.Must(t, s.Cluster.Backup(backup))
	s.Offer(quiet, 1.2)
	s.WantReplicas(t, quiet, "more than 1", more)
	age(t, s)
	stack.Must(t, s.Cluster.Restore(t.Context(), backup))
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "age"}, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Fatalf("after the restore there is an object that is younger than the backup: %v", err)
	}
	s.Offer(quiet, 8)
	s.WantReplicas(t, quiet, "more than 1", more)
}

// age raises the versions of objects by many writes, as hours do.
func age(t *testing.T, s *stack.Stack) {
	t.Helper()
	x := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "age"}}
	stack.Must(t, s.Client.Create(t.Context(), x))
	for i := range 1000 {
		x.Data = map[string]string{"i": fmt.Sprint(i)}
		stack.Must(t, s.Client.Update(t.Context(), x))
	}
}
