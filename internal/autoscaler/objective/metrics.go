// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/scale/budget"
)

// Metrics describes the metrics of objectives. Their number of series is bounded by that of
// the objectives of a GPUAutoscaler.
type Metrics struct {
	objective, over, requests, missed, attained, left, burn, causes, plan, needed *prometheus.Desc
}

// NewMetrics returns the metrics.
func NewMetrics() Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gpupilot_slo_"+name, help, append([]string{"namespace", "name", "signal"}, labels...), nil)
	}
	return Metrics{
		objective: desc("objective_ratio", "Share of the requests that an slo promises to keep its limits."),
		over:      desc("window_seconds", "Time over which an slo's objective is judged."),
		requests:  desc("requests", "Requests that ended within the slo's time."),
		missed:    desc("missed_requests", "Requests within the slo's time that missed a limit or were aborted: at least and at most (bound).", "bound"),
		attained:  desc("attained_ratio", "Share of the requests within the slo's time that kept the limits: at least and at most (bound); absent without requests.", "bound"),
		left:      desc("error_budget_left_ratio", "Share of the slo's allowed misses that is left: at least and at most (bound). Negative: more were missed. Absent without requests.", "bound"),
		burn:      desc("burn_rate", "How fast the misses of a window use the error budget: at 1 it lasts for the slo's time. Absent without requests in the window.", "window"),
		causes:    desc("missed_ratio", "Share of the requests of the last day that missed a limit, by cause: expected at the planned load (plan), while replicas started (startup), at maxReplicas or the budget (bounds), more than usual at the load (servers). Absent before the first plan.", "cause"),
		plan:      desc("plan_replicas", "Mean replicas that an objective takes by the recorded load: of the slo, with twice (looser) and with half (stricter) of the allowed misses.", "objective"),
		needed:    desc("needed_replicas", "Mean replicas that keep the objective where the plan does not, because the load rises faster than replicas start; absent if it does, or if nothing would."),
	}
}

// Describe sends the descriptions.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.objective, m.over, m.requests, m.missed, m.attained, m.left, m.burn, m.causes, m.plan, m.needed} {
		ch <- d
	}
}

// The values of the label bound.
const (
	atLeast = "at_least"
	atMost  = "at_most"
)

// Collect sends the metrics of a GPUAutoscaler.
func (m *Metrics) Collect(ch chan<- prometheus.Metric, namespace, name string, reports []Report) {
	for i := range reports {
		r := &reports[i]
		send := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{namespace, name, r.Signal}, labels...)...)
		}
		send(m.objective, r.Objective)
		send(m.over, r.Over.Seconds())
		send(m.requests, r.Ended)
		send(m.missed, r.Missed, atLeast)
		send(m.missed, r.MissedMost, atMost)
		if r.Ended > 0 {
			send(m.attained, r.Attained, atLeast)
			send(m.attained, r.AttainedMost, atMost)
			send(m.left, r.BudgetLeft, atLeast)
			send(m.left, r.BudgetLeftMost, atMost)
		}
		for k := range r.Burns {
			if b := &r.Burns[k]; b.Requests > 0 {
				send(m.burn, b.Rate, budget.Windows[k].Name)
			}
		}
		if r.Plan.Target <= 0 {
			continue
		}
		send(m.causes, r.causes.Planned, "plan")
		send(m.causes, r.causes.Starting, "startup")
		send(m.causes, r.causes.Bounded, "bounds")
		send(m.causes, r.causes.Server, "servers")
		send(m.plan, r.Plan.Replicas, "own")
		send(m.plan, r.Plan.Looser, "looser")
		send(m.plan, r.Plan.Stricter, "stricter")
		if r.Plan.Short && r.Plan.Needs > 0 {
			send(m.needed, r.Plan.Needs)
		}
	}
}
