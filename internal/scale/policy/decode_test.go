// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// parsed is an object as a watch gives it.
func parsed(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestDecodeNamesMalformedFields(t *testing.T) {
	const meta = `"apiVersion":"gpupilot.dev/v1alpha1","kind":"GPUAutoscaler","metadata":{"namespace":"ns","name":"a","uid":"u","generation":3},`
	f := func(rest, spec, status string) {
		t.Helper()
		a, badSpec, badStatus := Decode(parsed(t, "{"+meta+rest+"}"))
		if a.Namespace != "ns" || a.Name != "a" || a.UID != "u" || a.Generation != 3 {
			t.Errorf("%s: the metadata is %+v", rest, a.ObjectMeta)
		}
		for _, x := range []struct {
			got  error
			want string
		}{{badSpec, spec}, {badStatus, status}} {
			if (x.got == nil) != (x.want == "") || x.got != nil && !strings.Contains(x.got.Error(), x.want) {
				t.Errorf("%s: %v, want %q", rest, x.got, x.want)
			}
		}
		if spec == "" && a.Spec.MaxReplicas != 4 {
			t.Errorf("%s: the spec is %+v", rest, a.Spec)
		}
	}
	f(`"spec":{"maxReplicas":4},"status":{"currentReplicas":2}`, "", "")
	f(`"spec":{"maxReplicas":4,"unknown":{"x":[1]}}`, "", "")
	f(`"spec":{"maxReplicas":"many"}`, "spec.maxReplicas", "")
	f(`"spec":{"maxReplicas":4294967300}`, "spec.maxReplicas", "")
	f(`"spec":{"maxReplicas":4,"signals":[{"target":{"value":"lots"}}]}`, "spec.signals[0].target.value", "")
	f(`"spec":{"maxReplicas":4,"signals":[{"slo":{"timeToFirstToken":"2"}}]}`, "spec.signals[0].slo.timeToFirstToken", "")
	f(`"spec":[1]`, "spec", "")
	f(`"spec":{"maxReplicas":4},"status":[1]`, "", "status")
	f(`"spec":{"maxReplicas":4},"status":{"currentReplicas":"x","servingReplicas":1}`, "", "status.currentReplicas")
	f(`"spec":{"maxReplicas":"many"},"status":{"conditions":5}`, "spec.maxReplicas", "status.conditions")
}

// Whatever is stored, it is read or refused, alone.
func FuzzDecode(f *testing.F) {
	f.Add(`{"maxReplicas":4,"signals":[{"gpu":{"metric":"Utilization"},"target":{"value":"60"}}]}`, `{"conditions":[{"type":"Ready"}]}`)
	f.Add(`{"maxReplicas":"x"}`, `{"memory":{"time":7,"state":{}}}`)
	f.Add(`[[[[]]]]`, `"x"`)
	f.Add(`{"signals":[{"target":{"value":"1e999999999"}},{"slo":{"interTokenLatency":-1}}]}`, `{"startup":{"p95Seconds":1e30}}`)
	f.Fuzz(func(t *testing.T, spec, status string) {
		var s, st any
		if json.Unmarshal([]byte(spec), &s) != nil || json.Unmarshal([]byte(status), &st) != nil {
			return
		}
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": map[string]any{"name": "a"}, "spec": s, "status": st,
		}}
		a, badSpec, _ := Decode(u)
		if a == nil || a.Name != "a" {
			t.Fatalf("the name is lost: %+v", a)
		}
		if badSpec == nil {
			_, _ = Compile(a)
		}
	})
}
