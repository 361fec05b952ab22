// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"encoding/json"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Recorder notes every value that spec.replicas of a Deployment takes.
type Recorder struct {
	mu   sync.Mutex
	seen []int32
	by   []string // has set them
}

// Record notes the replicas of a workload from now until the test's end.
func (s *Stack) Record(t *testing.T, name string) *Recorder {
	t.Helper()
	rec := &Recorder{}
	s.Follow(t, &appsv1.DeploymentList{}, func(e watch.Event) {
		if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type != watch.Deleted {
			rec.add(*d.Spec.Replicas, WriterOf(d))
		}
	}, client.InNamespace(WorkloadNamespace), client.MatchingFields{"metadata.name": name})
	return rec
}

// WriterOf is who has set the replicas of a Deployment, as the API server names clients.
func WriterOf(d *appsv1.Deployment) string {
	for i := range d.ManagedFields {
		var fields struct {
			Spec map[string]any `json:"f:spec"`
		}
		f := &d.ManagedFields[i]
		if f.FieldsV1 == nil || json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, ok := fields.Spec["f:replicas"]; ok {
			return f.Manager
		}
	}
	return ""
}

func (r *Recorder) add(n int32, by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 || r.seen[len(r.seen)-1] != n {
		r.seen, r.by = append(r.seen, n), append(r.by, by)
	}
}

// Values are the replicas in the order in which they were asked for.
func (r *Recorder) Values() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int32(nil), r.seen...)
}

// Writers are those that have set Values.
func (r *Recorder) Writers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.by...)
}
