// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestResource(t *testing.T) {
	down := false
	documents := map[string]any{
		"/apis/serving.kserve.io": metav1.APIGroup{PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v1beta1"}},
		"/apis/serving.kserve.io/v1beta1": metav1.APIResourceList{APIResources: []metav1.APIResource{
			{Name: "inferenceservices/status", SingularName: "inferenceservice", Namespaced: true},
			{Name: "inferenceservices", SingularName: "inferenceservice", Namespaced: true},
		}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		doc, ok := documents[r.URL.Path]
		switch {
		case down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			_ = json.NewEncoder(w).Encode(doc) // the client may have disconnected
		}
	}))
	defer server.Close()
	set, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c := &Clients{Set: set}
	f := func(group, name string, want bool) {
		t.Helper()
		r, found, err := c.Resource(t.Context(), group, name)
		if err != nil || found != want || found && (r.Name != "inferenceservices" || r.Group != group || !r.Namespaced) {
			t.Errorf("%s.%s: %+v, %t, %v", name, group, r, found, err)
		}
	}
	f("serving.kserve.io", "inferenceservice", true)
	f("serving.kserve.io", "inferenceservices", true)
	f("serving.kserve.io", "inferenceservices/status", false)
	f("serving.kserve.io", "", false)
	f("other.io", "inferenceservices", false)
	f("../api/v1", "secrets", false)
	f("", "pods", false)
	down = true
	if _, found, err := c.Resource(t.Context(), "serving.kserve.io", "inferenceservice"); err == nil || found {
		t.Errorf("an API server that fails: %t, %v", found, err)
	}
}
