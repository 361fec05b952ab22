// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/loadgen/verdict"
)

func all(gpu.FieldID) bool { return true }

// Names and units of each profile mean the same; copies for sharers count once; MIG instances are told by the agent's
// table of instances.
func TestPage(t *testing.T) {
	f := func(page string, want Values) {
		t.Helper()
		got, err := parsePage(strings.NewReader(page), all)
		if err != nil && len(want) > 0 {
			t.Fatal(err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s\n%v, want %v", page, got, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s\n%v, want %v", page, got, want)
		}
	}
	f(`DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",pod="x"} 0.5
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",pod="y"} 0.5
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 60`, Values{{"GPU-a", gpu.SMActive}: 0.5, {"GPU-a", gpu.GPUUtil}: 60})
	f(`DCGM_FI_PROF_SM_UTIL_RATIO{UUID="GPU-a"} 0.25 1700000000000`, Values{{"GPU-a", gpu.SMActive}: 0.25})
	f(`dcgm_fi_prof_sm_active{uuid="GPU-a",a="}\"\\"} 0.25`, Values{{"GPU-a", gpu.SMActive}: 0.25})
	f(`gpupilot_mig_device_info{uuid="MIG-1",parent_uuid="GPU-a",gpu_instance="7",compute_instance="0",profile="1g"} 1
DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-a",GPU_I_ID="7"} 0.5`, Values{{"GPU-a/7", gpu.SMActive}: 0.5, {"MIG-1", gpu.SMActive}: 0.5})
	f("DCGM_FI_PROF_SM_ACTIVE 0.5\nDCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-a\"} NaN\nother{UUID=\"GPU-a\"} 1", nil)
}

func FuzzPage(f *testing.F) {
	f.Add(`DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-a"} 0.5`)
	f.Add("a{b=\"\\")
	f.Fuzz(func(t *testing.T, page string) {
		values, _ := parsePage(strings.NewReader(page), all)
		for k, v := range values {
			if k.UUID == "" || v != v {
				t.Errorf("%v: %v", k, v)
			}
		}
	})
}

// An exporter cannot make the check follow it elsewhere, wait, or keep what it invents.
func TestHostilePages(t *testing.T) {
	f := func(h http.HandlerFunc) (Values, error) {
		server := httptest.NewServer(h)
		defer server.Close()
		p, err := NewPage(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		p.client.Timeout = time.Minute
		return p.Read(t.Context(), all)
	}
	if _, err := f(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
	}); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("a redirect: %v", err)
	}
	line := []byte("DCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-a\"} 0.5\n")
	if _, err := f(func(w http.ResponseWriter, _ *http.Request) {
		page := bytes.Repeat(line, 1<<20/len(line))
		for range 18 {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	}); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Errorf("a long page: %v", err)
	}
	many, err := f(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 * maxKeys {
			_, _ = w.Write([]byte("DCGM_FI_PROF_SM_ACTIVE{UUID=\"GPU-" + strings.Repeat("x", i%50) + time.Duration(i).String() + "\"} 0.5\n"))
		}
	})
	if err != nil || len(many) > maxKeys {
		t.Errorf("%d values, %v", len(many), err)
	}
}

// A source cannot make the check keep what it invents: not more than 4096 keys, and no part of an answer.
func TestKept(t *testing.T) {
	w := &watch{values: map[Key][]point{}}
	for i := range 3 {
		values := Values{{strings.Repeat("x", maxUUID+1), gpu.SMActive}: 1}
		for j := range maxKeys - 10 {
			values[Key{fmt.Sprintf("GPU-%d-%d", i, j), gpu.SMActive}] = 1
		}
		w.keep(t0.Add(time.Duration(i)*time.Second), values)
	}
	if len(w.values) != maxKeys || w.points != maxKeys || len(w.answers) != 3 {
		t.Errorf("%d keys, %d points, %d answers", len(w.values), w.points, len(w.answers))
	}
	w.points = maxPoints
	w.source = sourceFunc(func() Values { return Values{{"GPU-a", gpu.SMActive}: 1} })
	if w.ask(t.Context(), all); len(w.answers) != 3 {
		t.Error("an answer was kept in part")
	}
}

// NVML and DCGM need the agent, and say so where it is not there.
func TestAgentNames(t *testing.T) {
	for name, want := range map[string]string{
		"nvml": "--backend nvml", "dcgm": "--backend dcgm", "dcgm://host:5555": "--backend dcgm --remote-hostengine-info host:5555",
		"dcgm:///run/he.sock": "--backend dcgm --remote-hostengine-info /run/he.sock", "dcgm://": "", "http://x": "",
	} {
		a, ok := NewAgent(name, "")
		if ok != (want != "") || ok && strings.Join(a.args, " ") != want {
			t.Errorf("%s: %v, %v", name, a, ok)
		}
	}
	t.Setenv("PATH", t.TempDir())
	a, _ := NewAgent("nvml", "")
	if _, err := a.Read(t.Context(), all); err == nil || !strings.Contains(err.Error(), "neither beside this program nor on the PATH") {
		t.Errorf("%v", err)
	}
	a, _ = NewAgent("nvml", "")
	a.Program = "/bin/false"
	if _, err := a.Read(t.Context(), all); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("%v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sourceFunc is a source that always answers.
type sourceFunc func() Values

func (sourceFunc) Name() string { return "source" }

func (f sourceFunc) Read(context.Context, func(gpu.FieldID) bool) (Values, error) { return f(), nil }

// What cannot be matched with the GPU that is loaded is no lie.
func TestUnclear(t *testing.T) {
	f := func(want string, uuids []string, keys ...string) {
		t.Helper()
		c := New([]Source{sourceFunc(nil)}, 0)
		for i := range 60 {
			v := 0.5 + 0.4*math.Sin(float64(i)/5)
			at := t0.Add(time.Duration(i) * time.Second)
			for _, uuid := range uuids {
				c.Step(load.Step{Load: "tensor", GPU: load.GPU{UUID: uuid}, Start: at, End: at.Add(time.Second), Generated: &v})
			}
			values := Values{}
			for _, key := range keys {
				values[Key{key, gpu.TensorActive}] = v
			}
			c.watches[0].keep(at.Add(time.Second), values)
		}
		for _, r := range c.Results() {
			if got := r.String(); r.GPU == uuids[0] && !strings.HasPrefix(got, want) {
				t.Errorf("%v, %v: %s, want %s", uuids, keys, got, want)
			}
		}
	}
	f("exact", []string{"GPU-a"}, "GPU-a")
	f("could not be measured: the source has numbers of MIG instances", []string{"MIG-1"}, "GPU-a/7", "GPU-a/8")
	f("exact", []string{"MIG-1"}, "GPU-a/7", "MIG-1")
	f("another GPU's label: GPU-b", []string{"GPU-a"}, "GPU-b")
	f("missing", []string{"GPU-a"})
}

func TestExitCodes(t *testing.T) {
	f := func(want int, list ...verdict.Finding) {
		t.Helper()
		var results []Result
		for _, l := range list {
			results = append(results, Result{Verdict: verdict.Verdict{Finding: l}})
		}
		code, failure := 0, (*load.Failure)(nil)
		if errors.As(Failure(results), &failure) {
			code = failure.Code
		}
		if code != want {
			t.Errorf("%v: exit code %d, want %d", list, code, want)
		}
	}
	f(0, verdict.Exact, verdict.Within)
	f(1, verdict.Exact, verdict.Frozen, verdict.Unmeasured)
	f(2, verdict.Exact, verdict.Unmeasured)
	f(2)
}
