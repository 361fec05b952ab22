// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// wholeGPU is device i with a value for each of the given fields.
func wholeGPU(i int, at time.Time, values map[gpu.FieldID]float64) gpu.DeviceSnapshot {
	d := gpu.DeviceSnapshot{Collected: at, Device: gpu.Device{
		Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%08d-aaaa", i),
		PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x1b+i), Model: "NVIDIA H200",
	}}
	for id, v := range values {
		d.Values.Set(id, v)
	}
	d.Values.SetLabel(gpu.DriverVersion, "580.105.08")
	return d
}

// soon is the time of a collection whose page is not too old a minute from now, however busy the machine is.
func soon() time.Time { return time.Now().Add(time.Minute) }

func snapshot(at time.Time, devices ...gpu.DeviceSnapshot) *gpu.Snapshot {
	return &gpu.Snapshot{Time: at, Interval: time.Second, Backend: "sim", Devices: devices}
}

func get(t *testing.T, e *Exporter, target string, header ...string) (*http.Response, string) {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, req)
	res := rec.Result()
	var body io.Reader = res.Body
	if res.Header.Get("Content-Encoding") == "gzip" {
		zr, err := gzip.NewReader(body)
		if err != nil {
			t.Fatal(err)
		}
		body = zr
	}
	b, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// series returns the sample lines that start with one of the prefixes.
func series(body string, prefixes ...string) string {
	var out []string
	for l := range strings.SplitSeq(body, "\n") {
		for _, p := range prefixes {
			if strings.HasPrefix(l, p) {
				out = append(out, l)
			}
		}
	}
	return strings.Join(out, "\n")
}

