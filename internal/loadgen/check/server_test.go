// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
)

// llm is a server whose requests run until the client gives up, and a source whose SM activity follows them.
type llm struct {
	inFlight atomic.Int64
	gpus     []string
	page     string // of /metrics; empty: none
	status   int    // of requests; 0: they run
}

func (l *llm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		_, _ = io.WriteString(w, `{"data": [{"id": "llama"}]}`)
	case "/metrics":
		if l.page == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, l.page, l.inFlight.Load())
	case "/v1/completions":
		var body map[string]any
		if json.NewDecoder(r.Body).Decode(&body) != nil || body["model"] != "llama" || l.status != 0 {
			w.WriteHeader(l.status)
			return
		}
		l.inFlight.Add(1)
		defer l.inFlight.Add(-1)
		<-r.Context().Done()
	}
}

func (l *llm) Name() string { return "llm" }

func (l *llm) Read(_ context.Context, want func(gpu.FieldID) bool) (Values, error) {
	if !want(gpu.SMActive) || want(gpu.GPUTemp) {
		return nil, fmt.Errorf("unexpected fields")
	}
	out := Values{}
	for _, uuid := range l.gpus {
		out[Key{uuid, gpu.SMActive}] = min(1, float64(l.inFlight.Load())/20)
		out[Key{uuid, gpu.PowerUsage}] = 300
	}
	return out, nil
}

// RoundTrip answers without a network, which a bubble of synctest has not.
func (l *llm) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if l.ServeHTTP(w, r); r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return w.Result(), nil
}

func (l *llm) measure(t *testing.T, s *Server, batches ...int) (out []calibration.Batch, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.URL, s.Source, s.Hold, s.client = "http://10.0.0.1:8000", l, 4*time.Second, &http.Client{Transport: l}
		err = s.Batches(t.Context(), batches, func(b calibration.Batch) error {
			out = append(out, b)
			return nil
		})
	})
	return out, err
}

// The SM activity of a server is measured over its batch, and a replay finds it in the file.
func TestBatches(t *testing.T) {
	l := &llm{gpus: []string{"GPU-1"}, page: "# TYPE running gauge\nrunning{engine=\"0\"} %[1]d\nrunning{engine=\"1\"} 1\n"}
	got, err := l.measure(t, &Server{IsRunning: func(metric string) bool { return metric == "running" }}, 2, 10)
	if err != nil || len(got) != 2 || got[0].Batch != 3 || math.Abs(got[0].SMActive-0.1) > 1e-9 || got[1].Batch != 11 || math.Abs(got[1].SMActive-0.5) > 1e-9 {
		t.Fatalf("%+v, %v", got, err)
	}
	if *got[0].Watts != 300 || got[0].TensorActive != nil {
		t.Errorf("%+v", got[0])
	}
	file := filepath.Join(t.TempDir(), "table.json")
	if err := calibration.Write(file, []calibration.Table{{Model: "NVIDIA H200"}, {Server: "llama", Batches: got}}); err != nil {
		t.Fatal(err)
	}
	if back, err := calibration.Batches(file); err != nil || len(back) != 2 || back[1].SMActive != got[1].SMActive {
		t.Errorf("%+v, %v", back, err)
	}
	if err := calibration.Write(file, []calibration.Table{{Model: "NVIDIA H200"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := calibration.Batches(file); err == nil || !strings.Contains(err.Error(), "load server") {
		t.Errorf("a file without batches: %v", err)
	}
}

func TestBatchesFail(t *testing.T) {
	server := httptest.NewServer(&llm{status: http.StatusServiceUnavailable})
	defer server.Close()
	if err := (&Server{URL: server.URL, Hold: time.Hour}).Batches(t.Context(), []int{2}, nil); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("over a network: %v, want \"503\"", err)
	}
	f := func(l *llm, s *Server, want string, batches ...int) {
		t.Helper()
		if _, err := l.measure(t, s, batches...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f(&llm{gpus: []string{"GPU-1"}, status: http.StatusServiceUnavailable}, &Server{}, "503", 2)
	f(&llm{gpus: []string{"GPU-1"}}, &Server{}, "want 1 to", 0)
	f(&llm{gpus: []string{"GPU-1", "GPU-2"}}, &Server{}, "--gpu", 1)
	f(&llm{gpus: []string{"GPU-1"}}, &Server{GPUs: []string{"GPU-9"}}, "no SM activity", 1)
}
