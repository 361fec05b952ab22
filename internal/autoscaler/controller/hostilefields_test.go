// SPDX-License-Identifier: Apache-2.0

//go:build linux

package controller

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var hostileValues = flag.Int("hostile", 2, "how many hostile values of each field to try; 0: all")

// wholeObject is a GPUAutoscaler with every feature that excludes no other.
const wholeSpec = `{"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 8,
	"signals": [{"name": "util", "gpu": {"metric": "Utilization"}, "target": {"value": "60"}, "fallback": "Hold"},
		{"name": "queue", "pods": {"metric": "queue", "port": 8000, "path": "/metrics"}, "target": {"value": "8"}}, {"name": "load", "query": {"promql": "sum(load)"}, "target": {"type": "Value", "value": "10"}}],
	"formula": "max(util.replicas, queue.replicas) + 0.5 * load.replicas", "missingData": "Hold", "actuation": "Scale", "budget": {"maxGPUs": 8}, "drain": {"maxSeconds": 5}, "idle": {"after": "1h", "to": 0},
	"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]}, "scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}},
	"schedules": [{"name": "day", "timezone": "Europe/Berlin", "days": ["Mon"], "start": "08:00", "end": "18:00", "minReplicas": 1, "maxReplicas": 4, "leadTime": "Auto"},
		{"name": "night", "cron": "0 22 * * *", "duration": "8h", "minReplicas": 1}],
	"override": {"maxReplicas": 6, "until": "2099-01-01T00:00:00Z", "reason": "incident"}, "pair": {"with": "other", "ratio": {"min": "0.5", "max": "2"}}}`

// The most that a controller keeps, shows and writes of one object, whatever is in it.
const (
	mostStatus  = 10 << 10
	mostView    = 64 << 10
	mostNote    = 1024 // the API server's
	mostMetrics = 64 << 10
)

// outcome is what becomes of an object in a controller that decides twice.
type outcome struct{ status, view, metrics, notes []byte }

func (r *rig) show(u *unstructured.Unstructured) (out outcome) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.meters)
	w := r.deliver(u, false)
	w.pass(r.now)
	w.pass(r.now.Add(time.Second))
	out.status, _ = json.Marshal(statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{}))
	detail, _ := r.Workload("ns", "web")
	out.view, _ = json.Marshal([]any{r.View(), detail})
	families, _ := reg.Gather()
	out.metrics, _ = json.Marshal(families)
	for _, e := range r.events {
		out.notes = append(out.notes, e.Note+"\n"...)
	}
	return out
}

// Each field of a GPUAutoscaler has each hostile value in turn, as if the API server had let it pass. What the controller
// keeps, writes and shows of it is bounded, and costs no more than a harmless one, beyond reading it.
func TestHostileFields(t *testing.T) {
	var base v1alpha1.GPUAutoscaler
	if err := json.Unmarshal([]byte(`{"metadata": {"namespace": "ns", "name": "web", "uid": "u1"}, "spec": `+wholeSpec+`}`), &base); err != nil {
		t.Fatal(err)
	}
	fresh := func() *rig {
		r := newRig(t, deployment("web", 2), base.DeepCopy())
		for i := range 2 {
			p := pod("web", fmt.Sprintf("web-%d", i), r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
			r.pods.Pods = append(r.pods.Pods, p)
		}
		r.utilization(r.now.Add(-time.Second), 90, r.pods.Pods...)
		return r
	}
	plain := asStored(t, &base)
	harmless := weighttest.Measure(func() { fresh().show(plain) })
	is := fresh().show(plain)
	t.Logf("harmless: %d bytes of status, %d of views, %d of metrics, notes %s", len(is.status), len(is.view), len(is.metrics), is.notes)
	fields, runs := map[string]bool{}, 0
	for _, m := range weighttest.Sample(weighttest.Mutants[v1alpha1.GPUAutoscaler](), *hostileValues, rand.New(rand.NewPCG(1, 3))) {
		if strings.HasPrefix(m.Field, "ObjectMeta") || strings.HasPrefix(m.Field, "TypeMeta") {
			continue
		}
		fields[m.Field] = true
		x := base.DeepCopy()
		what := m.Set(x)
		b, err := json.Marshal(x)
		if err != nil {
			continue // JSON has no year -1
		}
		u := autoscalerKind()
		if err := json.Unmarshal(b, &u.Object); err != nil {
			continue
		}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
		u.SetGeneration(1)
		runs++
		var is outcome
		weighttest.Compare(t, what, harmless, len(b), func() { is = fresh().show(u) })
		if len(is.status) > mostStatus || len(is.view) > mostView || len(is.metrics) > mostMetrics {
			t.Errorf("%s: %d bytes of status, %d of views, %d of metrics", what, len(is.status), len(is.view), len(is.metrics))
		}
		for note := range strings.Lines(string(is.notes)) {
			if len(note) > mostNote+len("\n") {
				t.Errorf("%s: a note of %d bytes: %.200q", what, len(note), note)
			}
		}
	}
	t.Logf("%d fields, %d runs", len(fields), runs)
	if len(fields) < 100 {
		t.Errorf("only %d fields", len(fields))
	}
}