// The files of the job mapping that name no device are counted where there is a mapping.
func TestUnmatchedJobFiles(t *testing.T) {
	now := soon()
	f := func(n *int, want string) {
		t.Helper()
		e := New(Config{Collectors: DefaultCollectors(names.Profile48)})
		s := snapshot(now, wholeGPU(0, now, nil))
		s.UnmatchedJobFiles = n
		e.Update(s, Stats{}, now)
		_, body := get(t, e, "/metrics")
		if got := series(body, "gpupilot_unmatched_job_files"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	two := 2
	f(nil, "")
	f(new(int), "gpupilot_unmatched_job_files 0")
	f(&two, "gpupilot_unmatched_job_files 2")
}

func TestLabelsAndValues(t *testing.T) {
	now := soon()
	a := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 37, gpu.PowerUsage: 378.461, gpu.XIDErrors: 79})
	a.Owners = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "main"}}
	b := wholeGPU(1, now, map[gpu.FieldID]float64{gpu.GPUUtil: 0})
	b.Owners = []gpu.Owner{{Namespace: "n", Pod: "p", Container: "c", Replica: "0"}, {Namespace: "n", Pod: "q", Container: "c", Replica: "1"}}
	mig := wholeGPU(2, now, map[gpu.FieldID]float64{gpu.GREngineActive: 0.5})
	mig.UUID = "MIG-1"
	mig.MIG = &gpu.MIG{ParentUUID: "GPU-parent", GPUInstance: 9, ComputeInstance: -1, Profile: "1g.18gb"}
	twin := mig
	twin.UUID = "MIG-2" // a second compute instance of the same GPU instance
	twin.Owners = []gpu.Owner{{Namespace: "n", Pod: "m", Container: "c"}}

	f := func(cfg Config, want string, prefixes ...string) {
		t.Helper()
		if cfg.Collectors.Metrics == nil {
			cfg.Collectors = DefaultCollectors(cfg.Profile)
		}
		e := New(cfg)
		e.Update(snapshot(now, a, b, mig, twin), Stats{}, now)
		_, body := get(t, e, "/metrics")
		if diff := cmp.Diff(want, series(body, prefixes...)); diff != "" {
			t.Errorf("profile %s (-want +got):\n%s", cfg.Profile, diff)
		}
	}
	f(Config{Profile: names.Profile48, Hostname: "n1"}, `DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08"} 378.461000
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08"} 37
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-00000001-aaaa",pci_bus_id="00000000:1C:00.0",device="nvidia1",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08"} 0`,
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
	f(Config{Profile: names.Profile48, Hostname: "n1", Kubernetes: true},
		`DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08",container="main",namespace="team",pod="llm-0"} 37
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-00000001-aaaa",pci_bus_id="00000000:1C:00.0",device="nvidia1",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08",container="main",err_code="79",err_msg="GPU has fallen off the bus",namespace="team",pod="llm-0"} 79
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="2",UUID="GPU-parent",pci_bus_id="00000000:1D:00.0",device="nvidia2",modelName="NVIDIA H200",GPU_I_PROFILE="1g.18gb",GPU_I_ID="9",hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08",container="c",namespace="n",pod="m"} 0.500000`,
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_PROF")
	f(Config{Profile: names.Profile482, Hostname: "n1"}, `DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",Hostname="n1",DCGM_FI_DRIVER_VERSION="580.105.08",err_code="79",err_msg="GPU has fallen off the bus"} 79`,
		"DCGM_FI_DEV_XID_ERRORS")
	f(Config{Profile: names.Profile49}, `DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",DCGM_FI_SYSTEM_DRIVER_VERSION="580.105.08"} 0.370000
DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="1",UUID="GPU-00000001-aaaa",pci_bus_id="00000000:1C:00.0",device="nvidia1",modelName="NVIDIA H200",DCGM_FI_SYSTEM_DRIVER_VERSION="580.105.08"} 0.000000`,
		"DCGM_FI_DEV_GPU_UTIL_RATIO")
	f(Config{Profile: names.Profile1x, Hostname: "n1"}, `dcgm_xid_errors{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",Hostname="n1",err_code="79",err_msg="GPU has fallen off the bus"} 79`,
		"dcgm_xid_errors")
	f(Config{Profile: names.Profile48}, `gpupilot_gpu_allocation_info{uuid="GPU-00000000-aaaa",namespace="team",pod="llm-0",container="main",replica=""} 1
gpupilot_gpu_allocation_info{uuid="GPU-00000001-aaaa",namespace="n",pod="p",container="c",replica="0"} 1
gpupilot_gpu_allocation_info{uuid="GPU-00000001-aaaa",namespace="n",pod="q",container="c",replica="1"} 1
gpupilot_gpu_allocation_info{uuid="MIG-2",namespace="n",pod="m",container="c",replica=""} 1
gpupilot_mig_device_info{uuid="MIG-1",parent_uuid="GPU-parent",gpu_instance="9",compute_instance="",profile="1g.18gb"} 1
gpupilot_mig_device_info{uuid="MIG-2",parent_uuid="GPU-parent",gpu_instance="9",compute_instance="",profile="1g.18gb"} 1`,
		"gpupilot_gpu_allocation_info", "gpupilot_mig")
}

func TestRelabel(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 37})
	d.Owners = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "main"}}
	d.MIG = &gpu.MIG{ParentUUID: "GPU-parent", GPUInstance: 9, ComputeInstance: -1, Profile: "1g.18gb"}
	s := snapshot(now, d)
	s.Pods = map[gpu.PodName]gpu.Pod{{Namespace: "team", Name: "llm-0"}: {Labels: []gpu.PodLabel{
		{Name: "app", Value: "a"}, {Name: "cluster", Value: "mine"}, {Name: "noise", Value: "n"}, {Name: "workload", Value: "w"},
	}}}
	r := Relabel{
		Static: []gpu.PodLabel{{Name: "zone", Value: "z"}, {Name: "cluster", Value: "c1"}},
		Drop:   []string{"pci_bus_id", "device", "modelName", "noise", "DCGM_FI_DRIVER_VERSION"},
		Rename: map[string]string{"UUID": "uuid_of_gpu", "pod": "workload", "hostname": "node", "GPU_I_ID": "instance_id"},
	}
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	e := New(Config{Profile: names.Profile48, Collectors: DefaultCollectors(names.Profile48), Hostname: "n1", Kubernetes: true, Relabel: r})
	e.Update(s, Stats{}, now)
	_, body := get(t, e, "/metrics")
	want := `DCGM_FI_DEV_GPU_UTIL{gpu="0",uuid_of_gpu="GPU-parent",GPU_I_PROFILE="1g.18gb",instance_id="9",node="n1",cluster="c1",zone="z",app="a",container="main",namespace="team",workload="llm-0"} 37`
	if diff := cmp.Diff(want, series(body, "DCGM_FI_DEV_GPU_UTIL{")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A label's name that is taken for valid parses, and the others do not matter.
func FuzzStaticLabelName(f *testing.F) {
	f.Add("cluster")
	f.Add("__x")
	f.Add("9")
	f.Add("ü")
	f.Fuzz(func(t *testing.T, name string) {
		r := Relabel{Static: []gpu.PodLabel{{Name: name, Value: "v"}}}
		if r.Check() != nil {
			return
		}
		now := soon()
		e := New(Config{Collectors: DefaultCollectors(names.Profile48), Relabel: r})
		e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 5})), Stats{}, now)
		_, body := get(t, e, "/metrics")
		found := false
		for _, l := range parse(t, body)["DCGM_FI_DEV_GPU_UTIL"].GetMetric()[0].GetLabel() {
			found = found || l.GetName() == name
		}
		if !found {
			t.Errorf("no label %q", name)
		}
	})
}

