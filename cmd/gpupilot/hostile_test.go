// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

const hostileText = "x\x1b]0;pwned\x07\x1b[2J\u202egnp\u200b\x9b31m"

// poison sets every string below v, with one entry in each list and map.
func poison(v reflect.Value, depth int) {
	if depth > 12 || !v.CanSet() {
		return
	}
	switch v.Type() {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[runtime.RawExtension]():
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostileText)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		poison(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			poison(v.Field(i), depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		poison(v.Index(0), depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		poison(key, depth+1)
		poison(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// Whatever the texts of an object's spec and status are, no command writes a control of a terminal.
func TestHostileObjects(t *testing.T) {
	objects := map[string]*v1alpha1.GPUAutoscaler{"all": {}, "spec": {}, "status": {}, "target": {}}
	poison(reflect.ValueOf(&objects["all"].Spec).Elem(), 0)
	poison(reflect.ValueOf(&objects["all"].Status).Elem(), 0)
	poison(reflect.ValueOf(&objects["spec"].Spec).Elem(), 0)
	poison(reflect.ValueOf(&objects["status"].Status).Elem(), 0)
	objects["target"].Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{Kind: hostileText, Name: hostileText}
	objects["target"].Spec.Override = &v1alpha1.Override{Reason: hostileText, Until: metav1.NewTime(time.Now().Add(time.Hour))}
	objects["target"].Status.Override = &v1alpha1.OverrideStatus{}
	for what, a := range objects {
		if what == "status" {
			a.Spec = v1alpha1.GPUAutoscalerSpec{MaxReplicas: 3}
		}
		a.APIVersion, a.Kind, a.ObjectMeta = "gpupilot.dev/v1alpha1", "GPUAutoscaler", metav1.ObjectMeta{Namespace: "llm", Name: "chat"}
		body, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/gpuautoscalers") {
				fmt.Fprintf(w, `{"apiVersion":"gpupilot.dev/v1alpha1","kind":"GPUAutoscalerList","items":[%s]}`, body)
				return
			}
			_, _ = w.Write(body)
		}))
		defer server.Close()
		config := writeFile(t, "config", fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c, namespace: llm}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", server.URL))
		for _, args := range [][]string{
			{"explain"},
			{"explain", "chat"},
			{"hold", "chat", "--freeze", "down", "--for", "1h", "--reason", "x"},
			{"hold", "chat", "--min", "2", "--for", "1h", "--reason", hostileText},
			{"resume", "chat"},
			{"adopt", "hpa/chat", "--dry-run"},
			{"release", "chat", "--dry-run"},
			{"migrate", "hpa", "chat"},
			{"get", "workloads", "--controller", server.URL},
			{"doctor", "--only", "scaling"},
		} {
			var out strings.Builder
			err := run(t.Context(), append(args, "--kubeconfig", config), &out)
			if err != nil { // which main writes in the same way
				_, _ = fmt.Fprint(termtext.NewWriter(&out), err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && r != '\t' && (r < ' ' || termtext.IsUnsafe(r)) }) {
				t.Errorf("%s, %v: %q", what, args, out.String())
			}
			if args[0] == "explain" && !strings.Contains(out.String(), "chat") {
				t.Errorf("%s, %v: %q (%v)", what, args, out.String(), err)
			}
		}
	}
}
