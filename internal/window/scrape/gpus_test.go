// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

var t0 = time.Unix(1_800_000_000, 0)

// reader reads pages into a store as a runner does, without the network.
type reader struct {
	t     *testing.T
	store *series.Store
	r     *runner
	now   time.Time
}

func newReader(t *testing.T, want Target) *reader {
	store := series.New(series.Config{})
	s := New(Config{}, Deps{Store: store, Log: slog.New(slog.DiscardHandler)})
	want.Name, want.URL = "t", parse("http://10.0.0.1:9400/metrics")
	r := &runner{s: s, phase: newPhase(&s.cfg, "t")}
	r.want.Store(&want)
	return &reader{t, store, r, t0}
}

// keep reads and stores a page, as scrape does without the network.
func (r *runner) keep(text []byte, started, arrived time.Time) {
	r.take()
	defer r.release()
	_ = r.page.ReadBody(bytes.NewReader(text), r.buffer.bytes[:], 1<<30) // store sees that a page is too large
	r.store(started, arrived)
}

// read gives the target a page, a second after the last one.
func (x *reader) read(page string) {
	x.t.Helper()
	x.now = x.now.Add(time.Second)
	if err := x.r.prepare(x.now); err != nil {
		x.t.Fatal(err)
	}
	x.r.keep([]byte(page), x.now, x.now)
	if x.r.state.Err != nil {
		x.t.Error(x.r.state.Err)
	}
}

func (x *reader) want(pod string, f gpu.FieldID, want float64) {
	x.t.Helper()
	got, ok := x.store.Pod("ns", pod, f, x.now, 500*time.Millisecond)
	if !ok && math.IsNaN(want) {
		return
	}
	if !ok || got.Value != want {
		x.t.Errorf("%s %v = %v, %v; want %v", pod, f, got.Value, ok, want)
	}
}

var none = math.NaN()

