// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

func TestAutoscalersOfAnAPIServer(t *testing.T) {
	const chat = `{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": {"namespace": "llm", "name": "chat"}}`
	answers := map[string]string{
		"/k8s/apis/gpupilot.dev/v1alpha1/namespaces/llm/gpuautoscalers/chat":  chat,
		"/k8s/apis/gpupilot.dev/v1alpha1/namespaces/llm/gpuautoscalers":       `{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscalerList", "items": [` + chat + `, {"kind": "GPUAutoscaler", "metadata": {"name": "batch"}, "spec": 3}]}`,
		"/k8s/apis/gpupilot.dev/v1alpha1/namespaces/none/gpuautoscalers":      `{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscalerList", "items": []}`,
		"/k8s/apis/gpupilot.dev/v1alpha1/namespaces/garbage/gpuautoscalers/x": "<html>",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch body, ok := answers[r.URL.Path]; {
		case r.URL.Path == "/k8s/apis/gpupilot.dev/v1alpha1/namespaces/gateway/gpuautoscalers/x":
			http.Error(w, "upstream is away", http.StatusBadGateway)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "gpuautoscalers \"x\" not found", "code": 404}`)
		default:
			fmt.Fprint(w, body)
		}
	}))
	defer server.Close()
	c, err := NewAPI(&rest.Config{Host: server.URL + "/k8s"}) // as behind a gateway
	if err != nil {
		t.Fatal(err)
	}
	f := func(namespace, name, want, failure string) error {
		t.Helper()
		all, err := c.Autoscalers(t.Context(), namespace, name)
		var got []string
		for i := range all {
			got = append(got, fmt.Sprint(all[i].Object.Name, all[i].BadSpec != nil))
		}
		if strings.Join(got, ",") != want || (err == nil) != (failure == "") || err != nil && !strings.Contains(err.Error(), failure) {
			t.Errorf("%s/%s: %v, %v; want %s, %q", namespace, name, got, err, want, failure)
		}
		return err
	}
	f("llm", "chat", "chatfalse", "")
	f("llm", "", "chatfalse,batchtrue", "")
	f("none", "", "", "no GPUAutoscaler in namespace none")
	if err := f("llm", "x", "", `gpuautoscalers "x" not found`); !apierrors.IsNotFound(err) {
		t.Errorf("%v is not NotFound", err)
	}
	f("gateway", "x", "", "502 Bad Gateway")
	f("garbage", "x", "", "invalid character")
}

// A malformed object is named, and does not hide the others.
func TestExplainMalformed(t *testing.T) {
	f := func(object map[string]any, want ...string) {
		t.Helper()
		object["metadata"] = map[string]any{"namespace": "llm", "name": "chat"}
		s := decoded(&unstructured.Unstructured{Object: object})
		var out strings.Builder
		s.Explain(&out, time.Now())
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("no %q in:\n%s", w, out.String())
			}
		}
	}
	f(map[string]any{"spec": map[string]any{"maxReplicas": "many"}}, "llm/chat has a spec that cannot be read: spec.maxReplicas")
	f(map[string]any{"status": "yes"}, "llm/chat has a status that cannot be read", "llm/chat scales", "nothing decided yet")
}

func TestObjectArgument(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(kubeconfig, []byte("current-context: a\ncontexts: [{name: a, context: {cluster: c, namespace: own}}, {name: b, context: {cluster: c, namespace: other}}]\nclusters: [{name: c, cluster: {server: https://127.0.0.1:1}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(namespace string, args []string, want string) {
		t.Helper()
		c := Cluster{Namespace: namespace, Kubeconfig: kubeconfig}
		if args != nil && args[0] == "b" {
			c.Context, args = args[0], args[1:]
		}
		ns, name, err := c.Object(args)
		if got := ns + "/" + name; err != nil && want != "" || err == nil && got != want {
			t.Errorf("-n %q %v: %s, %v; want %s", namespace, args, got, err, want)
		}
	}
	f("", []string{"llm/chat"}, "llm/chat")
	f("", []string{"chat"}, "own/chat")
	f("", []string{"b", "chat"}, "other/chat")
	f("llm", []string{"chat"}, "llm/chat")
	f("llm", nil, "llm/")
	f("llm", []string{"llm/chat"}, "llm/chat")
	f("other", []string{"llm/chat"}, "")
	f("", []string{"a/b/c"}, "")
}