func TestUnitsOf49(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{
		gpu.SMClock: 1980, gpu.TotalEnergy: 1_234_567_890, gpu.FBUsed: 143_000, gpu.NVLinkBandwidth: 12, gpu.EncUtil: 3,
	})
	e := New(Config{Profile: names.Profile49, Collectors: DefaultCollectors(names.Profile49)})
	e.Update(snapshot(now, d), Stats{}, now)
	_, body := get(t, e, "/metrics")
	f := func(name, want string) {
		t.Helper()
		got := series(body, name+"{")
		if got[strings.LastIndexByte(got, ' ')+1:] != want {
			t.Errorf("%s: %q, want the value %s", name, got, want)
		}
	}
	f("DCGM_FI_DEV_SM_CLOCK_HERTZ", "1980000000")
	f("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "1234568")
	f("DCGM_FI_DEV_FB_USED_BYTES", "149946368000")
	f("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", "12000000")
	f("DCGM_FI_DEV_ENC_UTIL_RATIO", "0.030000")
}

// device is nvidia and the index, whatever the device file is called. A number of
// that file that is not known is nowhere.
func TestDeviceLabelIsTheIndex(t *testing.T) {
	now := soon()
	for _, minor := range []int{3, -1} {
		d := wholeGPU(1, now, map[gpu.FieldID]float64{gpu.GPUUtil: 5})
		d.Minor = minor
		s := snapshot(now, d)
		s.Parts = []gpu.PartSnapshot{{Part: gpu.Part{Kind: gpu.NVLink, GPU: &s.Devices[0].Device}, Collected: now}}
		s.Parts[0].Values.Set(gpu.SwitchLinkStatus, 2)
		c, bad := ParseCollectors("DCGM_FI_DEV_GPU_UTIL,gauge,u\nDCGM_FI_DEV_NVSWITCH_LINK_STATUS,gauge,l\nDCGM_EXP_XID_ERRORS_COUNT,gauge,x\n")
		if bad != nil {
			t.Fatal(bad)
		}
		e := New(Config{Collectors: c})
		e.Update(s, Stats{}, now)
		_, body := get(t, e, "/metrics")
		if n := strings.Count(body, `,device="nvidia1",`); n != 3 || strings.Contains(body, "nvidia-1") {
			t.Errorf("minor %d: %d times nvidia1 in\n%s", minor, n, body)
		}
		want := map[int]string{3: `gpu="1",device="nvidia3",`, -1: `gpu="1",device="",`}[minor]
		if !strings.Contains(series(body, "gpupilot_gpu_info{"), want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

// Counters of 63 bits are shown to the last digit, in every unit.
func TestLargeCountersAreExact(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, nil)
	d.Values.SetInt(gpu.TotalEnergy, 9_007_199_254_740_993) // 2^53 + 1
	d.Values.SetInt(gpu.PCIeReplayCounter, math.MaxInt64-16)
	d.Values.SetInt(gpu.PowerViolation, 9_007_199_254_740_995_499)
	f := func(p names.Profile, field gpu.FieldID, want string) {
		t.Helper()
		meta, _ := gpu.Lookup(field)
		name, scale := p.Name(meta)
		e := New(Config{Profile: p, Collectors: Collectors{Metrics: []Collector{{Name: name, Ref: gpu.Ref{Field: field, Scale: scale}, Type: Counter}}}, Further: true})
		e.Update(snapshot(now, d), Stats{}, now)
		_, body := get(t, e, "/metrics")
		if got := series(body, name+"{"); got[strings.LastIndexByte(got, ' ')+1:] != want {
			t.Errorf("%q, want the value %s", got, want)
		}
		for _, want := range []string{
			`gpupilot_gpu_energy_joules_total{uuid="GPU-00000000-aaaa"} 9007199254740.993000`,
			`gpupilot_gpu_throttle_seconds_total{uuid="GPU-00000000-aaaa",reason="power"} 9007199254.740995`,
		} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("no %s in\n%s", want, body)
			}
		}
	}
	f(names.Profile48, gpu.TotalEnergy, "9007199254740993")
	f(names.Profile48, gpu.PCIeReplayCounter, "9223372036854775791")
	f(names.Profile49, gpu.TotalEnergy, "9007199254741")
	f(names.Profile48, gpu.PowerViolation, "9007199254740995499")
	f(names.Profile49, gpu.PowerViolation, "9007199254.740995")
}

