// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// The objects of a namespace name a bounded number of fields, the oldest objects first. Others are not affected.
func TestANamespaceNamesABoundedNumberOfFields(t *testing.T) {
	var extra []gpu.FieldID
	for _, f := range gpu.Fields() {
		if always := usage.AlwaysScraped(); !always.HasID(f.ID) {
			extra = append(extra, f.ID)
		}
	}
	object := func(namespace, name string, age int, fields ...gpu.FieldID) naming {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		return namingOf(key, metav1.NewTime(at(-age)), gpu.SetOf(fields...))
	}
	named, over := nameFields([]naming{
		object("a", "young", 1, gpu.GPUUtil, extra[0], extra[page.MaxNamed], extra[page.MaxNamed+1]),
		object("a", "old", 2, extra[:page.MaxNamed]...),
		object("b", "first", 3, gpu.GPUUtil),
		object("c", "first", 3, extra[page.MaxNamed]),
	})
	if got := named.Of("a"); got != gpu.SetOf(extra[:page.MaxNamed]...) {
		t.Errorf("of a, %d fields are kept", got.Len())
	}
	if named.Of("b") != (gpu.FieldSet{}) || named.Of("c") != gpu.SetOf(extra[page.MaxNamed]) {
		t.Errorf("of b and c, other fields are kept: %v", named)
	}
	field, _ := gpu.Lookup(extra[page.MaxNamed])
	key := types.NamespacedName{Namespace: "a", Name: "young"}
	if want := fmt.Sprintf("gpu.metric %s is not read: the older GPUAutoscalers of the namespace name %d other fields", field.Name, page.MaxNamed); len(over) != 1 || !strings.HasPrefix(over[key], want) {
		t.Errorf("above the limit are %q, want %q", over, want)
	}
}

// A field that an object names is scraped for its namespace only, and an object above the limit says which field is
// not read, and why.
func TestNamedFieldsAreScrapedForTheirNamespace(t *testing.T) {
	r, w := loaded(t, 60)
	r.pods.Pods = append(r.pods.Pods, pod("agent", "agent-1", at(0)))
	older, _ := nameFields(nil)
	w.pass(r.now)
	if list := r.listTargets(r.now); len(list) != 1 || !list[0].Named.Equal(older) {
		t.Errorf("without a named field, the targets are %+v", list)
	}
	n := 0
	for _, f := range gpu.Fields() {
		if always := usage.AlwaysScraped(); always.HasID(f.ID) || f.Kind == gpu.Label || f.PodAgg == gpu.NoAggregate {
			continue
		}
		a := autoscaler(fmt.Sprint("x", n))
		a.CreationTimestamp = metav1.NewTime(at(n))
		a.Spec.ScaleTargetRef.Name, a.Spec.Actuation = "web", v1alpha1.ActuationAdvise
		a.Spec.Signals[0].GPU.Metric = f.Name
		w := r.add(a)
		w.pass(r.now)
		list := r.listTargets(r.now)
		if n++; len(*r.overFields.Load()) > 0 {
			if always := usage.AlwaysScraped(); list[0].Fields != always {
				t.Errorf("of all GPUs, %v is scraped", list[0].Fields)
			}
			named := list[0].Named
			if set := named.Of("ns"); set.Len() != page.MaxNamed || set.HasID(f.ID) || named.Of("other") != (gpu.FieldSet{}) {
				t.Errorf("%d fields are scraped for the namespace", set.Len())
			}
			p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
			r.utilization(r.now, 60, p)
			w.pass(r.now)
			contains(t, signalsCondition(w.status.next).Message, "gpu.metric "+f.Name+" is not read: the older GPUAutoscalers of the namespace name 32 other fields")
			return
		}
	}
	t.Fatal("there are too few fields")
}
