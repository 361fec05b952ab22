// SPDX-License-Identifier: Apache-2.0

package main

// staleSeconds is the age from which on values of GPUs are old.
const staleSeconds = 30

func agentAlerts() []alert {
	return []alert{
		{
			name: "GPUExporterDown", hold: "5m", severity: warning, runbook: "gpu.md#an-exporter-does-not-work",
			expr:        "up == 0\nand on (cluster, job, instance)\n" + anyGPU.query("", func(s string) string { return "last_over_time(" + s + "[6h])" }),
			summary:     "GPU exporter {{ $labels.instance }} does not answer",
			description: "{{ $labels.instance }} of job {{ $labels.job }} showed GPUs in the last 6 hours and has not answered for 5 minutes. Its node's GPUs are not watched, and GPUAutoscalers of GPU metrics do not scale down while a serving replica is there.",
		},
		{
			name: "GPUPilotAgentStale", hold: "1m", severity: warning, runbook: "gpu.md#an-exporter-does-not-work",
			expr:        "time() - gpupilot_collection_timestamp_seconds > " + number(staleSeconds) + "\nand\ntime() - gpupilot_collection_timestamp_seconds > 10 * gpupilot_collection_interval_seconds",
			summary:     "The agent at {{ $labels.instance }} shows old values",
			description: "The last collection of the agent at {{ $labels.instance }} began {{ $value | humanizeDuration }} ago.",
		},
		{
			name: "GPUPilotBackendDown", hold: "5m", severity: critical, runbook: "gpu.md#an-exporter-does-not-work",
			expr:        "gpupilot_backend_up == 0",
			summary:     "The agent at {{ $labels.instance }} can read no GPU",
			description: "The agent at {{ $labels.instance }} has read no GPU through {{ $labels.backend }} for 5 minutes (gpupilot_backend_up is {{ $value }}): the driver is not loaded, or hangs.",
		},
		{
			name: "GPUPilotPodsUnknown", hold: "5m", severity: warning, runbook: "gpu.md#an-exporter-does-not-work",
			expr:        "gpupilot_pod_resources_up == 0",
			summary:     "The agent at {{ $labels.instance }} does not know which pods hold its GPUs",
			description: "The kubelet has not answered the agent at {{ $labels.instance }} for 5 minutes (gpupilot_pod_resources_up is {{ $value }}). Labels of pods are old.",
		},
	}
}

// onWorkload is how an alert's text names its GPUAutoscaler.
const onWorkload = "GPUAutoscaler {{ $labels.namespace }}/{{ $labels.name }}"

func autoscalerAlerts() []alert {
	limit := by("max", perWorkload, `gpupilot_autoscaler_replicas_limit{limit="max"}`)
	condition := func(kind string) string {
		return by("max", perWorkload, `gpupilot_autoscaler_condition{type="`+kind+`"}`) + " == 0"
	}
	return []alert{
		{
			name: "GPUAutoscalerAtMax", hold: "15m", severity: warning, runbook: "autoscaler.md#at-maxreplicas",
			expr:        by("max", perWorkload, "gpupilot_autoscaler_signal_demand_replicas") + "\n>\n" + limit,
			summary:     onWorkload + " needs more than maxReplicas",
			description: onWorkload + ` has needed more replicas than its maxReplicas for 15 minutes: its load is enough for {{ $value | printf "%.1f" }}.`,
		},
		{
			name: "GPUAutoscalerNoData", hold: "5m", severity: warning, runbook: "autoscaler.md#no-data",
			expr:        condition("SignalsReadable") + "\nand\n" + by("max", perWorkload, `gpupilot_autoscaler_replicas{state="serving"}`) + " > 0",
			summary:     onWorkload + " has no data",
			description: onWorkload + " has had no fresh value of any signal for 5 minutes (SignalsReadable is {{ $value }}). Its replicas are held, or as missingData says.",
		},
		burnAlert("Fast", critical, "1h", "5m", "14.4", "2m", "28 days' error budget is then gone in two days"),
		burnAlert("Slow", warning, "6h", "30m", "6", "15m", "28 days' error budget is then gone in five days"),
		burnAlert("Steady", info, "3d", "6h", "1", "1h", "the objective will be missed"),
		{
			name: "GPUAutoscalerFlapping", severity: warning, runbook: "autoscaler.md#flapping",
			expr:        by("min", perWorkload, by("sum", perWorkload+", direction", "increase(gpupilot_autoscaler_scales_total[30m])")) + " >= 3",
			summary:     onWorkload + " goes up and down",
			description: onWorkload + ` went up and went down at least {{ $value | printf "%.0f" }} times each in the last 30 minutes.`,
		},
		{
			name: "GPUAutoscalerBlocked", hold: "10m", severity: warning, runbook: "autoscaler.md#cannot-scale",
			expr:        condition("AbleToScale"),
			summary:     onWorkload + " cannot scale its target",
			description: onWorkload + " has not been able to scale its target for 10 minutes (AbleToScale is {{ $value }}). The condition's reason says why.",
		},
	}
}

