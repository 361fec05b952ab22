// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/internal/serve/remote"
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
	c, err := remote.NewAPI(&rest.Config{Host: server.URL + "/k8s"}) // as behind a gateway
	if err != nil {
		t.Fatal(err)
	}
	f := func(namespace, name, want, failure string) error {
		t.Helper()
		all, err := autoscalers(t.Context(), c, namespace, name)
		var got []string
		for i := range all {
			got = append(got, fmt.Sprint(all[i].object.Name, all[i].badSpec != nil))
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
