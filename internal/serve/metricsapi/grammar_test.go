// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// described is a spec in words: METRIC's field, statistic, window, GPU, use.
func described(s *spec) string {
	field := "own " + s.base
	if s.field != nil {
		field = s.field.Name
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", field, s.stat, s.window, s.gpu, s.inUse))
}

func TestGrammar(t *testing.T) {
	p := NewProvider(maxAge, 0, fleet(t))
	f := func(name, selector, want string) {
		t.Helper()
		s, err := p.parse(name, selectorOf(t, selector))
		if got := described(&s); err != nil || got != want {
			t.Errorf("%s{%s} = %q %v, want %q", name, selector, got, err, want)
		}
	}
	f("gpu_utilization", "", "DCGM_FI_DEV_GPU_UTIL  0s  any")
	f("Utilization", "", "DCGM_FI_DEV_GPU_UTIL  0s  any")
	f("gpu_utilization:avg_5m", "", "DCGM_FI_DEV_GPU_UTIL avg 5m0s  any")
	f("gpu_utilization_5m", "", "DCGM_FI_DEV_GPU_UTIL  5m0s  any")
	f("gpu_utilization:mean", "", "DCGM_FI_DEV_GPU_UTIL avg 0s  any")
	f("DCGM_FI_DEV_GPU_UTIL:p90_2m", "", "DCGM_FI_DEV_GPU_UTIL p90 2m0s  any")
	f("DCGM_FI_DEV_FB_USED:max", "", "DCGM_FI_DEV_FB_USED max 0s  any")
	f("DCGM_FI_DEV_FB_USED:min_90s", "", "DCGM_FI_DEV_FB_USED min 1m30s  any")
	f("DCGM_FI_DEV_FB_USED:sum_1m30s", "", "DCGM_FI_DEV_FB_USED sum 1m30s  any")
	f("gpu_utilization", "window=5m,stat=p95,gpu=0,in_use=active", "DCGM_FI_DEV_GPU_UTIL p95 5m0s 0 active")
	f("gpu_utilization:p95_5m", "window=300s,stat=p95", "DCGM_FI_DEV_GPU_UTIL p95 5m0s  any")
	f("gpu_utilization", "gpu in (GPU-7d2a)", "DCGM_FI_DEV_GPU_UTIL  0s GPU-7d2a any")
	f("gpu_utilization", "in_use=allocated", "DCGM_FI_DEV_GPU_UTIL  0s  allocated")
	f("avg_GPU_utilization", "", "DCGM_FI_DEV_MEM_COPY_UTIL avg 0s  active")
	f("avg_GPU_utilization_5m", "in_use=active", "DCGM_FI_DEV_MEM_COPY_UTIL avg 5m0s  active")
	f("avg_GPU_utilization:avg_1m", "", "DCGM_FI_DEV_MEM_COPY_UTIL avg 1m0s  active")
	// Metrics of pods that autoscalers read have colons of their own.
	f("vllm:num_requests_waiting", "", "own vllm:num_requests_waiting  0s  any")
	f("vllm:num_requests_waiting:sum_30s", "", "own vllm:num_requests_waiting sum 30s  any")
	f("queue_depth_1m", "", "own queue_depth  1m0s  any")
}

func TestGrammarRefuses(t *testing.T) {
	p := NewProvider(maxAge, 0, fleet(t))
	f := func(name, selector, want string) {
		t.Helper()
		_, err := p.parse(name, selectorOf(t, selector))
		switch {
		case want == "" && !errors.Is(err, source.ErrUnknownMetric), want != "" && (!apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s{%s}: error %v, want %q", name, selector, err, want)
		case err != nil && len(err.Error()) > 700:
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
	f("gpu_utilization:median", "", `"median" is no statistic: a name is METRIC[:STAT][_WINDOW]`)
	f("gpu_utilization:avg_", "", `"avg_" is no statistic`)
	f("gpu_utilization:p100", "", `"p100" is no statistic`)
	f("gpu_utilization:p05", "", `"p05" is no statistic`)
	f("gpu_utilization:avg_-5m", "", "is no statistic")
	f("gpu_utilization:avg_5ms", "", "is no statistic")
	f("gpu_utilization:avg_1e9s", "", "is no statistic")
	f("gpu_utilization:avg_11m", "", "the window 11m0s is longer than the controller's, 10m0s (--window)")
	f("gpu_utilization:avg_999999h", "", "is longer than the controller's")
	f("gpu_utilization:avg_99999999999999h", "", "is no statistic")
	f("gpu_utilization:avg_5m", "window=2m", "the name says a window of 5m0s, the metric selector 2m0s")
	f("gpu_utilization:avg", "stat=max", "the name says the statistic avg, the metric selector max")
	f("avg_GPU_utilization:max", "", "avg_GPU_utilization is a mean already")
	f("avg_GPU_utilization", "in_use=any", "is of the active GPUs, the metric selector says in_use=any")
	f("gpu_utilization", "window=soon", "window=soon is no duration")
	f("gpu_utilization", "stat=median", "stat=median is no statistic")
	f("gpu_utilization", "in_use=maybe", "in_use=maybe is none of allocated, active and any")
	f("gpu_utilization", "gpu=", "is neither an index nor a UUID")
	f("gpu_utilization", "modelName=H100", `the metric selector has the label "modelName": use window=DURATION`)
	f("gpu_utilization", "gpu!=0", "needs one value")
	f("gpu_utilization", "gpu in (0,1)", "needs one value")
	f("gpu_utilization", "gpu", "needs one value")
	f("gpu_utilization", "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "too many requirements")
	// What is not built in is for the sources.
	f("no_such_metric:avg_5m", "window=x", "")
	f("job:cuda_test_gpu_avg:rate5m", "a=b", "")
	f(":avg", "", "")
	f("_5m", "", "")
	f("", "", "")
	f(strings.Repeat("gpu_utilization:", 1000), "", "")
	f("gpu_utilization:"+strings.Repeat("9", 900), "", "is no statistic")
}

// FuzzGrammar: whatever parses is within the limits, and parses to the same from its
// parts.
func FuzzGrammar(f *testing.F) {
	for _, s := range []string{"gpu_utilization:avg_5m", "DCGM_FI_DEV_GPU_UTIL:p90_2m", "vllm:num_requests_waiting_1h", "avg_GPU_utilization", "203:max", ":_", "a:b_c:d_5s"} {
		f.Add(s)
	}
	p := NewProvider(maxAge, 0, fleet(f))
	f.Fuzz(func(t *testing.T, name string) {
		s, err := p.parse(name, labels.Everything())
		if err != nil {
			return
		}
		if s.window < 0 || s.window > p.span || s.stat.Percentile < 0 || s.stat.Percentile > 99 || !strings.HasPrefix(name, s.base) {
			t.Fatalf("%q: %+v", name, s)
		}
		if s.field != nil && s.field.Kind == gpu.Label {
			t.Fatalf("%q is a label", name)
		}
		again := s.base
		if s.stat.Kind != stat.Default && s.base != averageOfActive {
			again += ":" + s.stat.String()
		}
		if s.window > 0 {
			again += fmt.Sprintf("_%ds", s.window/time.Second)
		}
		if b, err := p.parse(again, nil); s.window%time.Second == 0 && (err != nil || b.base != s.base || b.stat != s.stat || b.window != s.window) {
			t.Fatalf("%q is %+v, but %q is %+v %v", name, s, again, b, err)
		}
	})
}

func TestSuggestions(t *testing.T) {
	p := NewProvider(maxAge, 0, fleet(t))
	f := func(name, want string) {
		t.Helper()
		if got := p.unknownMetric(name).Error(); !strings.Contains(got, want) || len(got) > 600 {
			t.Errorf("%s: %s, want %q", name, got, want)
		}
	}
	f("gpu_utilisation:avg_5m", "did you mean gpu_utilization")
	f("DCGM_FI_DEV_GPU_UTIl", "did you mean DCGM_FI_DEV_GPU_UTIL,")
	f("dcgm_fi_dev_fb_used", "did you mean DCGM_FI_DEV_FB_USED,")
	f("vllm:num_request_waiting", "did you mean vllm:num_requests_waiting?")
	f("zzz", "and no rule has it")
	f(strings.Repeat("gpu_utilization", 700), "is not known")
	if n := len(p.closeTo("DCGM_FI_DEV_NVLINK_THROUGHPUT_L20")); n != maxSuggestions {
		t.Errorf("%d suggestions", n)
	}
}
