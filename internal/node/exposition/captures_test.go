// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// TestCaptures renders what dcgm-exporter 4.8.2 and before printed on real
// nodes, line by line, from the values and labels in the line. It needs a
// folder of its *.prom outputs in $GPUPILOT_CAPTURES.
func TestCaptures(t *testing.T) {
	dir := os.Getenv("GPUPILOT_CAPTURES")
	if dir == "" {
		t.Skip("no GPUPILOT_CAPTURES: a folder with outputs of dcgm-exporter")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.prom"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	lines := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			name, rest, ok := strings.Cut(strings.TrimSpace(line), "{gpu=")
			if !ok || strings.HasPrefix(name, "#") {
				continue
			}
			// A pod_uid is not ours to show yet.
			rest = strings.Replace(rest, `,pod_uid=""`, "", 1)
			labels, value, _ := strings.Cut(rest, "} ")
			lines++
			if want, got := name+"{gpu="+rest, again(t, name, "gpu="+labels, value); got != want {
				t.Errorf("%s:\nwant %s\ngot  %s", filepath.Base(f), want, got)
			}
		}
	}
	t.Logf("%d lines of %d files", lines, len(files))
}

// again renders the one sample anew.
func again(t *testing.T, name, labels, value string) string {
	t.Helper()
	ref, ok := names.Metric(name)
	if !ok {
		return "unknown name " + name
	}
	get := map[string]string{}
	for pair := range strings.SplitSeq(strings.TrimSuffix(labels, `"`), `",`) {
		k, v, _ := strings.Cut(pair, `="`)
		get[k] = v
	}
	now := soon()
	index, _ := strconv.Atoi(get["gpu"])
	minor, _ := strconv.Atoi(strings.TrimPrefix(get["device"], "nvidia"))
	d := gpu.DeviceSnapshot{Collected: now, Device: gpu.Device{
		Index: index, Minor: minor, UUID: get["UUID"], PCIBusID: get["pci_bus_id"], Model: get["modelName"],
	}}
	x, _ := strconv.ParseFloat(value, 64)
	d.Values.Set(ref.Field, x)
	d.Values.SetLabel(gpu.DriverVersion, get["DCGM_FI_DRIVER_VERSION"])
	if get["pod"] != "" {
		d.Owners = []gpu.Owner{{Namespace: get["namespace"], Pod: get["pod"], Container: get["container"]}}
	}
	cfg := Config{Profile: names.Profile482, Hostname: get["Hostname"], Kubernetes: true}
	if cfg.Hostname == "" {
		cfg.Profile, cfg.Hostname = names.Profile48, get["hostname"]
	}
	cfg.Collectors.Metrics = []Collector{{Name: name, Ref: ref, Type: Gauge}}
	cfg.Collectors.Labels = []LabelCollector{{Name: "DCGM_FI_DRIVER_VERSION", Ref: gpu.Ref{Field: gpu.DriverVersion, Scale: 1}}}
	e := New(cfg)
	e.Update(snapshot(now, d), Stats{}, now)
	rec := httptest.NewRecorder()
	e.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return series(rec.Body.String(), name+"{")
}
