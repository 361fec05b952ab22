// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package monitoring

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/promtest"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const team = "team"

// capacity is what a replica serves, in requests a second.
const capacity = 10.0

// untold are the controller's rules that this test does not bring about. promtool's
// tests have them; here their series have to be there.
var untold = map[string]string{
	"GPUAutoscalerFlapping":         "gpupilot_autoscaler_scales_total",
	"GPUPilotObjectiveFastBurn":     `gpupilot_slo_burn_rate{window="5m"}`,
	"GPUPilotObjectiveSlowBurn":     `gpupilot_slo_burn_rate{window="30m"}`,
	"GPUPilotObjectiveSteadyBurn":   `gpupilot_slo_burn_rate{window="6h"}`,
	"GPUPilotScaleErrors":           `gpupilot_scale_requests_total{result="error"}`,
	"GPUPilotExporterContradicted":  "gpupilot_exporter_contradictions_total",
	"GPUPilotMetricsAPIUnavailable": "", // of the API server, see below
	"GPUPilotNotLeading":            "gpupilot_leader",
}

// ofPlans are the metrics of an objective's plan, which needs more load on record than this
// test makes. Unit tests of internal/autoscaler/objective have them.
var ofPlans = regexp.MustCompile(`gpupilot_slo_(missed_ratio|plan_replicas|needed_replicas)`)

// Every query of a panel and of a rule on GPUAutoscalers finds series of a real
// controller on a real control plane.
func TestControllerQueries(t *testing.T) {
	var load stack.Load
	offer := func(replicas float64) { load.Set(replicas * capacity) }
	model := simnode.Model{Capacity: capacity, Concurrency: 16, QueueLimit: 60}
	s := stack.New(t, stack.Config{
		Nodes: 2, ControllerArgs: []string{"--prometheus-url", "http://127.0.0.1:1"}, // no backend answers there
		Workloads: []simnode.Workload{
			{Name: "web", Model: model, Offered: load.At},
			{Name: "full", Model: model, Offered: func(time.Time) float64 { return 3 * capacity }},
			{Name: "blind", Model: model, Offered: func(time.Time) float64 { return 1 }},
		},
	})
	offer(0.3)
	populate(t, s)

	p := server{promtest.Start(t, "global: {scrape_interval: 1s}\nscrape_configs:\n"+scrapeOf(t, s))}
	p.await(t, "a decision for web", `gpupilot_autoscaler_last_decision_info{name="web"}`)
	p.await(t, "a page before the next scale", `gpupilot_reaction_seconds_count`) // a start's backlog may have scaled web already
	offer(3)
	p.await(t, "web has gone up", `gpupilot_autoscaler_scales_total{name="web",direction="up"} > 0 and on () increase(gpupilot_reaction_seconds_count[5m]) > 0`)
	offer(0.3)
	p.awaitAll(t, ofControllers(t))
	available(t, s)

	s.StopController()
	p.await(t, "GPUPilotNotLeading", ruleNamed(t, "GPUPilotNotLeading").Expr)
}

// populate creates the workloads and their GPUAutoscalers: web follows its load, promise
// keeps an objective of it, full is at its maximum, blind has a query that no backend
// answers, and an override, and lost has no target.
func populate(t *testing.T, s *stack.Stack) {
	t.Helper()
	create := func(o client.Object) {
		t.Helper()
		if err := s.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team}})
	for _, name := range []string{"web", "full", "blind"} {
		create(stack.Deployment(team, name, 1, time.Second))
	}
	window := int32(2)
	for name, most := range map[string]int32{"web": 6, "promise": 6, "full": 1, "blind": 2, "lost": 2} {
		one, target, actuation := int32(1), name, v1alpha1.Actuation("")
		signal := v1alpha1.Signal{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")}}
		switch name {
		case "promise":
			target, actuation = "web", v1alpha1.ActuationAdvise
			limit := metav1.Duration{Duration: time.Second}
			signal = v1alpha1.Signal{Preset: v1alpha1.PresetVLLM, SLO: &v1alpha1.SLO{Objective: "95%", Over: "1d", TimeToFirstToken: &limit}}
		case "blind":
			signal = v1alpha1.Signal{Query: &v1alpha1.QuerySignal{PromQL: "sum(backlog)"}, Target: &v1alpha1.Target{Value: resource.MustParse("5")}}
		}
		var override *v1alpha1.Override
		if name == "blind" {
			override = &v1alpha1.Override{Replicas: &one, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "incident 4711"}
		}
		create(&v1alpha1.GPUAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name},
			Spec: v1alpha1.GPUAutoscalerSpec{
				ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: target},
				Override:       override, Actuation: actuation, MinReplicas: &one, MaxReplicas: most, Signals: []v1alpha1.Signal{signal},
				Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &window}},
			},
		})
	}
}

// scrapeOf are the controller's and the agents' parts of a prometheus.yml.
func scrapeOf(t *testing.T, s *stack.Stack) string {
	t.Helper()
	var pods corev1.PodList
	if err := s.Client.List(t.Context(), &pods, client.InNamespace(stack.Namespace)); err != nil {
		t.Fatal(err)
	}
	var agents []string
	for i := range pods.Items {
		agents = append(agents, fmt.Sprintf("%q", pods.Items[i].Status.PodIP+":9400"))
	}
	return fmt.Sprintf("- {job_name: controller, honor_labels: true, static_configs: [{targets: [%q]}]}\n"+
		"- {job_name: agents, honor_labels: true, static_configs: [{targets: [%s]}]}\n",
		strings.TrimPrefix(s.ControllerURL, "http://"), strings.Join(agents, ", "))
}

// ofControllers are the queries of panels, variables and rules that need the controller.
func ofControllers(t *testing.T) (out []named) {
	t.Helper()
	panels, err := panelQueries()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range panels {
		if ofController.MatchString(q.expr) && !ofPlans.MatchString(q.expr) {
			out = append(out, named{q.String(), chosen(q.expr, nil)})
		}
	}
	files, err := ruleFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range files {
		for _, r := range rules {
			if !ofController.MatchString(r.Expr) {
				continue
			}
			switch series, ok := untold[r.Alert]; {
			case !ok:
				out = append(out, named{r.Alert, r.Expr})
			case series != "":
				out = append(out, named{r.Alert + " (its series)", series})
			}
		}
	}
	return out
}

// available checks that the API server has the metric of GPUPilotMetricsAPIUnavailable
// for our APIServices.
func available(t *testing.T, s *stack.Stack) {
	t.Helper()
	c, err := rest.HTTPClientFor(s.REST)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(s.REST.Host + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET /metrics: %s, %v", resp.Status, err)
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		if want := `aggregator_unavailable_apiservice{name="` + version + `.custom.metrics.k8s.io"}`; !strings.Contains(string(page), want) {
			t.Errorf("the API server does not show %s", want)
		}
	}
}
