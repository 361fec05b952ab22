// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// largeText and largeCount make each field of an object larger than any honest one.
const (
	largeText, largeCount = 64 << 10, 5_000
	maxKept               = 24 << 10 // bytes of JSON that are kept of an object
)

// bounded are the fields whose length the API server bounds, or that only it, the
// scheduler and the kubelet write.
var bounded = []string{
	"ObjectMeta.Name", "ObjectMeta.Namespace", "ObjectMeta.UID", "ObjectMeta.ResourceVersion",
	"TypeMeta.", ".NodeName", ".Ports[].Name", ".Ports[].Protocol", ".Ports[].HostIP", "Containers[].Name", "ontainers[].RestartPolicy", ".ResourceClaims[].",
	"MatchExpressions[].Operator", "Requests[].Name", ".DeviceClassName", "Status.Phase", "Status.PodIP", "Status.HostIP", "Status.ResourceClaimStatuses[]", "Status.Conditions[]",
	"Status.ContainerStatuses[]", "Status.InitContainerStatuses[]", "Status.Allocation", "Status.Conditions",
}

// eachField calls f for each string, slice and map of a value: with its path, and what makes
// it large.
func eachField(v reflect.Value, path string, f func(path string, enlarge func())) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*resource.Quantity]() || v.Type() == reflect.TypeFor[*metav1.Time]() {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		eachField(v.Elem(), path, f)
		if v.Type() != reflect.TypeFor[*bool]() {
			v.SetZero()
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if t := v.Type().Field(i); t.IsExported() && t.Name != "ManagedFields" {
				eachField(v.Field(i), path+"."+t.Name, f)
			}
		}
	case reflect.String:
		f(path, func() { v.SetString(strings.Repeat("x", largeText)) })
		v.SetZero()
	case reflect.Slice:
		f(path, func() { v.Set(reflect.MakeSlice(v.Type(), largeCount, largeCount)) })
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		eachField(v.Index(0), path+"[]", f)
		v.SetZero()
	case reflect.Map:
		if v.Type().Key().Kind() != reflect.String {
			return
		}
		f(path, func() {
			v.Set(reflect.MakeMap(v.Type()))
			for i := range largeCount {
				v.SetMapIndex(reflect.ValueOf(fmt.Sprintf("nvidia.com/%d", i)).Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
			}
		})
		v.SetZero()
	}
}

// Whatever field of an object is large, what is kept of the object is small.
func TestSlimIsBounded(t *testing.T) {
	for _, obj := range []client.Object{
		&corev1.Pod{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.ReplicaSet{}, &batchv1.Job{}, &corev1.Node{},
		&autoscalingv2.HorizontalPodAutoscaler{}, &resourcev1.ResourceClaim{}, &resourcev1.ResourceClaimTemplate{}, &metav1.PartialObjectMetadata{},
	} {
		n := 0
		controller := true
		eachField(reflect.ValueOf(obj).Elem(), "", func(path string, enlarge func()) {
			if slices.ContainsFunc(bounded, func(known string) bool { return strings.Contains(path, known) }) {
				return
			}
			enlarge()
			n++
			if refs := obj.GetOwnerReferences(); len(refs) == 1 {
				refs[0].Controller = &controller
			}
			slim, err := Slim(nil)(obj)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(slim)
			if err != nil {
				t.Fatal(err)
			}
			if len(b) > maxKept {
				t.Errorf("%T with a large %s: %d bytes are kept", obj, path, len(b))
			}
		})
		if n < 10 {
			t.Errorf("%T has %d fields", obj, n)
		}
	}
}

// An object with too many labels keeps none of them, and says so. A selector of too many
// labels is invalid, so that it selects nothing.
func TestSlimLabels(t *testing.T) {
	many := func(n int) map[string]string {
		set := map[string]string{}
		for i := range n {
			set[fmt.Sprint("key-", i)] = "v"
		}
		return set
	}
	kept := func(set map[string]string) map[string]string { return slimPod(somePod("a", "b", set), nil).Labels }
	if got := kept(many(maxLabels)); len(got) != maxLabels {
		t.Errorf("%d labels are kept of %d", len(got), maxLabels)
	}
	for _, set := range []map[string]string{many(maxLabels + 1), {"a": strings.Repeat("x", maxLabelBytes)}} {
		if got := kept(set); len(got) != 1 || got[gpu.UnreadLabels] == "" {
			t.Errorf("of %d labels are kept: %v", len(set), got)
		}
	}
	f := func(valid bool, s *metav1.LabelSelector) {
		t.Helper()
		if selector, err := metav1.LabelSelectorAsSelector(slimSelector(s)); (err == nil) != valid || !valid && selector != nil && selector.Matches(labels.Set{}) {
			t.Errorf("selector %v, error %v", selector, err)
		}
	}
	f(true, nil)
	f(true, &metav1.LabelSelector{MatchLabels: many(maxLabels)})
	f(false, &metav1.LabelSelector{MatchLabels: many(maxLabels + 1)})
	f(false, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpNotIn, Values: make([]string, maxLabels+1)}}})
	f(false, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpNotIn, Values: []string{strings.Repeat("x", maxLabelBytes)}}}})
}
