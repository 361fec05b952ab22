// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/gpupilot/gpupilot/internal/gpu"

// chosen selects the GPUAutoscalers of the variables.
const chosen = `{cluster=~"$cluster",namespace=~"$namespace",name=~"$name"}`

// perWorkload tells GPUAutoscalers apart. Every replica of the controller shows them.
const (
	perWorkload  = "cluster, namespace, name"
	workloadName = "{{namespace}}/{{name}}"
)

func workload() board {
	return board{
		name: "workload", title: "GPUPilot / Workload and autoscaling",
		description: "What a GPUAutoscaler does and why: replicas, signals against their targets, the rule that decides, and the controller behind it. For gpupilot-controller.",
		variables: []variable{
			datasource(),
			choice("cluster", "Cluster", "label_values(gpupilot_autoscaler_condition, cluster)", ""),
			choice("namespace", "Namespace", `label_values(gpupilot_autoscaler_condition{cluster=~"$cluster"}, namespace)`, ""),
			choice("name", "GPUAutoscaler", `label_values(gpupilot_autoscaler_condition{cluster=~"$cluster",namespace=~"$namespace"}, name)`, ""),
		},
		marks: changes(chosen),
		rows:  []row{workloadNow(), workloadSignals(), workloadObjectives(), workloadReasons(), workloadGPUs(), controller()},
	}
}

// most is the highest of the controller's replicas.
func most(labels, metric string) string { return by("max", labels, metric) }

func replicasIn(state string) string {
	return `gpupilot_autoscaler_replicas{cluster=~"$cluster",namespace=~"$namespace",name=~"$name",state="` + state + `"}`
}

func workloadNow() row {
	now := func(title, state, about string) panel {
		return panel{kind: single, width: 6, title: title, about: about, queries: []query{{expr: "sum(" + most(perWorkload, replicasIn(state)) + ")"}}}
	}
	return row{title: "Replicas", panels: []panel{
		now("Current", "current", "spec.replicas of the workloads."), now("Desired", "desired", "What was decided."),
		now("Serving", "serving", "Ready pods."), now("Starting", "starting", "Pods on the way: capacity that is not there yet."),
		{title: "Replicas", width: 24, unit: count, queries: []query{
			{most(perWorkload+", state", "gpupilot_autoscaler_replicas"+chosen), workloadName + " {{state}}"},
			{most(perWorkload+", limit", "gpupilot_autoscaler_replicas_limit"+chosen), workloadName + " {{limit}}"},
		}},
	}}
}

func workloadSignals() row {
	value := most(perWorkload+", signal, unit, per", "gpupilot_autoscaler_signal_value"+chosen)
	target := most(perWorkload+", signal, unit, per", "gpupilot_autoscaler_signal_target"+chosen)
	return row{title: "Signals", panels: []panel{
		{title: "Signals and their targets", about: "Per serving replica or per workload, in the signal's own unit.", unit: count, queries: []query{
			{value, workloadName + " {{signal}} {{unit}} per {{per}}"}, {target, workloadName + " {{signal}} target per {{per}}"},
		}},
		{title: "Signals as a share of their targets", about: "Above 1, more replicas are needed.", unit: share, levels: some, queries: []query{
			{value + "\n/\n" + target, workloadName + " {{signal}}"},
		}},
		{title: "Replicas that each signal asks for", about: "Before tolerance, limits and the budget. The signal that asks for the most decides.", unit: count, queries: []query{
			{most(perWorkload+", signal", "gpupilot_autoscaler_signal_demand_replicas"+chosen), workloadName + " {{signal}}"},
			{most(perWorkload, replicasIn("desired")), workloadName + " desired"},
		}},
		{title: "Age of the signals' values", unit: seconds, levels: upTo(15, 60), queries: []query{
			{most(perWorkload+", signal", "gpupilot_autoscaler_signal_age_seconds"+chosen), workloadName + " {{signal}}"},
		}},
	}}
}

func workloadObjectives() row {
	const perObjective = perWorkload + ", signal"
	const objective = workloadName + " {{signal}}"
	slo := func(labels, metric string) string { return most(perObjective+labels, "gpupilot_slo_"+metric+chosen) }
	return row{title: "Objectives", panels: []panel{
		{title: "Attained", about: "Share of the requests within the limits, over the time of the objective: at least, and at most where the histograms leave a range.", unit: share, full: true, queries: []query{
			{slo(", bound", "attained_ratio"), objective + " {{bound}}"}, {slo("", "objective_ratio"), objective + " objective"},
		}},
		{title: "Error budget left", about: "Share of the allowed misses. Below 0, the objective is missed.", unit: share, levels: levels{{0, worst}, {0, bad}, {0.25, fine}}, queries: []query{{slo(", bound", "error_budget_left_ratio"), objective + " {{bound}}"}}},
		{title: "Burn rate", about: "At 1, the error budget lasts for the time of the objective. Alerts: 14.4 in 1h and 5m, 6 in 6h and 30m, 1 in 3d and 6h.", unit: count, levels: levels{{0, fine}, {1, noticed}, {6, bad}, {14.4, worst}}, queries: []query{{slo(", window", "burn_rate"), objective + " {{window}}"}}},
		{kind: areas, title: "Misses by cause", about: "Share of the requests of the last day that missed a limit.", unit: share, queries: []query{{slo(", cause", "missed_ratio"), objective + " {{cause}}"}}},
		{title: "Mean replicas of the plan", about: "Replicas that your recorded load needs on average: for your objective, for twice as many misses (looser), for half as many (stricter), and at least, where the plan does not keep the objective (needed).", unit: count, queries: []query{
			{slo(", objective", "plan_replicas"), objective + " {{objective}}"}, {slo("", "needed_replicas"), objective + " needed"},
		}},
		{title: "Tokens", about: "That all serving replicas are asked for.", unit: tokenPS, queries: []query{
			{most(perObjective+", type", "gpupilot_autoscaler_signal_tokens_per_second"+chosen), objective + " {{type}}"},
		}},
	}}
}

