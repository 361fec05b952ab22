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
)

const sick = `# TYPE gpupilot_backend_up gauge
gpupilot_backend_up{backend="nvml"} 1
gpupilot_device_up{uuid="GPU-0"} 1
gpupilot_device_up{uuid="GPU-1"} 0
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-0"} 1
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1",UUID="GPU-1"} 0
gpupilot_xid_last_seen_timestamp_seconds{uuid="GPU-1",xid="79"} 1800000000
gpupilot_xid_last_seen_timestamp_seconds{uuid="GPU-1",xid="nonsense"} 1800000000
`

func TestReadHealth(t *testing.T) {
	answer, status := sick, http.StatusOK
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
	f(sick, http.StatusServiceUnavailable, "answered 503")
	f(strings.Repeat("x", maxHealth+1), http.StatusOK, "longer than the limit")
	answer, status = "gpupilot_backend_up{backend=\"nvml\"} 0\n", http.StatusOK
	if got, err := read(); err != nil || !got.BackendDown {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever a page holds, what is made of it has names and no time that is none.
func FuzzParseHealth(f *testing.F) {
	f.Add([]byte(sick))
	f.Add([]byte("gpupilot_backend_up 1\ngpupilot_xid_last_seen_timestamp_seconds{uuid=\"a\",xid=\"1\"} 1e300\ngpupilot_device_up{uuid=\"\"} 0"))
	f.Add([]byte("gpupilot_backend_up NaN\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		h, err := parseHealth(page)
		if err != nil {
			return
		}
		for _, g := range h.GPUs {
			if g.UUID == "" {
				t.Error("a GPU without a UUID")
			}
			for _, x := range g.XIDs {
				if y := x.Last.UTC().Year(); y < 1970 || y > 9999 {
					t.Errorf("an XID of the year %d", y)
				}
			}
		}
	})
}
