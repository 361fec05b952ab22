// SPDX-License-Identifier: Apache-2.0

package page

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// shown reads pages and returns the series that the last one exposes, with their newest
// values.
func shown(t *testing.T, newReader func(Config) *Reader, names *Names, of series.TargetLabels, pages ...string) ([]string, *series.Target) {
	t.Helper()
	store := series.New(series.Config{})
	target := store.Target("t", of)
	p := newReader(Config{Target: target, Labels: of, Names: names, Fields: names.FieldsOf(gpu.SetOf(gpu.FBUsed))})
	for i, text := range pages {
		if err := p.Read([]byte(text)); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(1_800_000_000+int64(i), 0)
		target.Expose(at, p.Exposed())
		var b series.Batch
		p.Fill(&b, time.Second)
		if _, err := target.Append(at, &b); err != nil {
			t.Fatal(err)
		}
		if p.IsOvergrown() {
			p.Forget()
		}
	}
	var out []string
	for _, e := range target.Exposures(nil) {
		if e.Until != series.Open {
			continue
		}
		l := series.Lookup{Exposure: &e, Scale: e.Scale}
		read := []series.Lookup{l}
		target.ReadLast(read, 0, 1<<62)
		out = append(out, e.Labels.(labels.Labels).String()+" "+valueText(read[0].Value, read[0].Stamp))
	}
	slices.Sort(out)
	return out, target
}

