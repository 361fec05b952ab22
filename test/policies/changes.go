// SPDX-License-Identifier: Apache-2.0

// Package policies tests the admission policies and the rights of deploy/ with the API server's own evaluation, without an
// API server.
package policies

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Changes changes each field of a Kubernetes object in turn, found by reflection: a field that is set gets another value,
// and is then removed; one that is not set is set, and so is each field below it. It calls f with the field's path, such
// as spec.template.spec.containers[].image, or the path and " removed", while the object has the change.
func Changes(object any, f func(change string)) {
	(&changes{f: f, seen: map[string]bool{}}).walk(reflect.ValueOf(object).Elem(), "")
}

// kept are the fields that the API server itself writes, whatever a client sends.
var kept = []string{
	"apiVersion", "kind", "metadata.uid", "metadata.resourceVersion", "metadata.generation", "metadata.creationTimestamp",
	"metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds",
}

type changes struct {
	f    func(string)
	seen map[string]bool // the paths below which everything was set
}

// set calls f while v has another value.
func (c *changes) set(v reflect.Value, change string, other reflect.Value) {
	was := reflect.New(v.Type()).Elem()
	was.Set(v)
	v.Set(other)
	c.f(change)
	v.Set(was)
}

// walk changes what is at v: itself if it is a value, and what is below it.
func (c *changes) walk(v reflect.Value, path string) {
	if other, ok := another(v); ok {
		c.set(v, path, other)
		return
	}
	switch v.Kind() { //nolint:exhaustive // another has the rest
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if below := strings.Trim(path+"."+name, "."); !slices.Contains(kept, below) && name != "managedFields" {
				c.walk(v.Field(i), below)
			}
		}
	case reflect.Pointer:
		c.below(v, path, reflect.New(v.Type().Elem()), func() { c.walk(v.Elem(), path) })
	case reflect.Slice:
		one := reflect.MakeSlice(v.Type(), 1, 1)
		if v.Len() > 0 {
			c.set(v, path, reflect.AppendSlice(one, v))
		}
		c.below(v, path, one, func() {
			for i := range v.Len() {
				c.walk(v.Index(i), path+"[]")
			}
		})
	case reflect.Map:
		c.entries(v, path)
	}
}

// below changes what is there, and removes it. If nothing is there, it changes a new value, once for each path.
func (c *changes) below(v reflect.Value, path string, fresh reflect.Value, walk func()) {
	if !v.IsZero() {
		c.set(v, path+" removed", reflect.Zero(v.Type()))
		walk()
		return
	}
	if c.seen[path] {
		return
	}
	c.seen[path] = true
	v.Set(fresh)
	switch fresh.Interface().(type) {
	case *metav1.Time, *metav1.MicroTime: // the zero time is null
	default:
		c.f(path)
	}
	walk()
	v.SetZero()
}

// entries adds an entry to a map, and changes and removes those that it has.
func (c *changes) entries(v reflect.Value, path string) {
	without := func(key reflect.Value) reflect.Value {
		out := reflect.MakeMap(v.Type())
		for it := v.MapRange(); it.Next(); {
			if it.Key().Interface() != key.Interface() {
				out.SetMapIndex(it.Key(), it.Value())
			}
		}
		return out
	}
	with := func(key, value reflect.Value) {
		m := without(key)
		if other, ok := another(value); ok {
			value = other
		}
		m.SetMapIndex(key, value)
		c.set(v, path+"."+key.String(), m)
	}
	with(reflect.ValueOf("example.com/x").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	for _, key := range v.MapKeys() {
		with(key, v.MapIndex(key))
		c.set(v, path+"."+key.String()+" removed", without(key))
	}
}

// another returns a value of the same type that differs, if the type is one of values and not of fields.
func another(v reflect.Value) (reflect.Value, bool) {
	switch x := v.Interface().(type) {
	case metav1.Time:
		return reflect.ValueOf(metav1.Unix(1, 0)), true
	case metav1.MicroTime:
		return reflect.ValueOf(metav1.NewMicroTime(time.Unix(1, 0))), true
	case resource.Quantity:
		x = x.DeepCopy()
		x.Add(resource.MustParse("1"))
		return reflect.ValueOf(x), true
	case intstr.IntOrString:
		if x == intstr.FromInt32(1) {
			return reflect.ValueOf(intstr.FromInt32(2)), true
		}
		return reflect.ValueOf(intstr.FromInt32(1)), true
	case []byte:
		return reflect.ValueOf(append([]byte("x"), x...)).Convert(v.Type()), true
	}
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() { //nolint:exhaustive // the others have fields
	case reflect.String:
		out.SetString(v.String() + "x")
	case reflect.Bool:
		out.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		out.SetInt(v.Int() + 1)
	default:
		return out, false
	}
	return out, true
}

// MayChoose are the fields of a GPUExporter's objects that the controller's account may choose: a GPUExporter has them, or they
// do no harm. An entry that ends with a dot or a bracket stands for all below it.
var MayChoose = []string{
	"status.", // the API server keeps it as it is
	"metadata.ownerReferences[].uid", "metadata.ownerReferences[].blockOwnerDeletion",
	"data.collectors.csv",
	"spec.endpoints[].honorLabels", "spec.endpoints[].interval", "spec.endpoints[].scrapeTimeout", "spec.endpoints[].scheme",
	"spec.endpoints[].metricRelabelings[", // they act on samples
	"spec.endpoints[].tlsConfig.insecureSkipVerify",
	"spec.ipFamilies", "spec.ipFamilies[]", // one family, of those that the cluster has
	"spec.updateStrategy.",
	"spec.template.metadata.labels.team", "spec.template.metadata.annotations.example.com/a", // listed in podMetadata
	"spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions",
	"spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[].matchExpressions[",
	"spec.template.spec.containers[].args[]", // by flag
	"spec.template.spec.containers[].env[].value",
	"spec.template.spec.containers[].image", // the tag
	"spec.template.spec.containers[].imagePullPolicy",
	"spec.template.spec.containers[].resources.limits.", "spec.template.spec.containers[].resources.requests.",
	"spec.template.spec.hostPID",
	"spec.template.spec.imagePullSecrets", "spec.template.spec.imagePullSecrets[",
	"spec.template.spec.nodeSelector.",
	"spec.template.spec.priorityClassName", "spec.template.spec.runtimeClassName",
	"spec.template.spec.securityContext", // the empty one
	"spec.template.spec.tolerations", "spec.template.spec.tolerations[",
}

// Chosen returns the entry of MayChoose that a change is about; empty: none.
func Chosen(change string) string {
	for _, entry := range MayChoose {
		if change == entry || strings.HasPrefix(change, entry) && strings.ContainsAny(entry[len(entry)-1:], ".[") {
			return entry
		}
	}
	return ""
}