func FuzzQuotient(f *testing.F) {
	f.Add(uint64(9_007_199_254_740_993))
	f.Add(uint64(999_999_999_999_999_999))
	f.Fuzz(func(t *testing.T, n uint64) {
		n &= math.MaxInt64
		for _, per := range []int64{1000, 1_000_000_000} {
			got := string(appendQuotient(nil, n, uint64(per), gpu.Float))
			want := new(big.Rat).SetFrac(new(big.Int).SetUint64(n), big.NewInt(per))
			back, ok := new(big.Rat).SetString(got)
			if !ok || strings.IndexByte(got, '.') != len(got)-7 {
				t.Fatalf("%d/%d = %s", n, per, got)
			}
			if diff := back.Sub(back, want); diff.Abs(diff).Cmp(big.NewRat(1, 2_000_000)) > 0 {
				t.Errorf("%d/%d = %s", n, per, got)
			}
		}
	})
}

func TestAbsentAndOldValuesHaveNoSeries(t *testing.T) {
	now := soon()
	fresh := wholeGPU(0, now.Add(-5*time.Second), map[gpu.FieldID]float64{gpu.GPUUtil: 5})
	old := wholeGPU(1, now.Add(-5001*time.Millisecond), map[gpu.FieldID]float64{gpu.GPUUtil: 6})
	old.Err = gpu.ErrLost
	never := wholeGPU(2, time.Time{}, nil)
	e := New(Config{Collectors: DefaultCollectors(names.Profile48)})
	e.Update(snapshot(now, fresh, old, never), Stats{}, now)
	_, body := get(t, e, "/metrics")
	want := `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-00000000-aaaa",pci_bus_id="00000000:1B:00.0",device="nvidia0",modelName="NVIDIA H200",DCGM_FI_DRIVER_VERSION="580.105.08"} 5`
	if diff := cmp.Diff(want, series(body, "DCGM_FI_DEV_GPU_UTIL")); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(body, "# HELP DCGM_FI_DEV_FB_USED") {
		t.Error("a metric without samples is named")
	}
	want = `gpupilot_device_up{uuid="GPU-00000000-aaaa"} 1
gpupilot_device_up{uuid="GPU-00000001-aaaa"} 0
gpupilot_device_up{uuid="GPU-00000002-aaaa"} 0`
	if diff := cmp.Diff(want, series(body, "gpupilot_device_up")); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(body, "\ngpupilot_device_last_success_timestamp_seconds{"); n != 2 {
		t.Errorf("%d devices were read once, want 2", n)
	}
}