func valueText(v float64, stamp int64) string {
	if stamp == 0 {
		return "none"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func TestLabelsAreThoseOfAPrometheus(t *testing.T) {
	of := series.TargetLabels{Node: "n1", Instance: "10.0.0.1:9400", Job: "agent"}
	const page = `gpupilot_collection_timestamp_seconds 1800000000
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",node="its",exported_node="x",namespace="ml",pod="a",empty=""} 37
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1",job="theirs"} 38
gpupilot_device_up{uuid="GPU-0"} 1
DCGM_FI_DEV_FB_USED{UUID="GPU-0",a="1",a="2"} 5
kube_pod_labels{pod="a"} 1
up 0
`
	all, _ := shown(t, NewExporter, NewNames(true, nil, nil), of, page)
	want := []string{
		`{UUID="GPU-0", __name__="DCGM_FI_DEV_GPU_UTIL", exported_exported_node="its", exported_node="x", gpu="0", instance="10.0.0.1:9400", job="agent", namespace="ml", node="n1", pod="a"} 37`,
		`{UUID="GPU-1", __name__="DCGM_FI_DEV_GPU_UTIL", exported_job="theirs", gpu="1", instance="10.0.0.1:9400", job="agent", node="n1"} 38`,
		`{__name__="gpupilot_collection_timestamp_seconds", instance="10.0.0.1:9400", job="agent", node="n1"} 1800000000`,
		`{__name__="gpupilot_device_up", instance="10.0.0.1:9400", job="agent", node="n1", uuid="GPU-0"} 1`,
		`{__name__="scrape_duration_seconds", instance="10.0.0.1:9400", job="agent", node="n1"} 1`,
		`{__name__="scrape_samples_post_metric_relabeling", instance="10.0.0.1:9400", job="agent", node="n1"} 7`,
		`{__name__="scrape_samples_scraped", instance="10.0.0.1:9400", job="agent", node="n1"} 7`,
	}
	if d := cmp.Diff(want, all); d != "" {
		t.Error(d)
	}
	some, _ := shown(t, NewExporter, NewNames(false, []string{"dcgm_gpu_utilization"}, nil), of, page)
	if d := cmp.Diff(want[:2], some); d != "" {
		t.Error(d)
	}
}

func TestSeveralLinesOfOneDeviceAreSeveralSeries(t *testing.T) {
	const page = `DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",err_code="13"} 13
DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0",err_code="31"} 31
`
	got, _ := shown(t, NewExporter, NewNames(true, nil, nil), series.TargetLabels{Node: "n"}, page, page)
	want := []string{
		`{UUID="GPU-0", __name__="DCGM_FI_DEV_XID_ERRORS", err_code="13", node="n"} 13`,
		`{UUID="GPU-0", __name__="DCGM_FI_DEV_XID_ERRORS", err_code="31", node="n"} 31`,
	}
	if d := cmp.Diff(want, got[:2]); d != "" {
		t.Error(d)
	}
}

func TestAPodCannotForgeSeries(t *testing.T) {
	of := series.TargetLabels{Node: "n1", Instance: "10.0.0.9:8000", Job: "pod", Namespace: "ml", Pod: "a"}
	names := []string{"DCGM_FI_DEV_GPU_UTIL", "dcgm_x", "gpupilot_x", "kube_pod_labels", "up", "scrape_x", "vllm:latency_bucket"}
	const page = `DCGM_FI_DEV_GPU_UTIL{UUID="GPU-0"} 99
dcgm_x 1
gpupilot_x 1
kube_pod_labels{label_app="x"} 1
up 1
scrape_x 1
vllm:latency_bucket{le="0.5",namespace="prod",pod="b",node="n2",job="agent",instance="x"} 4
vllm:other 5
`
	got, _ := shown(t, NewPod, NewNames(true, names, nil), of, page)
	want := []string{`{__name__="vllm:latency_bucket", exported_instance="x", exported_job="agent", exported_namespace="prod", exported_node="n2", exported_pod="b", instance="10.0.0.9:8000", job="pod", le="0.5", namespace="ml", node="n1", pod="a"} 4`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// exported_pod and so on name owners that the API server confirms. A tenant who writes them
// as labels of a pod, which dcgm-exporter adds to the pod's GPUs, claims nobody else's.
func TestAnExporterCannotForgeExportedOwners(t *testing.T) {
	const page = `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",namespace="evil",pod="e",exported_namespace="ml",exported_pod="a",exported_container="c",exported_x="y"} 1
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1",namespace="evil",pod="e",exported_pod="a",exported_exported_pod="b"} 2
`
	got, _ := shown(t, NewExporter, NewNames(true, nil, nil), series.TargetLabels{Node: "n"}, page)
	want := []string{
		`{UUID="GPU-0", __name__="DCGM_FI_DEV_GPU_UTIL", exported_exported_container="c", exported_exported_namespace="ml", exported_exported_pod="a", exported_x="y", gpu="0", namespace="evil", node="n", pod="e"} 1`,
		`{UUID="GPU-1", __name__="DCGM_FI_DEV_GPU_UTIL", exported_exported_exported_pod="a", exported_exported_pod="b", gpu="1", namespace="evil", node="n", pod="e"} 2`,
	}
	if d := cmp.Diff(want, got[:2]); d != "" {
		t.Error(d)
	}
}

// A page speaks for no other namespace than its pod's, and for none of the target's labels.
func TestTargetLabelsAreNotThePages(t *testing.T) {
	of := series.TargetLabels{
		Node: "n", Instance: "10.0.0.1:80", Job: "ns/m", Namespace: "ns", Pod: "p",
	}
	got, _ := shown(t, NewPod, NewNames(false, []string{"requests"}, nil), of, `requests{namespace="other",pod="q",node="m",job="gpupilot-agent",container="x",a="b"} 7
requests{exported_namespace="z",namespace="other"} 8
kube_pod_labels{namespace="other"} 1
unused 1
`)
	want := []string{
		`{__name__="requests", a="b", container="x", exported_job="gpupilot-agent", exported_namespace="other", exported_node="m", exported_pod="q", instance="10.0.0.1:80", job="ns/m", namespace="ns", node="n", pod="p"} 7`,
		`{__name__="requests", exported_exported_namespace="other", exported_namespace="z", instance="10.0.0.1:80", job="ns/m", namespace="ns", node="n", pod="p"} 8`,
	}
	got = slices.DeleteFunc(got, func(s string) bool {
		return !strings.Contains(s, "requests") && !strings.Contains(s, "kube_") && !strings.Contains(s, "unused")
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
