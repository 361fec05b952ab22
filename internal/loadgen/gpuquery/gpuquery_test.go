// SPDX-License-Identifier: Apache-2.0

package gpuquery

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/check"
)

// A query of GPU metrics is a source for gpupilot load: by the metrics' names, or for the one load that runs.
func TestSource(t *testing.T) {
	f := func(result string, want check.Values, fields ...gpu.FieldID) {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.FormValue("query") != `max by (UUID) (x{a="b"})` {
				t.Errorf("query %q", r.FormValue("query"))
			}
			fmt.Fprint(w, `{"status": "success", "data": {"resultType": "vector", "result": `+result+`}}`)
		}))
		defer srv.Close()
		s, err := New(srv.URL+"?query="+url.QueryEscape(`max by (UUID) (x{a="b"})`), "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Read(t.Context(), func(f gpu.FieldID) bool { return slices.Contains(fields, f) })
		if (err != nil) != (want == nil) || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", result, got, err, want)
		}
	}
	const unnamed = `[{"metric": {"UUID": "GPU-a"}, "value": [4000000000, "0.5"]}, {"metric": {"UUID": "GPU-b"}, "value": [4000000000, "NaN"]}]`
	f(unnamed, check.Values{{UUID: "GPU-a", Field: gpu.TensorActive}: 0.5}, gpu.TensorActive)
	f(unnamed, nil, gpu.TensorActive, gpu.DRAMActive)
	f(`[{"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-a"}, "value": [4000000000, "50"]}, {"metric": {"__name__": "up"}, "value": [4000000000, "1"]}]`,
		check.Values{{UUID: "GPU-a", Field: gpu.GPUUtil}: 50}, gpu.GPUUtil, gpu.GREngineActive)
	for _, text := range []string{"http://127.0.0.1:1", "http://127.0.0.1:1?query=", "ftp://x?query=y"} {
		if _, err := New(text, ""); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
