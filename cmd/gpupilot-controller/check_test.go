// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// --check asks for the APIs that the controller serves.
func TestCheckAsks(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.Path)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(kubeconfig, "SERVER", server.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	f := func(args []string, want ...string) {
		t.Helper()
		asked = nil
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"--kubeconfig", file, "--check", server.URL + "/"}, args...), &out)
		if err != nil || !slices.Equal(asked, want) {
			t.Errorf("%v: asked %v (%v), want %v\n%s", args, asked, err, want, &out)
		}
	}
	custom := []string{"/readyz", "/apis/custom.metrics.k8s.io/v1beta2", "/apis/custom.metrics.k8s.io/v1beta1"}
	f(nil, custom...)
	f([]string{"--external-metrics"}, append(custom, "/apis/external.metrics.k8s.io/v1beta1")...)
	f([]string{"--register-apis=false"}, "/readyz")
	f([]string{"--register-apis=false", "--external-metrics"}, "/readyz", "/apis/external.metrics.k8s.io/v1beta1")
}