// Links of the last changes.
var (
	workloadOf = link{"This GPUAutoscaler", "/d/gpupilot-workload?var-namespace=${__data.fields.Namespace}&var-name=${__value.raw}" + inTime}
	explained  = link{"What the rule does", documentation + "explain.md"}
)

func workloadReasons() row {
	return row{title: "Why", panels: []panel{
		{kind: states, title: "Rule of the last decision", about: "docs/explain.md says what each rule does. No band: no decision could be made.", queries: []query{
			{most(perWorkload+", rule", "gpupilot_autoscaler_last_decision_info"+chosen), workloadName + " {{rule}}"},
		}},
		{kind: states, title: "Conditions", about: "1: the condition is True.", queries: []query{
			{most(perWorkload+", type", "gpupilot_autoscaler_condition"+chosen), workloadName + " {{type}}"},
		}},
		{kind: rows, title: "Last change of the replicas", about: "Since the controller started.", queries: []query{
			{expr: most(perWorkload+", direction, rule", "gpupilot_autoscaler_last_scale_timestamp_seconds"+chosen) + " * 1000"},
		}, columns: []column{{from: "namespace", to: "Namespace"}, {from: "name", to: "GPUAutoscaler", link: workloadOf}, {from: "direction", to: "Direction"}, {from: "rule", to: "Rule", link: explained}, {from: "Value", to: "Time", unit: time_}}},
		{title: "Changes of the replicas in an hour", unit: count, queries: []query{
			{"sum by (" + perWorkload + ", direction) (increase(gpupilot_autoscaler_scales_total" + chosen + "[1h]))", workloadName + " {{direction}}"},
		}},
		{kind: areas, title: "Decisions by rule", about: "Decisions per second.", unit: perSec, queries: []query{
			{most(perWorkload+", rule", "rate(gpupilot_autoscaler_decisions_total"+chosen+"[$__rate_interval])"), workloadName + " {{rule}}"},
		}},
	}}
}

// workloadGPUs are the GPUs that pods of the namespaces hold, whatever the labels are
// called in this Prometheus.
func workloadGPUs() row {
	pods := func(id gpu.FieldID) string {
		q := fieldOf(id).query(`cluster=~"$cluster",exported_pod!="",exported_namespace=~"$namespace"`, nil) + "\nor\n" +
			fieldOf(id).query(`cluster=~"$cluster",exported_pod="",pod!="",pod!~"`+exporterPods+`",namespace=~"$namespace"`, nil)
		return by("avg", "namespace, pod", relabel(relabel(q, "pod", "exported_pod"), "namespace", "exported_namespace"))
	}
	return row{title: "GPUs of the namespaces' pods", panels: []panel{
		{title: "GPU utilisation by pod", unit: share, full: true, queries: []query{{pods(gpu.GPUUtil), "{{namespace}}/{{pod}}"}}},
		{title: "Framebuffer memory used by pod", unit: bytes_, queries: []query{{pods(gpu.FBUsed), "{{namespace}}/{{pod}}"}}},
	}}
}

func controller() row {
	const in = `{cluster=~"$cluster"}`
	quantile := func(q, metric string) string {
		return "histogram_quantile(" + q + ", sum by (le) (rate(" + metric + "_bucket" + in + "[1h])))" // scales are rare
	}
	return row{title: "Controller", panels: []panel{
		{kind: states, title: "Leader", levels: levels{{0, "text"}, {1, fine}}, about: "1: this replica writes.", queries: []query{{"max by (instance) (gpupilot_leader" + in + ")", "{{instance}}"}}},
		{title: "From a sample to its scale", about: "From when the newest sample was measured until the API server accepted the scale that follows from it, in the last hour.", unit: seconds, levels: upTo(1, 5), queries: []query{
			{quantile("0.5", "gpupilot_reaction_seconds"), "p50"}, {quantile("0.99", "gpupilot_reaction_seconds"), "p99"},
		}},
		{title: "Writes of a scale", unit: reqPS, queries: []query{{"sum by (result) (rate(gpupilot_scale_requests_total" + in + "[$__rate_interval]))", "{{result}}"}}},
		{title: "Scrapes", unit: reqPS, queries: []query{
			{"sum(rate(gpupilot_scrapes_total" + in + "[$__rate_interval]))", "all"},
			{"sum by (reason) (rate(gpupilot_scrape_failures_total" + in + "[$__rate_interval]))", "failed: {{reason}}"},
		}},
		{title: "PromQL queries of signals", unit: reqPS, queries: []query{{"sum by (result, reason) (rate(gpupilot_queries_total" + in + "[$__rate_interval]))", "{{result}} {{reason}}"}}},
		{title: "Memory of the window", unit: bytes_, queries: []query{
			{"max by (instance) (gpupilot_window_memory_bytes" + in + ")", "{{instance}}"}, {"max(gpupilot_window_memory_limit_bytes" + in + ")", "limit"},
		}},
	}}
}
