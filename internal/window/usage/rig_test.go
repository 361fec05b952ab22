// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// rig is a reader and an aggregator whose pods are a list and whose samples are put into
// the store by hand. The workload of a pod is the Deployment that its label app names.
type rig struct {
	*Reader
	*Aggregator
	t     testing.TB
	deps  *Deps
	pods  podtest.List
	store *series.Store
	now   time.Time
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, store: series.New(series.Config{}), now: time.Now().Truncate(time.Second)}
	devices, fields := trust.NewDevices(nil), NewFields()
	r.Reader = NewReader(Deps{
		Store: r.store, Pods: &r.pods, Devices: devices, Fields: fields, MaxAge: 5 * time.Second,
		TargetOf: func(_ context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference) (Target, error) {
			if namespace != "ns" || ref.Name == "none" {
				return Target{}, fmt.Errorf("%w: %s %s/%s", ErrUnknownWorkload, ref.Kind, namespace, ref.Name)
			}
			return Target{ref.Kind, labels.SelectorFromSet(labels.Set{"app": ref.Name})}, nil
		},
	})
	r.deps = &r.Reader.deps
	r.Aggregator = NewAggregator(AggregatorConfig{MaxGroups: 10, MaxAge: 5 * time.Second}, AggregatorDeps{
		Store: r.store, Pods: &r.pods, Devices: devices, Fields: fields,
		WorkloadOf: func(pod *corev1.Pod) (string, string, bool) { return "Deployment", pod.Labels["app"], true },
	})
	return r
}

// utilization stores a scrape of the agent of node-1, with a GPU for each pod.
func (r *rig) utilization(at time.Time, value float64, pods ...*corev1.Pod) {
	r.t.Helper()
	r.utilizationBy("agent", "node-1", at, value, pods...)
}

// utilizationBy stores a scrape of an exporter on a node, with a GPU for each pod.
func (r *rig) utilizationBy(name, node string, at time.Time, value float64, pods ...*corev1.Pod) {
	r.t.Helper()
	podtest.ExposeUtilization(r.t, r.store, name, node, at, value, pods...)
}

// The makers of pods.
var (
	pod, ready           = podtest.Pod, podtest.Ready
	containers, requests = podtest.Containers, podtest.Container
)
