// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package history tests the minutes of a real controller: they survive its restart on a
// directory, another replica reads them back from a real Prometheus, and PromQL and the
// page's JSON show them.
package history

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/promtest"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	name     = "chat"
	capacity = 20.0 // requests/s of one replica
	// patience bounds the wait for whole minutes.
	patience = 10 * time.Minute
)

func TestTheHistoryComesBack(t *testing.T) {
	dir := t.TempDir()
	s := stack.New(t, stack.Config{
		Nodes: 1, ControllerArgs: []string{"--history-dir", dir},
		Workloads: []simnode.Workload{{
			Name: name, Model: simnode.Model{Capacity: capacity, Concurrency: 16, QueueLimit: 60},
			Offered: func(time.Time) float64 { return capacity / 2 },
		}},
	})
	prometheus := promtest.StartWith(t, fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, honor_labels: true, static_configs: [{targets: [%q]}]}]\n",
		strings.TrimPrefix(s.ControllerURL, "http://")), hours(time.Now().Add(-time.Minute)))
	if err := s.Client.Create(t.Context(), stack.Deployment("default", name, 1, time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Create(t.Context(), autoscaler()); err != nil {
		t.Fatal(err)
	}
	// One more than is wanted: the last one may be in progress, and then samples take its place in PromQL.
	eventually(t, func() error { return recorded(t, s.ControllerURL, time.Now(), wanted+1) })

	// The windows of a new process are empty: what was before its start is in the history.
	s.StopController()
	stopped := time.Now()
	if err := s.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return check(t, s.ControllerURL, stopped) })
	eventually(t, func() error { return seam(t, s.ControllerURL) })

	// A replica without a volume reads the minutes from Prometheus.
	replica, stop, err := s.StartReplica(t.Context(), "127.0.0.1", "--roles", "scrape,query", "--page-auth", "none", "--prometheus-url", prometheus)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	eventually(t, func() error { return check(t, replica, stopped) })

	// The command that the page names replays the recorded hours.
	cmd := exec.CommandContext(t.Context(), "../../../bin/gpupilot", "backtest", "--from-cluster", "default/"+name,
		"--controller", replica, "--kubeconfig", s.Cluster.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "minutes") {
		t.Errorf("the backtest: %v\n%s", err, out)
	}
}

// hours are the last hours of a workload on two GPUs, as the controller shows them.
func hours(to time.Time) string {
	const labels = `namespace="default",name="chat"`
	var out strings.Builder
	for _, x := range []struct {
		series string
		value  func(minute float64) float64
	}{
		{"gpupilot_autoscaler_replicas{" + labels + `,state="current"}`, func(float64) float64 { return 2 }},
		{"gpupilot_autoscaler_replicas{" + labels + `,state="serving"}`, func(float64) float64 { return 2 }},
		{"gpupilot_autoscaler_gpus{" + labels + "}", func(float64) float64 { return 2 }},
		{"gpupilot_autoscaler_signal_value{" + labels + `,signal="Utilization",unit="%",per="replica"}`, func(m float64) float64 { return 60 + 30*math.Sin(m/20) }},
	} {
		for at := -150 * time.Minute; at <= 0; at += 15 * time.Second {
			fmt.Fprintf(&out, "%s %g %d\n", x.series, x.value(at.Minutes()), to.Add(at).Unix())
		}
	}
	return out.String() + "# EOF\n"
}

func autoscaler() *v1alpha1.GPUAutoscaler {
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 4,
			Signals: []v1alpha1.Signal{{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("90")}}},
		},
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	stack.Must(t, stack.Await(t.Context(), patience, check))
}

// shown are the series that must have minutes, with the range of their values.
var shown = []struct {
	promql      string
	least, most float64
}{
	{`gpupilot_autoscaler_replicas{namespace="default",name="chat",state="serving"}`, 0.1, 4},
	{`gpupilot_autoscaler_signal_value{namespace="default",name="chat",signal="Utilization",unit="%",per="replica"}`, 5, 100},
	{`gpupilot_autoscaler_gpus{namespace="default",name="chat"}`, 0.1, 8},
	{`gpupilot_workload_gpu_utilization_ratio{namespace="default",kind="Deployment",name="chat",in_use="allocated",stat="avg"}`, 0.05, 1},
	{`gpupilot_workload_gpu_memory_used_bytes{namespace="default",kind="Deployment",name="chat",in_use="allocated",stat="sum"}`, 1 << 20, 1 << 40},
	{`gpupilot_namespace_gpu_utilization_ratio{namespace="default",in_use="active",stat="max"}`, 0.05, 1},
	{`gpupilot_workload_gpus{namespace="default",kind="Deployment",name="chat",in_use="active"}`, 0.1, 8},
}

// wanted is the number of minutes that everything must have.
const wanted = 2