// idleAlerts say which teams hold GPUs that they do not use: more than one on the mean of a day, and more than half of what
// they hold. Both replicas of the controller count, so the higher one is taken.
func idleAlerts() []alert {
	day := func(metric string) string {
		return by("max", "cluster, namespace", "increase(gpupilot_namespace_"+metric+"_gpu_seconds_total[1d])")
	}
	return []alert{{
		name: "GPUPilotIdleHeldGPUs", hold: "1h", severity: info, runbook: "gpu.md#idle-gpus",
		expr:        day("idle_held") + " / 86400 > 1\nand\n" + day("idle_held") + " > 0.5 * " + day("held"),
		summary:     "Namespace {{ $labels.namespace }} holds GPUs that it does not use",
		description: `Serving pods of the namespace {{ $labels.namespace }} held {{ $value | printf "%.1f" }} GPUs on the mean of the last day without using them. That is more than half of what they held.`,
	}}
}

// burnAlert is that of the SRE workbook: the error budget burns faster than a rate in a long
// window and, so that the alert ends soon, in a short one.
func burnAlert(name string, severity severity, long, short, rate, hold, until string) alert {
	const perObjective = perWorkload + ", signal"
	in := func(window string) string {
		return by("max", perObjective, `gpupilot_slo_burn_rate{window="`+window+`"}`) + " > " + rate
	}
	return alert{
		name: "GPUPilotObjective" + name + "Burn", hold: hold, severity: severity, runbook: "autoscaler.md#requests-miss-their-objective",
		expr:        in(long) + "\nand\n" + in(short),
		summary:     onWorkload + " misses its objective",
		description: onWorkload + ` misses the limits of {{ $labels.signal }} {{ $value | printf "%.1f" }} times as often as its objective allows, in the last ` + long + " and " + short + ": " + until + ".",
	}
}

func controllerAlerts() []alert {
	const byJob = "cluster, job"
	failed := by("sum", byJob, `rate(gpupilot_queries_total{result="failed"}[10m])`)
	return []alert{
		{
			name: "GPUPilotNotLeading", hold: "1m", severity: critical, runbook: "autoscaler.md#no-controller-leads",
			expr: by("sum", byJob, "gpupilot_leader") + " == 0\nor\n" +
				"0 * " + by("count", byJob, "last_over_time(gpupilot_leader[1h])") + "\nunless on (" + byJob + ")\n" + by("count", byJob, "gpupilot_leader") + " > 0",
			summary:     "No replica of gpupilot-controller writes",
			description: "{{ $value }} replicas of gpupilot-controller (job {{ $labels.job }}) hold the lease: nothing is scaled.",
		},
		{
			name: "GPUPilotScaleErrors", severity: warning, runbook: "autoscaler.md#cannot-scale",
			expr:        by("sum", byJob, `increase(gpupilot_scale_requests_total{result="error"}[15m])`) + " > 3",
			summary:     "The API server refuses scales of gpupilot-controller",
			description: `{{ $value | printf "%.0f" }} writes of a scale failed in the last 15 minutes (job {{ $labels.job }}).`,
		},
		{
			name: "GPUPilotQueriesFailing", hold: "10m", severity: warning, runbook: "autoscaler.md#no-data",
			expr:        failed + "\n/\n" + by("sum", byJob, "rate(gpupilot_queries_total[10m])") + " > 0.5",
			summary:     "PromQL queries of GPUAutoscalers fail",
			description: "{{ $value | humanizePercentage }} of the PromQL queries of gpupilot-controller (job {{ $labels.job }}) have failed for 10 minutes.",
		},
		{
			name: "GPUPilotExporterContradicted", severity: warning, runbook: "autoscaler.md#an-exporter-is-contradicted",
			expr:        by("sum", byJob+", reason", "increase(gpupilot_exporter_contradictions_total[15m])") + " > 0",
			summary:     "Exporters and the API server disagree on who holds a GPU",
			description: `{{ $value | printf "%.0f" }} claims of exporters about the owners of GPUs were contradicted in the last 15 minutes ({{ $labels.reason }}), and are ignored.`,
		},
		{
			name: "GPUPilotMetricsAPIUnavailable", hold: "5m", severity: critical, runbook: "autoscaler.md#the-metrics-api-is-unavailable",
			expr:        `aggregator_unavailable_apiservice{name=~"v1beta[12][.]custom[.]metrics[.]k8s[.]io"} == 1`,
			summary:     "The API server cannot reach {{ $labels.name }}",
			description: "The API server has counted {{ $labels.name }} as unavailable for 5 minutes ({{ $value }}). HorizontalPodAutoscalers that read it keep their replicas.",
		},
	}
}