// answering is an exporter with one GPU.
func answering(t *testing.T) (e *Exporter, update func(now time.Time)) {
	t.Helper()
	e = New(Config{Profile: names.Profile48, Collectors: DefaultCollectors(names.Profile48), Kubernetes: true, InvalidLines: 2, Version: "1", Further: true})
	return e, func(now time.Time) {
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 5, gpu.FBUsed: 7, gpu.TotalEnergy: 9, gpu.PCIeReplayCounter: 1})
		d.XIDs = []gpu.XIDCount{{Code: 79, Count: 2, Last: time.UnixMilli(1_700_000_000_123)}}
		e.Update(snapshot(now, d), Stats{Duration: 12 * time.Millisecond, Errors: 3}, now)
	}
}

// prometheusAccepts is what Prometheus sends.
const onlyOpenMetrics = "application/openmetrics-text;version=1.0.0"

const prometheusAccepts = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"

func TestTextFormat(t *testing.T) {
	e, update := answering(t)
	update(soon())
	res, plain := get(t, e, "/metrics")
	if ct := res.Header.Get("Content-Type"); ct != "text/plain; version=0.0.4; charset=utf-8" {
		t.Error(ct)
	}
	if strings.Contains(plain, "# EOF") || !strings.Contains(plain, "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n") {
		t.Errorf("not the text format:\n%s", plain)
	}
	for _, want := range []string{
		"gpupilot_collectors_invalid_lines 2\n", "gpupilot_collection_errors_total 3\n", "gpupilot_collection_duration_seconds 0.012000\n",
		"gpupilot_xid_last_seen_timestamp_seconds{uuid=\"GPU-00000000-aaaa\",xid=\"79\"} 1700000000.123\n",
		"gpupilot_xid_errors_total{uuid=\"GPU-00000000-aaaa\",xid=\"79\"} 2\n", "gpupilot_backend_up{backend=\"sim\"} 1\n",
		"gpupilot_pod_resources_up 0\n", "gpupilot_collection_interval_seconds 1.000000\n",
	} {
		if !strings.Contains(plain, want) {
			t.Errorf("no %q in\n%s", want, plain)
		}
	}
}

func TestOpenMetrics(t *testing.T) {
	e, update := answering(t)
	update(soon())
	_, plain := get(t, e, "/metrics")
	res, om := get(t, e, "/metrics", "Accept", onlyOpenMetrics)
	if ct := res.Header.Get("Content-Type"); ct != "application/openmetrics-text; version=1.0.0; charset=utf-8" {
		t.Error(ct)
	}
	for _, want := range []string{
		"# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{",
		"# TYPE gpupilot_xid_errors counter\ngpupilot_xid_errors_total{", "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n",
	} {
		if !strings.Contains(om, want) {
			t.Errorf("no %q in\n%s", want, om)
		}
	}
	if !strings.HasSuffix(om, "\n# EOF\n") {
		t.Error("no EOF")
	}
	if diff := cmp.Diff(samples(plain), samples(om)); diff != "" {
		t.Errorf("the formats have different samples:\n%s", diff)
	}
}

func TestGzip(t *testing.T) {
	e, update := answering(t)
	update(soon())
	_, plain := get(t, e, "/metrics")
	_, om := get(t, e, "/metrics", "Accept", onlyOpenMetrics)
	for range 2 {
		res, zipped := get(t, e, "/metrics", "Accept-Encoding", "deflate, gzip;q=0.5")
		if zipped != plain || res.Header.Get("Content-Encoding") != "gzip" {
			t.Error("gzip changes the page, or was not used")
		}
	}
	_, zippedOM := get(t, e, "/metrics", "Accept-Encoding", "gzip", "Accept", onlyOpenMetrics)
	if zippedOM != om {
		t.Error("gzip changes the OpenMetrics page")
	}
}

func TestSomeMetrics(t *testing.T) {
	e, update := answering(t)
	update(soon())
	_, some := get(t, e, "/metrics?name[]=DCGM_FI_DEV_GPU_UTIL&name%5B%5D=DCGM_FI_DEV_FB_USED&name[]=nope", "Accept-Encoding", "gzip")
	var names []string
	for _, l := range samples(some) {
		names = append(names, l[:strings.IndexAny(l, "{ ")])
	}
	want := []string{
		"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "gpupilot_collection_timestamp_seconds",
		"gpupilot_collection_interval_seconds", "gpupilot_device_last_success_timestamp_seconds",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("limited to two (-want +got):\n%s", diff)
	}
}

