// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

func TestReadHealth(t *testing.T) {
	answer, status := pagetest.Sick, http.StatusOK
	var names []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names = r.URL.Query()["name[]"]
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer srv.Close()
	read := func() (*gpu.NodeHealth, error) {
		return ReadHealth(t.Context(), NewClient(), parse(srv.URL+"/metrics"))
	}
	got, err := read()
	if err != nil {
		t.Fatal(err)
	}
	want := &gpu.NodeHealth{GPUs: []gpu.Health{
		{UUID: "GPU-0", RowRemapFailure: true},
		{UUID: "GPU-1", Down: true, XIDs: []gpu.XIDCount{{Code: 79, Last: time.Unix(1800000000, 0)}}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !slices.Contains(names, "gpupilot_device_up") {
		t.Errorf("asked for %v", names)
	}
	f := func(page string, code int, says string) {
		t.Helper()
		answer, status = page, code
		if got, err := read(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v, %v, want %q", got, err, says)
		}
	}
	f("up 1\n", http.StatusOK, "it is not an agent's")
	f(pagetest.Sick, http.StatusServiceUnavailable, "answered 503")
	f(strings.Repeat("x", maxHealth+1), http.StatusOK, "longer than the limit")
	answer, status = "gpupilot_backend_up{backend=\"nvml\"} 0\n", http.StatusOK
	if got, err := read(); err != nil || !got.BackendDown {
		t.Errorf("%+v, %v", got, err)
	}
}
