// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"os"
	"strings"
	"testing"
)

// The same HPA becomes the same signals, whatever its version.
func TestHPAVersions(t *testing.T) {
	const file = "testdata/hpa-old.yaml"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := Split(file, b)
	if err != nil || len(docs) != 3 {
		t.Fatalf("%d objects, %v", len(docs), err)
	}
	for i, version := range []string{"v2beta1", "v2beta2", "v1"} {
		r, err := Convert(docs[i], Options{})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		wantSignals(t, r,
			`query max(trainer_gpu_avg{deployment="trainer",namespace="ml"}) Value 5`,
			`query sum(jobs{namespace="ml",queue="gpu"}) AverageValue 2`,
			"gpu DCGM_FI_DEV_GPU_UTIL AverageValue 60",
			`query sum(queue_depth{namespace="ml",topic="jobs"}) Value 30`,
			`query sum(queue_age{namespace="ml"}) AverageValue 500m`,
			`query sum(container_memory_working_set_bytes{container!="",namespace="ml",pod=~"trainer-.*"}) AverageValue 8Gi`,
		)
		percent := "true spec.metrics[5].resource.target: a percentage of the pods' requests of cpu"
		if version == "v1" {
			percent = "true spec.targetCPUUtilizationPercentage: 50 %"
			if s := r.Object.Spec.Behavior.ScaleDown; *s.StabilizationWindowSeconds != 120 || s.Policies[0].Value != 2 {
				t.Errorf("%+v", s)
			}
		}
		wantNotes(t, r, percent)
	}
}

// An object without a signal is an error with the reason of each metric.
func TestNoSignal(t *testing.T) {
	f := func(kind, spec string, want ...string) {
		t.Helper()
		r := parse(t, kind, `{`+target+spec+`}`)
		for _, w := range append(want, kind+" a has no equivalent:\n  ") {
			if err := r.Err(); err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q", spec, err, w)
			}
		}
	}
	f(KindHPA, `targetCPUUtilizationPercentage: 80`, "spec.targetCPUUtilizationPercentage: 80 %", "spec.signals: no metric has an equivalent")
	f(KindHPA, `metrics: [{type: Resource, resource: {name: cpu, targetAverageUtilization: 50}}]`, "spec.metrics[0].resource.target: a percentage")
	f(KindHPA, `metrics: [{type: Pods, pods: {targetAverageValue: 50}}]`, "spec.metrics[0]: a metric of type \"Pods\" has no name")
	f(KindHPA, `metrics: [{type: Pods, pods: {metricName: a}}]`, "spec.metrics[0].pods.target: an empty target of a has no averageValue")
	f(KindHPA, `metrics: [{type: Object, object: {metricName: a, target: {kind: Service, name: a}}}]`, "spec.metrics[0].object.target: an empty target of a has no value")
	f(KindHPA, `metrics: [{type: Pods}]`, `spec.metrics[0].type: "Pods" without its field`)
	f(KindHPA, `metrics: [{type: Pods, pods: {metricName: a, targetAverageValue: -1}}]`, "spec.metrics[0].pods: a with the target AverageValue -1: the signal is refused: spec.signals[0].target")
	f(KindScaledObject, `triggers: [{type: cron}]`, "spec.triggers[0]: a schedule with start")

	_, err := Convert(Document{KindHPA, []byte(`{metadata: {name: a, annotations: {autoscaling.alpha.kubernetes.io/metrics: "[{"}}, spec: {` + target + `}}`)}, Options{})
	if err == nil || !strings.Contains(err.Error(), "HorizontalPodAutoscaler a: metadata.annotations[autoscaling.alpha.kubernetes.io/metrics]: unexpected end") {
		t.Error(err)
	}
}