// holders renders who holds what, such as "G0:ns/p/c G1:ns/q/c".
func (x *reader) holders() string {
	var out []string
	for _, d := range x.store.Devices("", nil, x.now, time.Hour) {
		for _, o := range d.Owners {
			s := fmt.Sprintf("%s:%s/%s/%s", d.Device, o.Namespace, o.Pod, o.Container)
			if o.Replica != "" {
				s += "#" + o.Replica
			}
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

func TestOwners(t *testing.T) {
	f := func(want string, lines ...string) {
		t.Helper()
		x := newReader(t, Target{Kind: DCGM})
		x.read(strings.Join(lines, "\n"))
		if got := x.holders(); got != want {
			t.Errorf("holders %s\n   want %s\n%s", got, want, strings.Join(lines, "\n"))
		}
	}
	const util = "DCGM_FI_DEV_GPU_UTIL"
	f("", util+`{gpu="0",UUID="G0"} 5`)
	f("G0:ns/p/c", util+`{gpu="0",UUID="G0",container="c",namespace="ns",pod="p"} 5`)
	f("G0:ns/p/c", util+`{gpu="0",uuid="G0",container_name="c",pod_namespace="ns",pod_name="p"} 5`)
	f("G0:ns/p/c", util+`{UUID="G0",exported_namespace="ns",exported_pod="p",exported_container="c"} 5`)
	f("G0:ns/p/c", util+`{UUID="G0",namespace="ns",pod="p",container="c",exported_namespace="ns",exported_pod="p"} 5`)
	f("", util+`{gpu="0",UUID="G0",container="",namespace="",pod=""} 5`)
	f("P/gi1:ns/p/c P/gi2:ns/q/c",
		util+`{UUID="P",GPU_I_PROFILE="1g.10gb",GPU_I_ID="1",container="c",namespace="ns",pod="p"} 5`,
		util+`{UUID="P",GPU_I_PROFILE="1g.10gb",GPU_I_ID="2",container="c",namespace="ns",pod="q"} 5`)
	f("G0:ns/p/c#0 G0:ns/q/c#1",
		util+`{UUID="G0",vgpu="0",container="c",namespace="ns",pod="p"} 5`,
		util+`{UUID="G0",vgpu="1",container="c",namespace="ns",pod="q"} 5`)
	// Our agent: its list of allocations counts, labels do not.
	f("G0:ns/p/c#0 G0:ns/q/c#1 G1:ns/r/c",
		util+`{UUID="G0"} 5`, util+`{UUID="G1",container="c",namespace="ns",pod="stale"} 5`,
		`gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="c",replica="0"} 1`,
		`gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="q",container="c",replica="1"} 1`,
		`gpupilot_gpu_allocation_info{uuid="G1",namespace="ns",pod="r",container="c",replica=""} 1`)
	f("P/gi3:ns/p/c",
		util+`{UUID="P",GPU_I_ID="3"} 5`,
		`gpupilot_gpu_allocation_info{uuid="MIG-x",namespace="ns",pod="p",container="c",replica=""} 1`,
		`gpupilot_mig_device_info{uuid="MIG-x",parent_uuid="P",gpu_instance="3",compute_instance="0",profile="1g.10gb"} 1`)
}

// dcgm-exporter shows the labels of pods by their own names with
// --kubernetes-enable-pod-labels, so that a tenant chooses names and values on the
// lines of its own GPU: none makes that GPU another pod's, or another GPU of it.
func TestPodLabelsChooseNoOwner(t *testing.T) {
	const util = "DCGM_FI_DEV_GPU_UTIL"
	const victim = util + `{gpu="0",UUID="G0",container="c",namespace="ns",pod="victim"} 90`
	for name, line := range map[string]string{
		"exported": util + `{gpu="1",UUID="G1",exported_namespace="ns",exported_pod="victim",container="c",namespace="evil",pod="p"} 1`,
		"old":      util + `{gpu="1",UUID="G1",pod_namespace="ns",pod_name="victim",container="c",namespace="evil",pod="p"} 1`,
		"new":      util + `{gpu="1",uuid="G1",namespace="ns",pod="victim",container_name="c",pod_name="p",pod_namespace="evil"} 1`,
		"device":   util + `{gpu="1",uuid="G1",UUID="G0",container_name="c",pod_name="p",pod_namespace="evil"} 1`,
	} {
		x := newReader(t, Target{Kind: DCGM})
		x.read(victim + "\n" + line)
		if got := x.holders(); got != "G0:ns/victim/c" {
			t.Errorf("%s: holders %s, want the victim of G0 only", name, got)
		}
		x.want("victim", gpu.GPUUtil, 90)
	}
}

func TestValues(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	const l = `{UUID="G0",namespace="ns",pod="p",container="c"} `
	x.read("# HELP x\n# TYPE x gauge\nDCGM_FI_DEV_GPU_UTIL_RATIO" + l + "0.5\nDCGM_FI_DEV_FB_USED" + l + "NaN\n" +
		"DCGM_FI_DRIVER_VERSION" + l + "1\nDCGM_FI_DEV_POWER_USAGE" + l + "378.461000\ngo_goroutines 5\nup" + l + "1")
	x.want("p", gpu.GPUUtil, 50)
	x.want("p", gpu.PowerUsage, 378.461)
	x.want("p", gpu.FBUsed, none)
	if st := x.store.Stats(); st.Series != 3 {
		t.Errorf("%d series, want 3", st.Series)
	}

	x = newReader(t, Target{Kind: DCGM, Fields: gpu.SetOf(gpu.PowerUsage)})
	x.read("DCGM_FI_DEV_GPU_UTIL" + l + "5\nDCGM_FI_DEV_POWER_USAGE" + l + "70")
	x.want("p", gpu.PowerUsage, 70)
	x.want("p", gpu.GPUUtil, none)
}

// With --kubernetes-virtual-gpus dcgm-exporter keeps a device's utilisation
// without a pod and adds each sharer's own; other fields have copies only.
func TestVirtualGPUs(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	for range 2 {
		x.read(`DCGM_FI_DEV_GPU_UTIL{UUID="G0"} 80
DCGM_FI_DEV_GPU_UTIL{UUID="G0",vgpu="0",container="c",namespace="ns",pod="p",pod_uid="1"} 60
DCGM_FI_DEV_GPU_UTIL{UUID="G0",vgpu="1",container="c",namespace="ns",pod="q",pod_uid="2"} 0
DCGM_FI_DEV_GPU_TEMP{UUID="G0",vgpu="0",container="c",namespace="ns",pod="p"} 50
DCGM_FI_DEV_GPU_TEMP{UUID="G0",vgpu="1",container="c",namespace="ns",pod="q"} 50
`)
		x.want("p", gpu.GPUUtil, 80)
		x.want("q", gpu.GPUUtil, 80)
		x.want("q", gpu.GPUTemp, 50)
	}
}

// Our agent with --process-metrics tells what each sharer uses. A pod that has a
// device alone has the device's value; who shares one has its own, or none.
func TestShares(t *testing.T) {
	x := newReader(t, Target{Kind: Agent})
	page := func(shares ...string) {
		x.read(fmt.Sprintf("gpupilot_collection_timestamp_seconds %.3f\ngpupilot_collection_interval_seconds 1\n", float64(x.now.Unix())+0.6) +
			`DCGM_FI_DEV_GPU_UTIL{UUID="G0"} 80
DCGM_FI_DEV_FB_USED{UUID="G0"} 4000
DCGM_FI_DEV_GPU_TEMP{UUID="G0"} 50
DCGM_FI_DEV_GPU_UTIL{UUID="G1"} 30
DCGM_FI_DEV_GPU_UTIL{UUID="P",GPU_I_ID="3"} 40
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="a",replica="0"} 1
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="b",replica="1"} 1
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="q",container="c",replica="2"} 1
gpupilot_gpu_allocation_info{uuid="G1",namespace="ns",pod="r",container="c",replica=""} 1
gpupilot_gpu_allocation_info{uuid="MIG-x",namespace="ns",pod="s",container="c",replica="0"} 1
gpupilot_gpu_allocation_info{uuid="MIG-x",namespace="ns",pod="t",container="c",replica="1"} 1
gpupilot_mig_device_info{uuid="MIG-x",parent_uuid="P",gpu_instance="3",compute_instance="0",profile="1g.10gb"} 1
` + strings.Join(shares, "\n"))
	}
	util := func(uuid, pod, container string, v float64) string {
		return fmt.Sprintf(`gpupilot_pod_gpu_utilization_ratio{uuid=%q,gpu="0",namespace="ns",pod=%q,container=%q} %v`, uuid, pod, container, v)
	}
	memory := `gpupilot_pod_gpu_memory_used_bytes{uuid="G0",gpu="0",namespace="ns",pod="p",container="a"} 1048576000`
	page() // nothing is measured
	x.want("p", gpu.GPUUtil, 80)
	x.want("q", gpu.GPUUtil, 80)
	for range 3 {
		page(util("G0", "p", "a", 0.25), util("G0", "p", "b", 0.5), util("G0", "q", "c", 0), util("G1", "r", "c", 0.25), util("MIG-x", "s", "c", 0.125), memory)
		x.want("p", gpu.GPUUtil, 75)
		x.want("q", gpu.GPUUtil, 0)
		x.want("p", gpu.FBUsed, 1000)
		x.want("q", gpu.FBUsed, none) // measured, and not known
		x.want("q", gpu.GPUTemp, 50)  // nobody has a share of that
		x.want("r", gpu.GPUUtil, 30)
		x.want("s", gpu.GPUUtil, 12.5)
		x.want("t", gpu.GPUUtil, none)
	}
	// A gap does not make a sharer use all of the device, unless it stays.
	x.now = x.now.Add(10 * time.Second)
	page()
	x.want("p", gpu.GPUUtil, none)
	x.want("r", gpu.GPUUtil, 30)
	x.now = x.now.Add(2 * time.Minute)
	page()
	x.want("p", gpu.GPUUtil, 80)
	page(util("G0", "p", "a", 0.25))
	x.want("p", gpu.GPUUtil, 25)
	x.want("q", gpu.GPUUtil, none)
}

func TestPodsComeAndGo(t *testing.T) {
	x := newReader(t, Target{Kind: Agent})
	page := func(util int, owners ...string) string {
		var b strings.Builder
		fmt.Fprintf(&b, "gpupilot_collection_timestamp_seconds %d.25\ngpupilot_collection_interval_seconds 1\n", x.now.Unix())
		for i, o := range owners {
			fmt.Fprintf(&b, "DCGM_FI_DEV_GPU_UTIL{UUID=\"G%d\"} %d\n", i, util+i)
			if o != "" {
				fmt.Fprintf(&b, "gpupilot_gpu_allocation_info{uuid=\"G%d\",namespace=\"ns\",pod=%q,container=\"c\",replica=\"\"} 1\n", i, o)
			}
		}
		return b.String()
	}
	f := func(want string, util int, owners ...string) {
		t.Helper()
		x.read(page(util, owners...))
		if got := x.holders(); got != want {
			t.Errorf("%v: %s, want %s", owners, got, want)
		}
	}
	has := func(pod string, want ...float64) {
		t.Helper()
		var got []float64
		for _, s := range podSamples(x.store, pod, t0, x.now) {
			got = append(got, s.Value)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", pod, got, want)
		}
	}
	f("G0:ns/p/c G1:ns/p/c", 10, "p", "p")
	has("p", 10.5)
	f("G1:ns/p/c", 20, "", "p")
	f("G0:ns/q/c G1:ns/p/c", 30, "q", "p")
	has("p", 11, 21, 31)
	f("G0:ns/q/c", 40, "q") // the second GPU is lost
	has("p")
	has("q", 30, 40)
	f("", 50)
	f("G0:ns/q/c G1:ns/r/c", 60, "q", "r")
	has("q", 60)
}

// A device that its agent cannot read keeps its last values on the page for a
// while. They are not values of the ticks at which it could not be read.
func TestDeviceThatWasNotRead(t *testing.T) {
	x := newReader(t, Target{Kind: Agent})
	page := func(success0, success1 float64) {
		now := float64(x.now.Unix())
		x.read(fmt.Sprintf(`gpupilot_collection_timestamp_seconds %.3f
gpupilot_collection_interval_seconds 1
gpupilot_device_last_success_timestamp_seconds{uuid="G0"} %.3f
gpupilot_device_last_success_timestamp_seconds{uuid="G1"} %.3f
DCGM_FI_DEV_GPU_UTIL{UUID="G0"} 30
DCGM_FI_DEV_GPU_UTIL{UUID="G1"} 40
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="c",replica=""} 1
gpupilot_gpu_allocation_info{uuid="G1",namespace="ns",pod="q",container="c",replica=""} 1
`, now+0.6, now+success0, now+success1))
	}
	page(0.7, 0.7)
	x.want("p", gpu.GPUUtil, 30)
	x.want("q", gpu.GPUUtil, 40)
	page(0.7, -0.3)
	x.want("p", gpu.GPUUtil, 30)
	x.want("q", gpu.GPUUtil, none)
	page(0.7, -1.3)
	x.want("q", gpu.GPUUtil, none)
	page(0.7, 0.7)
	x.want("q", gpu.GPUUtil, 40)
}

func TestPodMetricsAreSummed(t *testing.T) {
	x := newReader(t, Target{
		Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"},
		Metrics: []page.Metric{
			{Key: "vllm:num_requests_waiting", Name: "vllm:num_requests_waiting"},
			{Key: "lat", Name: "lat"},
			{Key: "lat_count", Name: "lat_count"},
			{Key: "bad", Name: "bad"},
		},
	})
	x.read(`# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:num_requests_running{engine="0",model_name="m"} 100
# TYPE lat summary
lat{quantile="0.5"} 7
lat_bucket{le="+Inf"} 9
lat_count 2
bad{a="1"} 1
bad{a="2"} NaN
`)
	f := func(metric string, want float64) {
		t.Helper()
		got, ok := x.store.PodMetric("ns", "p", metric, x.now, time.Second)
		if ok == math.IsNaN(want) || ok && got.Value != want {
			t.Errorf("%s = %v, %v; want %v", metric, got.Value, ok, want)
		}
	}
	f("vllm:num_requests_waiting", 7)
	f("lat_count", 2)
	f("lat", none)
	f("bad", none) // a part of a sum is none
	f("vllm:num_requests_running", none)
}

// Shares of engines are not added up, nor are the copies that ranks tell of one
// engine, and one series may be part of several numbers.
func TestPodMetricsAreCombined(t *testing.T) {
	pod := Target{
		Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"},
		Metrics: []page.Metric{
			{Key: "sum kv", Name: "kv"},
			{Key: "max kv", Name: "kv", Largest: true},
			{Key: "running", Name: "running", By: "dp_rank"},
			{Key: "waiting", Name: "requests", Label: "type", Value: "waiting"},
			{Key: "all", Name: "requests"},
		},
	}
	x := newReader(t, pod)
	page := `kv{engine="0"} 0.25
kv{engine="1"} 0.75
running{dp_rank="0",tp_rank="0"} 3
running{dp_rank="0",tp_rank="1"} 3
running{dp_rank="1",tp_rank="0"} 4
running{dp_rank="1",tp_rank="1"} 5
requests{type="waiting",model="a"} 1
requests{type="waiting",model="b"} 2
requests{type="active",model="a"} 10
`
	f := func(key string, want float64) {
		t.Helper()
		if got, ok := x.store.PodMetric("ns", "p", key, x.now, time.Second); ok == math.IsNaN(want) || ok && got.Value != want {
			t.Errorf("%s = %v, %v; want %v", key, got.Value, ok, want)
		}
	}
	for range 2 { // the second page is read by what is remembered of the first
		x.read(page)
		f("sum kv", 1)
		f("max kv", 0.75)
		f("running", 8)
		f("waiting", 3)
		f("all", 13)
	}
	x = newReader(t, pod)
	x.read("kv NaN\nrunning{dp_rank=\"0\"} 7\nrunning{dp_rank=\"0\"} NaN\n")
	f("max kv", none)
	f("running", none)
}

func TestBadPages(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	const good = `DCGM_FI_DEV_GPU_UTIL{UUID="G0",namespace="ns",pod="p",container="c"} 5` + "\n"
	x.read(good + `DCGM_FI_DEV_FB_USED{UUID="G0",modelName="NVIDIA "Q""} 5` + "\n")
	x.want("p", gpu.GPUUtil, 5)
	want := "line 2: labels are malformed"
	if got := x.r.state.BadLine; got != want || x.r.state.BadLines != 1 {
		t.Errorf("bad line %s\n    want %s", got, want)
	}
	f := func(page, want string) {
		t.Helper()
		before := x.store.Stats().Samples
		x.r.keep([]byte(page), x.now, x.now)
		if err := x.r.state.Err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v\nwant %s", err, want)
		}
		if n := x.store.Stats().Samples - before; n != 0 {
			t.Errorf("%d samples of a bad page were stored", n)
		}
		x.r.state.Err = nil
	}
	f("<html>\n<body>login</body>\n"+good, `not a metrics page, 2 of 3 lines are bad: line 1: no metric name`)
	f(`{"error":"x"}`, "line 1: labels are malformed")
	f(strings.Repeat("x", 1000), "line 1: value is not a number")
	if got := x.r.page.BadText; got != strings.Repeat("x", 77)+"…" {
		t.Errorf("for the log there is %q", got)
	}
	f("\x00\xff\xfe", "line 1: no metric name")
}

func TestKeysOfTwoTargetsAreTheSame(t *testing.T) {
	page := `DCGM_FI_DEV_GPU_UTIL{UUID="P",GPU_I_ID="3",container="c",namespace="ns",pod="p"} 5`
	x := newReader(t, Target{Kind: DCGM})
	x.read(page)
	var keys []string
	for _, d := range x.store.Devices("", nil, x.now, time.Hour) {
		keys = append(keys, d.Device)
	}
	if diff := cmp.Diff([]string{"P/gi3"}, keys); diff != "" {
		t.Error(diff)
	}
}

// The comments of an agent's page are not read: what its metrics mean is known.
func TestCommentsOfAgentsAreNotLearned(t *testing.T) {
	text := "# HELP custom_metric Of an exporter.\n# TYPE custom_metric gauge\ncustom_metric 1\n" +
		`DCGM_FI_DEV_GPU_UTIL{UUID="G0"} 5` + "\n"
	for kind, want := range map[Kind]int{Agent: 0, DCGM: 1} {
		x := newReader(t, Target{Kind: kind})
		x.read(text)
		if got := x.r.s.Metadata(nil, "custom_metric"); len(got) != want {
			t.Errorf("from %v: %v, want %d descriptions", kind, got, want)
		}
	}
}
