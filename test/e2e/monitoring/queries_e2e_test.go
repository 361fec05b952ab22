// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package monitoring

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// ofController are the metrics that the controller or the API server has.
var ofController = regexp.MustCompile(`gpupilot_(autoscaler|slo|leader|node_gpus|reaction|scale_requests|scrape|queries|window|exporter_contradictions)|aggregator_`)

// panelsOfAgents are the queries of all panels and variables on GPUs, once for each node.
func panelsOfAgents(t *testing.T, nodes []*node) (out []named) {
	t.Helper()
	all, err := panelQueries()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if ofController.MatchString(q.expr) {
			continue
		}
		for _, n := range nodes {
			out = append(out, named{n.name + ": " + q.String(), chosen(q.expr, map[string]string{"job": n.name, "node": n.name, "gpu": "[0-3]", "namespace": "team"})})
		}
	}
	return out
}

// later are rules that the test asks at another time, or that need more than it has.
var later = map[string]string{
	"GPULost":              "asked once a GPU is lost",
	"GPUMissing":           "needs an exporter that forgets a GPU: promtool's test has it",
	"GPUNVLinkDown":        "needs a link that goes down: promtool's test has it",
	"GPUPilotAgentStale":   "needs an agent that hangs for 30 s: promtool's test has it",
	"GPUPilotBackendDown":  "needs a driver that is gone: promtool's test has it",
	"GPUPilotIdleHeldGPUs": "needs a controller and a day of idle GPUs: promtool's test has it",
	"GPUPilotPodsUnknown":  "needs a kubelet that is gone: promtool's test has it",
}

// rulesOfAgents are the rules on GPUs and exporters: on each node, where they name one.
func rulesOfAgents(t *testing.T, nodes []*node) (out []named) {
	t.Helper()
	files, err := ruleFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range files {
		for _, r := range rules {
			switch _, skipped := later[r.Alert]; {
			case ofController.MatchString(r.Expr), skipped:
			case !strings.Contains(r.Annotations["summary"]+r.Annotations["description"], "$labels.node"):
				out = append(out, named{r.Alert, r.Expr})
			default:
				for _, n := range nodes {
					out = append(out, named{
						r.Alert + " on " + n.name,
						fmt.Sprintf("(%s) and on (node) label_replace(vector(1), \"node\", %q, \"\", \"\")", r.Expr, n.name),
					})
				}
			}
		}
	}
	return out
}

func ruleNamed(t *testing.T, name string) rule {
	t.Helper()
	files, err := ruleFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range files {
		for _, r := range rules {
			if r.Alert == name {
				return r
			}
		}
	}
	t.Fatalf("no rule %s", name)
	return rule{}
}
