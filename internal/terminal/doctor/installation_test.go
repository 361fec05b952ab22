// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Pods count as the controller takes them: those of its flags' namespaces with its flags' labels. Tenants give their pods any
// labels, and put them on any node.
func TestPodsOfTheInstallation(t *testing.T) {
	dcgm := strings.Replace(exporterPod, "namespace: gpupilot-system", "namespace: %[3]s", 1)
	tenants := strings.Replace(dcgm, "name: %[1]s-%[2]s,", "name: tenants-%[1]s-%[2]s,", 1)
	withoutAgent := func(w *world) { w.lists["pods"] = w.lists["pods"][1:] }
	flags := func(args ...any) func(*world) {
		return func(w *world) {
			c := w.lists["pods"][len(w.lists["pods"])-1]
			c["spec"].(object_)["containers"] = []any{object_{"image": "c:v1", "args": args}}
		}
	}
	add := func(text string, args ...any) func(*world) {
		return func(w *world) {
			w.lists["pods"] = append([]object_{parse(t, fmt.Sprintf(text, args...))}, w.lists["pods"]...)
		}
	}
	f := func(what string, want []string, change ...func(*world)) {
		t.Helper()
		w := healthy(t)
		for _, c := range change {
			c(w)
		}
		results, _ := w.examine(t, Selection{})
		if got := failed(results); !slices.Equal(got, want) {
			t.Errorf("%s: %v failed, want %v", what, got, want)
		}
	}
	f("a tenant's agent hides no missing one", []string{"GP201"}, withoutAgent, add(tenants, "gpupilot-agent", "n1", "llm"))
	f("a tenant's dcgm-exporter hides no missing agent", []string{"GP201"}, withoutAgent, add(tenants, "dcgm-exporter", "n1", "llm"))
	f("a tenant's dcgm-exporter is no second one", nil, add(tenants, "dcgm-exporter", "n1", "llm"))
	f("a tenant's agent has any image", nil, add(strings.Replace(tenants, ":v1", ":v0", 1), "gpupilot-agent", "n1", "llm"))
	f("a tenant's controller is not ours", append(slices.Clone(ended), "GP501?", "GP502?", "GP506?", "GP601", "GP603?"), func(w *world) {
		w.viewErr = errEnded
		w.lists["pods"][2]["metadata"].(object_)["namespace"] = "llm"
	})
	f("GPU Operator's exporter counts", nil, withoutAgent, add(dcgm, "dcgm-exporter", "n1", "gpu-operator"))
	f("so does GKE's", nil, withoutAgent, add(dcgm, "gke-managed-dcgm-exporter", "n1", "gke-managed-system"))
	f("and is a second one beside an agent", []string{"GP306"}, add(dcgm, "dcgm-exporter", "n1", "gpu-operator"))
	f("one of a flag's namespace counts", nil, withoutAgent, flags("--dcgm-namespaces", "other,monitoring"), add(dcgm, "dcgm-exporter", "n1", "monitoring"))
	f("then those of the default ones do not", []string{"GP201"}, withoutAgent, flags("--dcgm-namespaces=monitoring"), add(dcgm, "dcgm-exporter", "n1", "gpu-operator"))
	f("one with a flag's labels counts", nil, withoutAgent, flags("--dcgm-selector=app=x;app.kubernetes.io/name=mine"), add(dcgm, "mine", "n1", "gpu-operator"))
	f("agents of a flag's namespace count", nil, withoutAgent, flags("--agent-namespace=agents"), add(dcgm, "gpupilot-agent", "n1", "agents"), add(dcgm, "gpupilot-agent", "n2", "agents"))
	f("a variable is the controller's own namespace", nil, flags("--agent-namespace=$(POD_NAMESPACE)"))
}