func TestNoPageIsServedTooEarlyOrTooLate(t *testing.T) {
	e, update := answering(t)
	if res, _ := get(t, e, "/metrics"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("before the first collection: %s", res.Status)
	}
	update(time.Now().Add(-time.Minute))
	if res, _ := get(t, e, "/metrics"); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a minute after the last collection: %s", res.Status)
	}
	update(soon())
	if res, _ := get(t, e, "/metrics"); res.StatusCode != http.StatusOK {
		t.Errorf("after a collection: %s", res.Status)
	}
}

func samples(body string) []string {
	var out []string
	for l := range strings.SplitSeq(body, "\n") {
		if l != "" && l[0] != '#' {
			out = append(out, l)
		}
	}
	return out
}

// A counter whose name lacks _total has no type in OpenMetrics. Who accepts the
// text format, too, gets that, and with it the type.
func TestCountersKeepTheirType(t *testing.T) {
	now := soon()
	f := func(name, accept, wantType string, want format) {
		t.Helper()
		ref, ok := names.Metric(name)
		if !ok {
			t.Fatal(name)
		}
		e := New(Config{Collectors: Collectors{Metrics: []Collector{{Name: name, Ref: ref, Type: Type(wantType)}}}})
		e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{ref.Field: 9})), Stats{}, now)
		res, body := get(t, e, "/metrics", "Accept", accept)
		if got := res.Header.Get("Content-Type"); got != contentTypes[want][0] {
			t.Errorf("%s, %s: %s", name, accept, got)
		}
		if want == text && !strings.Contains(body, "# TYPE "+name+" "+wantType+"\n"+name+"{") {
			t.Errorf("%s has no type %s in\n%s", name, wantType, body)
		}
	}
	f("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", prometheusAccepts, "counter", text)
	f("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "application/openmetrics-text, */*;q=0.1", "counter", text)
	f("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", onlyOpenMetrics, "counter", openMetrics)
	f("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", prometheusAccepts, "counter", text) // OpenMetrics wants it in lower case
	f("DCGM_FI_DEV_GPU_TEMP", prometheusAccepts, "histogram", text)
	f("DCGM_FI_DEV_GPU_TEMP", prometheusAccepts, "gauge", openMetrics)
	f("dcgm_ecc_dbe_volatile_total", prometheusAccepts, "counter", openMetrics)
}

// OpenMetrics has one family of a name: a counter whose name without _total is
// taken is untyped there.
func TestOpenMetricsNamesAreUnique(t *testing.T) {
	now := soon()
	e := New(Config{Collectors: Collectors{Metrics: []Collector{{Name: "DCGM_FI_DEV_GPU_UTIL", Ref: gpu.Ref{Field: gpu.GPUUtil, Scale: 1}, Type: Gauge}}}, Further: true})
	e.Update(snapshot(now, wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 9})), Stats{}, now)
	_, body := get(t, e, "/metrics", "Accept", onlyOpenMetrics)
	seen := map[string]bool{}
	for l := range strings.SplitSeq(body, "\n") {
		if name, ok := strings.CutPrefix(l, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	if !strings.Contains(body, "# TYPE go_memstats_alloc_bytes_total unknown\n") || len(seen) < 10 {
		t.Errorf("the page is\n%s", body)
	}
	if res, _ := get(t, e, "/metrics", "Accept", prometheusAccepts); res.Header.Get("Content-Type") != contentTypeText {
		t.Error("Prometheus gets a page with an untyped counter")
	}
}

func TestNegotiate(t *testing.T) {
	f := func(accept string, want format, wantText bool) {
		t.Helper()
		if got, alsoText := negotiate([]string{accept}); got != want || alsoText != wantText {
			t.Errorf("Accept %q gives format %d, text %v; want %d, %v", accept, got, alsoText, want, wantText)
		}
	}
	f("", text, true)
	f("*/*", text, true)
	f("text/plain", text, true)
	f("text/html,application/xhtml+xml,*/*;q=0.8", text, true)
	f("application/openmetrics-text", openMetrics, false)
	f("Application/OpenMetrics-Text; version=1.0.0", openMetrics, false)
	f("application/openmetrics-text; version=\"1.0.0\"", openMetrics, false)
	f("application/openmetrics-text;version=2.0.0", text, true) // a version that is none of ours
	f("application/openmetrics-text;version=0.0.1", text, true)
	f("text/plain;q=0.5,application/openmetrics-text;q=0.4", text, true)
	f("application/openmetrics-text;q=0", text, true)
	f("application/openmetrics-text, text/plain;q=0", openMetrics, false)
	f("application/openmetrics-text, text/plain;q=0, */*", openMetrics, false)
	f("application/openmetrics-text, text/*;q=0.1", openMetrics, true)
	f("application/openmetrics-text;q=0.5, */*;q=0.1", openMetrics, true)
	f(prometheusAccepts, openMetrics, true)

	g := func(enc string, want bool) {
		t.Helper()
		if got := acceptsGzip([]string{enc}); got != want {
			t.Errorf("Accept-Encoding %q: %v", enc, got)
		}
	}
	g("", false)
	g("identity", false)
	g("gzip", true)
	g("br, *", true)
	g("*;q=0", false)
	g("gzip;q=0, *", false)
}