// recorded returns an error unless the page's JSON has least minutes before a time.
func recorded(t *testing.T, url string, before time.Time, least int) error {
	t.Helper()
	for _, x := range []struct{ kind, metric string }{
		{"GPUAutoscaler", `gpupilot_autoscaler_replicas{state="serving"}`},
		{"GPUAutoscaler", `gpupilot_autoscaler_signal_value{signal="Utilization"}`},
		{"Deployment", `gpupilot_workload_gpu_utilization_ratio{in_use="allocated"}`},
		{"Namespace", `gpupilot_namespace_gpus{in_use="allocated"}`},
	} {
		if n, err := minutesOf(t, url, x.kind, x.metric, before); err != nil || n < least {
			return fmt.Errorf("%d minutes of %s of the %s: %w", n, x.metric, x.kind, err)
		}
	}
	return nil
}

// check returns an error unless the page's JSON and PromQL have minutes before a time, at
// which the windows were empty.
func check(t *testing.T, url string, before time.Time) error {
	t.Helper()
	if err := recorded(t, url, before, wanted); err != nil {
		return err
	}
	for _, x := range shown {
		found, err := samples(t, url, x.promql+"[1h]")
		if err != nil {
			return err
		}
		n := 0 // points at the end of minutes
		for at, v := range found {
			if at <= before.UnixMilli() && at%minute == 0 && v >= x.least && v <= x.most {
				n++
			}
		}
		if n < wanted {
			return fmt.Errorf("%d minutes with %g to %g of %s: %v", n, x.least, x.most, x.promql, found)
		}
		ranged, err := points(t, url, x.promql, before)
		if err != nil || len(ranged) < wanted {
			return fmt.Errorf("%d points in a range of %s: %w", len(ranged), x.promql, err)
		}
	}
	return nil
}

// minute is a minute in ms.
const minute = int64(time.Minute / time.Millisecond)

// seam returns an error until a series has minutes and then samples, and fails the test if
// there is a minute's point after the first sample.
func seam(t *testing.T, url string) error {
	t.Helper()
	found, err := samples(t, url, shown[0].promql+"[1h]")
	if err != nil {
		return err
	}
	first, last := int64(math.MaxInt64), int64(0) // sample, and point of a minute
	for at := range found {
		if at%minute == 0 && isAlone(found, at) { // a sample may be at the end of a minute, too
			last = max(last, at)
		} else {
			first = min(first, at)
		}
	}
	if last == 0 || first == math.MaxInt64 {
		return fmt.Errorf("%d points: the last minute is %d, the first sample %d", len(found), last, first)
	}
	if last > first {
		t.Errorf("a minute ends at %d, after the first sample at %d", last, first)
	}
	return nil
}

// isAlone reports whether there is no other point for half a minute around a time: samples are a second apart, or a few
// seconds on a machine that does other work.
func isAlone(found map[int64]float64, at int64) bool {
	for other := range found {
		if other != at && other > at-minute/2 && other < at+minute/2 {
			return false
		}
	}
	return true
}

// get decodes an answer of a controller.
func get(t *testing.T, address string, out any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", address, resp.Status, body)
	}
	return json.Unmarshal(body, out)
}

// minutesOf counts the minutes of a metric before a time that the page's JSON has.
func minutesOf(t *testing.T, address, kind, metric string, before time.Time) (n int, err error) {
	t.Helper()
	object := name
	if kind == "Namespace" {
		object = "default"
	}
	q := url.Values{"namespace": {"default"}, "name": {object}, "kind": {kind}, "metric": {metric}, "since": {"1h"}, "step": {"1m"}}
	var m view.Minutes
	if err := get(t, address+"/api/v1/minutes?"+q.Encode(), &m); err != nil {
		return 0, err
	}
	for _, x := range m.Metrics {
		for i, v := range x.Mean {
			if at := m.First.Add(time.Duration(i) * m.Step); !math.IsNaN(v) && at.Before(before) {
				n++
			}
		}
	}
	return n, nil
}

// answer is that of a query.
type answer struct {
	Data struct {
		Result []struct {
			Values [][2]any // a time in seconds, and the value as text
		}
	}
}

// samples returns the samples of one series by time in ms.
func samples(t *testing.T, address, promql string) (map[int64]float64, error) {
	t.Helper()
	return series(t, address+"/api/v1/query?"+url.Values{"query": {promql}}.Encode())
}

// points returns the points of a range of one hour of one series, a minute apart.
func points(t *testing.T, address, promql string, now time.Time) (map[int64]float64, error) {
	t.Helper()
	return series(t, address+"/api/v1/query_range?"+url.Values{
		"query": {promql}, "step": {"60"}, "start": {fmt.Sprint(now.Add(-time.Hour).Unix())}, "end": {fmt.Sprint(now.Unix())},
	}.Encode())
}

func series(t *testing.T, address string) (map[int64]float64, error) {
	t.Helper()
	var a answer
	if err := get(t, address, &a); err != nil {
		return nil, err
	}
	out := map[int64]float64{}
	for _, s := range a.Data.Result {
		for _, v := range s.Values {
			at, _ := v[0].(float64)
			text, _ := v[1].(string)
			x, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			out[int64(math.Round(at*1000))] = x
		}
	}
	return out, nil
}
