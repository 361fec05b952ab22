// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

type variable = cog.Builder[dashboard.VariableModel]

// clusters are those of a Prometheus with several, by its usual label; otherwise there
// is only All.
func clusters() variable {
	return choice("cluster", "Cluster", "label_values("+anyGPU.query("", nil)+", cluster)", "")
}

// jobs are the exporters' jobs: one can be left out where two exporters read a GPU.
func jobs() variable {
	return choice("job", "Job", "label_values("+anyGPU.query(`cluster=~"$cluster"`, nil)+", job)", "")
}

func nodes() variable {
	return choice("node", "Node", "query_result("+by("group", "node", withNode(anyGPU.query(scoped, nil)))+")", `/node="([^"]+)"/`)
}

func gpus() variable {
	return choice("gpu", "GPU", "label_values("+anyGPU.query(onNodes, nil)+", gpu)", "")
}

// onNodes selects the chosen nodes. A series has one of the two labels: the empty
// alternative matches the one that it lacks.
const onNodes = scoped + `,hostname=~"$node|",Hostname=~"$node|"`

// onGPUs selects the chosen GPUs of these.
const onGPUs = onNodes + `,gpu=~"$gpu"`