func TestFixed(t *testing.T) {
	f := func(v float64) {
		t.Helper()
		if got, want := string(appendFixed(nil, v)), fmt.Sprintf("%f", v); got != want {
			t.Errorf("appendFixed(%v) = %s, want %s", v, got, want)
		}
	}
	for _, v := range []float64{0, 1, -1, 0.5, 1e-6, 5e-7, 4.9e-7, 1.5e-6, 2.5e-6, 378.461, 999.9999995, -0.25, 1e6, 1e12, 1e15, 1e300, 0.1234565, 123456.7890125} {
		f(v)
		f(-v)
		f(math.Nextafter(v, 1e308))
	}
}

func FuzzFixed(f *testing.F) {
	f.Add(0.5)
	f.Add(1234.0000005)
	f.Fuzz(func(t *testing.T, v float64) {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return
		}
		if got, want := string(appendFixed(nil, v)), fmt.Sprintf("%f", v); got != want {
			t.Errorf("appendFixed(%v) = %s, want %s", v, got, want)
		}
	})
}

// Whatever a label value holds, the page parses, and gives it back.
func FuzzLabelValues(f *testing.F) {
	f.Add("NVIDIA \"Q\" A\\100", "pod\n1", "n\xff")
	f.Add("", "}", " ")
	f.Fuzz(func(t *testing.T, modelName, pod, help string) {
		now := soon()
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 5})
		d.Model = modelName
		d.Owners = []gpu.Owner{{Namespace: pod, Pod: pod, Container: pod}}
		c := Collectors{Metrics: []Collector{{Name: "DCGM_FI_DEV_GPU_UTIL", Ref: gpu.Ref{Field: gpu.GPUUtil, Scale: 1}, Type: Gauge, Help: help}}}
		e := New(Config{Collectors: c, Kubernetes: true, Hostname: modelName})
		e.Update(snapshot(now, d), Stats{}, now)
		_, body := get(t, e, "/metrics")
		fams := parse(t, body)
		m := fams["DCGM_FI_DEV_GPU_UTIL"].GetMetric()
		if len(m) != 1 || m[0].GetGauge().GetValue() != 5 {
			t.Fatalf("parsed back: %v", m)
		}
		labels := map[string]string{}
		for _, l := range m[0].GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if !sameText(labels["modelName"], modelName) || !sameText(labels["pod"], pod) {
			t.Errorf("modelName %q, pod %q became %q, %q", modelName, pod, labels["modelName"], labels["pod"])
		}
	})
}

// sameText compares but for invalid bytes, each of which is one U+FFFD.
func sameText(got, want string) bool { return got == string([]rune(want)) }

func parse(t *testing.T, body string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.UTF8Validation)
	fams, err := p.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	return fams
}
