// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The oldest supported version of Kubernetes, 1.30: ValidatingAdmissionPolicies are generally
// available since then.
const oldestMinor = 30

// apiServices are the metrics APIs that GPUPilot serves.
var apiServices = []string{"v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io"}

// managedNamespace is where GKE runs its own dcgm-exporter.
const managedNamespace = "gke-managed-system"

var preChecks = []Check{
	{
		Code: "GP101", Group: Pre, Level: Error, Title: "the API server is new enough",
		Fix: "upgrade the cluster to Kubernetes 1.30 or later", at: []evidence{versions}, run: checkVersion,
	},
	{
		Code: "GP102", Group: Pre, Level: Error, Title: "you may create what the chart has",
		Fix: "install as a cluster administrator", at: []evidence{rights}, run: checkRights,
	},
	{
		Code: "GP103", Group: Pre, Level: Warning, Title: "no other program serves the custom and external metrics APIs",
		Fix: "hand the API over, or leave it to that program: docs/migrate.md", at: []evidence{apis}, run: checkMetricsAPIs,
	},
	{
		Code: "GP104", Group: Pre, Level: Warning, Title: "no dcgm-exporter runs on the GPU nodes",
		Fix: "replace it by the agent, or let the controller scrape it and install no agents: docs/dcgm-exporter.md", at: []evidence{daemonSets}, run: checkOtherExporter,
	},
	{
		Code: "GP105", Group: Pre, Level: Warning, Title: "GKE's managed DCGM does not run",
		Fix: "disable the DCGM metrics of the cluster, or give the agents another port than 9400: docs/install.md", at: []evidence{daemonSets}, run: checkManagedExporter,
	},
	{
		Code: "GP106", Group: Pre, Level: Error, Title: "nodes with GPUs exist",
		Fix: "label the nodes gpupilot.dev/gpu=true, or use discovery: Probe: docs/gpuexporter.md", at: []evidence{nodes}, run: checkGPUNodes,
	},
	{
		Code: "GP107", Group: Pre, Level: Warning, Title: "GPU nodes offer their GPUs to pods",
		Fix: "install the driver and NVIDIA's device plugin on them", at: []evidence{nodes}, run: checkDevicePlugin,
	},
}

var minorVersion = regexp.MustCompile(`^v1\.(\d{1,4})\.`)

// minor returns n of the API server's version 1.n.
func (f *Facts) minor() (int, error) {
	if len(f.Version.Items) == 0 {
		return 0, orMissing(f.Version.Err, "the API server does not tell its version")
	}
	v := f.Version.Items[0].GitVersion
	m := minorVersion.FindStringSubmatch(v)
	if m == nil {
		return 0, fmt.Errorf("the version %.40q is not understood", v)
	}
	return strconv.Atoi(m[1])
}

func checkVersion(f *Facts) []Finding {
	if minor, err := f.minor(); err == nil && minor < oldestMinor {
		return []Finding{{"API server", fmt.Sprintf("it has the version %s; GPUPilot needs 1.%d or later", f.Version.Items[0].GitVersion, oldestMinor)}}
	}
	return nil
}

func checkRights(f *Facts) (out []Finding) {
	for _, r := range f.Rights.Items {
		if !r.allowed {
			object := "right to create " + strings.TrimSuffix(r.resource+"."+r.group, ".")
			if r.namespace != "" {
				object += " in " + r.namespace
			}
			out = append(out, Finding{object, strings.TrimSpace("you do not have it " + r.reason)})
		}
	}
	return out
}

func checkMetricsAPIs(f *Facts) (out []Finding) {
	for i := range f.APIServices.Items {
		a := &f.APIServices.Items[i]
		if s := a.Spec.Service; s != nil && s.Name != controllerName {
			out = append(out, Finding{"APIService " + a.Metadata.Name, fmt.Sprintf("it belongs to the Service %s/%s", s.Namespace, s.Name)})
		}
	}
	return out
}

// isDCGM reports whether a DaemonSet runs dcgm-exporter.
func (w *workload) isDCGM() bool {
	for i := range w.Spec.Template.Spec.Containers {
		if strings.Contains(w.Spec.Template.Spec.Containers[i].Image, "dcgm-exporter") {
			return true
		}
	}
	return strings.Contains(w.Metadata.Name, "dcgm-exporter")
}

func checkOtherExporter(f *Facts) (out []Finding) {
	for i := range f.DaemonSets.Items {
		d := &f.DaemonSets.Items[i]
		if d.isDCGM() && d.Metadata.Namespace != managedNamespace && d.Status.Desired > 0 {
			out = append(out, Finding{"DaemonSet " + d.name(), fmt.Sprintf("it runs dcgm-exporter on %d nodes: with the agent, Prometheus gets each GPU twice", d.Status.Desired)})
		}
	}
	return out
}

func checkManagedExporter(f *Facts) (out []Finding) {
	for i := range f.DaemonSets.Items {
		if d := &f.DaemonSets.Items[i]; d.isDCGM() && d.Metadata.Namespace == managedNamespace && d.Status.Desired > 0 {
			out = append(out, Finding{"DaemonSet " + d.name(), "GKE's own dcgm-exporter holds the profiling counters and the port 9400 of the nodes"})
		}
	}
	return out
}

// capacity returns the GPUs of a node by resource.
func gpusOf(resources map[string]string) map[string]int {
	out := map[string]int{}
	for name, n := range resources {
		if gpu.IsResource(name, nil) {
			if count, err := strconv.Atoi(n); err == nil && count > 0 {
				out[name] = count
			}
		}
	}
	return out
}

// hasGPUs reports whether a node has GPUs, by its labels or its capacity.
func (n *node) hasGPUs() bool {
	if n.Metadata.Labels[gpu.NodeLabel] == "false" {
		return false
	}
	for _, s := range gpu.NodeSigns() {
		if s.Matches(n.Metadata.Labels) {
			return true
		}
	}
	return len(gpusOf(n.Status.Capacity)) > 0
}

func checkGPUNodes(f *Facts) []Finding {
	for i := range f.Nodes.Items {
		if f.Nodes.Items[i].hasGPUs() {
			return nil
		}
	}
	if f.Nodes.Err != nil {
		return nil
	}
	return []Finding{{"cluster", fmt.Sprintf("none of %d nodes has a label or a resource of NVIDIA GPUs: agents run nowhere", len(f.Nodes.Items))}}
}

func checkDevicePlugin(f *Facts) (out []Finding) {
	for i := range f.Nodes.Items {
		if n := &f.Nodes.Items[i]; n.hasGPUs() && len(gpusOf(n.Status.Allocatable)) == 0 {
			out = append(out, Finding{"Node " + n.Metadata.Name, "its labels tell of GPUs, and it offers none: no pod with a GPU can run on it"})
		}
	}
	return out
}
