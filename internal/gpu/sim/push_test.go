// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A pushed state holds for a few seconds; what is no state is refused and changes nothing.
func TestPush(t *testing.T) {
	now := time.Unix(1e9, 0)
	r, err := New(Config{GPUs: 2, Push: true, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	f := func(method, body string, want int) {
		t.Helper()
		w := httptest.NewRecorder()
		r.Push().ServeHTTP(w, httptest.NewRequest(method, PushPath, strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%s %.40q: status %d %s, want %d", method, body, w.Code, w.Body, want)
		}
	}
	utilization := func() float64 {
		t.Helper()
		var v gpu.Values
		if err := r.Read(UUID("", 1), gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
		x, _ := v.Get(gpu.GPUUtil)
		return x
	}
	if v := utilization(); v != 0 {
		t.Errorf("before: %v", v)
	}
	f(http.MethodPut, `{"gpus": [{}, {"utilization": 77, "memoryUsedMiB": 1}]}`, http.StatusNoContent)
	f(http.MethodPut, `{"gpus": [{}, {"utilization": 777}]}`, http.StatusBadRequest)
	f(http.MethodPut, `{"gpus": [`+strings.Repeat(`{},`, MaxGPUs)+`{}]}`, http.StatusBadRequest)
	f(http.MethodPut, strings.Repeat(" ", maxPushed+1)+"{}", http.StatusBadRequest)
	f(http.MethodPost, `{"gpus": []}`, http.StatusMethodNotAllowed)
	f(http.MethodGet, "", http.StatusMethodNotAllowed)
	if v := utilization(); v != 77 {
		t.Errorf("pushed: %v", v)
	}
	now = now.Add(PushedFor)
	if v := utilization(); v != 0 {
		t.Errorf("the program that pushed has ended: %v", v)
	}
	if _, err := New(Config{Push: true, StateFile: "x"}); err == nil {
		t.Error("a file and pushes")
	}
	if r, err := New(Config{}); err != nil || r.Push() != nil {
		t.Errorf("a built-in load takes pushes: %v", err)
	}
}
