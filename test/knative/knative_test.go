// SPDX-License-Identifier: Apache-2.0

// Package knative asks Knative's own autoscaler and metric collector, in
// simulated time, what internal/scale/peers asks its model of them (make peers). It is
// a test because only tests may simulate time, and a module of its own so that
// nothing of Knative comes into ours.
package knative

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	"knative.dev/serving/pkg/autoscaler/metrics"
	"knative.dev/serving/pkg/autoscaler/scaling"
)

var (
	questions = flag.String("questions", "", "file with a question a line (internal/scale/peers)")
	answers   = flag.String("answers", "", "file to write with an answer a line: the pods wanted at each tick, -1 for no decision")
)

// tick is the autoscaler's, in seconds.
const tick = 2

// question is a sequence of seconds. The durations are seconds, too.
type question struct {
	Target        float64
	Window, Delay int
	Ready         int
	Seconds       []struct {
		Ready       int
		Concurrency float64
		Told        bool
	}
}

func TestAnswer(t *testing.T) {
	if *questions == "" {
		t.Skip("no questions: make peers asks them")
	}
	in, err := os.Open(*questions)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(*answers)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	lines, w := json.NewDecoder(in), bufio.NewWriter(out)
	for lines.More() {
		var q question
		if err := lines.Decode(&q); err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			if err := json.NewEncoder(w).Encode(q.answer(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

// answer runs the collector and the autoscaler through the question, with the
// defaults of config-autoscaler. What the collector scrapes by itself is nothing:
// it is told.
func (q *question) answer(t *testing.T) []int32 {
	logger := zap.NewNop().Sugar()
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	window := time.Duration(q.Window) * time.Second
	collector := metrics.NewMetricCollector(func(*autoscalingv1alpha1.Metric, *zap.SugaredLogger) (metrics.StatsScraper, error) {
		return nil, nil
	}, logger)
	err := collector.CreateOrUpdate(&autoscalingv1alpha1.Metric{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec: autoscalingv1alpha1.MetricSpec{
			StableWindow: window, PanicWindow: max(time.Second, (window / 10).Round(time.Second)), ScrapeTarget: "web",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Delete(key.Namespace, key.Name)
	pods := &counter{ready: q.Ready}
	scaler := scaling.New(*attribute.EmptySet(), noop.NewMeterProvider(), key.Namespace, key.Name, collector, pods, &scaling.DeciderSpec{
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, ScalingMetric: "concurrency",
		TargetValue: q.Target, TotalValue: q.Target / 0.7, TargetBurstCapacity: 211, PanicThreshold: 2,
		StableWindow: window, ScaleDownDelay: time.Duration(q.Delay) * time.Second, Reachable: true,
	})
	var out []int32
	for i, s := range q.Seconds {
		if i > 0 {
			time.Sleep(time.Second)
		}
		if pods.ready = s.Ready; s.Told {
			collector.Record(key, time.Now(), metrics.Stat{AverageConcurrentRequests: s.Concurrency})
		}
		if i%tick != 0 {
			continue
		}
		switch r := scaler.Scale(logger, time.Now()); {
		case r.ScaleValid:
			out = append(out, r.DesiredPodCount)
		default:
			out = append(out, -1)
		}
	}
	return out
}

type counter struct{ ready int }

func (c *counter) ReadyCount() (int, error)    { return c.ready, nil }
func (c *counter) NotReadyCount() (int, error) { return 0, nil }
