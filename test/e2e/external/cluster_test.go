// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package external

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/test/stack"
)

// clusterRule is the rule of docs/custom-metrics.md#the-mean-of-the-whole-cluster.
func clusterRule() string {
	page, err := os.ReadFile("../../../docs/custom-metrics.md")
	if err != nil {
		panic(err)
	}
	_, text, _ := strings.Cut(string(page), "### The mean of the whole cluster\n")
	_, text, _ = strings.Cut(text, "```yaml\n")
	rule, _, _ := strings.Cut(text, "```")
	return rule
}

// aboutHalf is a mean of one GPU that is busy for half of the time: the simulated values are noisy.
var aboutHalf = regexp.MustCompile(`"value":"[45]\d(?:\d{3}m)?"`)

// The mean of the GPUs in use of all namespaces is a metric of the Deployment that the page's rule names: the idle GPUs of
// the cluster do not lower it.
func TestTheMeanOfTheCluster(t *testing.T) {
	rig.MustApply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: studio}}")
	d := stack.Deployment("studio", "render", 0, 0)
	rig.Create(t, d)
	deploy(t, stack.Deployment(namespace, "busy", 1, 0))
	rig.Offer("busy", 0.5)
	stack.Eventually(t, func() error {
		answer, err := rig.Raw(t.Context(), "/apis/custom.metrics.k8s.io/v1beta2/namespaces/studio/deployments.apps/render/cluster_gpu_utilization")
		if err == nil && !aboutHalf.MatchString(answer) {
			err = fmt.Errorf("the mean of the cluster: %s", answer)
		}
		return err
	})
}
