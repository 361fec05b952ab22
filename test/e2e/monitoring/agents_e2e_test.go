// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package monitoring

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/promtest"
)

const bin = "../../../bin"

// optional are the fields that the panels use and the built-in collectors lack:
// docs/monitoring.md has the same list.
var optional = []gpu.FieldID{
	gpu.SMActive, gpu.SMOccupancy, gpu.PowerViolation, gpu.ThermalViolation, gpu.ECCSBEVolatile, gpu.ECCDBEVolatile,
	gpu.RetiredPending, gpu.RowRemapPending, gpu.NVLinkCRCFlitErrors, gpu.NVLinkCRCDataErrors, gpu.NVLinkReplayErrors, gpu.NVLinkRecoveryErrors,
}

// builtIn are those that every profile's own file has.
var builtIn = []gpu.FieldID{
	gpu.SMClock, gpu.MemClock, gpu.MemoryTemp, gpu.GPUTemp, gpu.PowerUsage, gpu.TotalEnergy, gpu.PCIeReplayCounter,
	gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil, gpu.XIDErrors, gpu.FBFree, gpu.FBUsed, gpu.NVLinkBandwidth,
	gpu.UncorrRemappedRows, gpu.CorrRemappedRows, gpu.RowRemapFailure,
	gpu.GREngineActive, gpu.TensorActive, gpu.DRAMActive, gpu.PCIeTxBytes, gpu.PCIeRxBytes,
}

// node is a real agent with the fake NVML, and how Prometheus scrapes it.
type node struct {
	name    string // of the node and of the job
	profile names.Profile
	honor   bool // the scrape honours labels; if not, pods' labels are called exported_…
	library *agentrig.Library
	agent   *agentrig.Agent
}

// collectors is a collectors file with all fields in the profile's names.
func collectors(p names.Profile) string {
	var b strings.Builder
	for _, id := range append(append([]gpu.FieldID{}, builtIn...), optional...) {
		f, _ := gpu.Lookup(id)
		name, _ := p.Name(f)
		kind := "gauge"
		if f.Kind == gpu.Counter {
			kind = "counter"
		}
		fmt.Fprintf(&b, "%s, %s, x\n", name, kind)
	}
	return b.String() + "DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, x\n"
}

// healthy is the state before something happens. A GPU with row remapping does not
// support retired pages, which the agent would ask for again a minute later.
func healthy(seed int) string {
	return fmt.Sprintf("gpus 4\nseed %d\n", seed) + `gpu * util 0
gpu * fb_used 40960
gpu * nvlink_tx 1000000
gpu * retired_pending 0
gpu 3 util 90
gpu 3 gpm_gr 0.9
`
}

// broken is the same with all that an alert is for. GPU 0 is idle and allocated.
func broken(seed int) string {
	return healthy(seed) + `gpu 1 xid 48
gpu 1 xid 63
gpu 1 xid 13
gpu 2 xid 31
gpu 1 ecc_dbe_vol 3
gpu 1 ecc_sbe_vol 70
gpu 1 remap_failure 1
gpu 1 remap_pending 1
gpu 1 retired_pending 2
gpu 1 remapped_unc 2
gpu 1 clock_reasons 72
gpu 1 viol_thermal 9e12
gpu 1 viol_power 9e12
`
}

func startNode(t *testing.T, seed int, n *node) {
	t.Helper()
	dir := t.TempDir()
	n.library = agentrig.NVML(bin, dir)
	n.set(t, healthy(seed))
	csv := filepath.Join(dir, "collectors.csv")
	if err := os.WriteFile(csv, []byte(collectors(n.profile)), 0o600); err != nil {
		t.Fatal(err)
	}
	kubelet, err := agentrig.StartKubelet(filepath.Join(dir, "kubelet.sock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubelet.Stop)
	args := append([]string{"-f", csv, "--profile", string(n.profile), "--node-name", n.name}, kubelet.Args()...)
	n.agent, err = agentrig.Start(t.Context(), agentrig.Config{
		Binary: filepath.Join(bin, "gpupilot-agent"), Args: append(args, n.library.Args()...), Env: n.library.Env(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.agent.Stop() }) // the one that goes down has ended
	page := ""
	if err := n.agent.Await(t.Context(), patience, func(p string) bool {
		page = p
		return strings.Contains(p, `gpu="3"`)
	}); err != nil {
		t.Fatal(err)
	}
	grants := []agentrig.Grant{}
	for _, i := range []int{0, 3} {
		uuid := regexp.MustCompile(fmt.Sprintf(`gpu="%d",UUID="([^"]+)"`, i)).FindStringSubmatch(page)[1]
		grants = append(grants, agentrig.Grant{Namespace: "team", Pod: fmt.Sprintf("web-%d", i), Container: "main", Resource: "nvidia.com/gpu", DeviceID: uuid})
	}
	kubelet.Set(grants)
}

func (n *node) set(t *testing.T, state string) {
	t.Helper()
	if err := n.library.Set(state); err != nil {
		t.Fatal(err)
	}
}

// scrape is the node's part of a prometheus.yml. Without honor_labels the target has the
// exporter's own pod, as from a ServiceMonitor.
func (n *node) scrape() string {
	return fmt.Sprintf(`
- job_name: %q
  honor_labels: %v
  static_configs: [{targets: [%q], labels: {namespace: gpu-operator, pod: nvidia-dcgm-exporter-x7k2p, container: exporter}}]
`, n.name, n.honor, strings.TrimPrefix(n.agent.URL, "http://"))
}

// Every query of a panel and of a rule on GPUs finds series, in every profile, with and
// without honor_labels. Rules are asked while what they are for is the case.
func TestAgentsQueries(t *testing.T) {
	nodes := []*node{
		{name: "n48", profile: names.Profile48, honor: true},
		{name: "n482", profile: names.Profile482},
		{name: "n49", profile: names.Profile49},
		{name: "n1x", profile: names.Profile1x, honor: true},
	}
	down := &node{name: "down", profile: names.Profile48}
	rules, err := filepath.Abs(filepath.Join(chart, "rules"))
	if err != nil {
		t.Fatal(err)
	}
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [" + rules + "/*.yaml]\nscrape_configs:\n"
	for i, n := range append(nodes, down) {
		startNode(t, i, n)
		config += n.scrape()
	}
	p := server{promtest.Start(t, config)}
	p.await(t, "all targets", "count(up == 1) == 5 and count(count_over_time(gpupilot_backend_up[1m]) >= 3) == 5")
	for i, n := range nodes {
		n.set(t, broken(i))
	}
	if err := down.agent.Stop(); err != nil {
		t.Fatal(err)
	}

	p.awaitAll(t, append(panelsOfAgents(t, nodes), rulesOfAgents(t, nodes)...))

	// A GPU that cannot be read. Its other series are gone by then.
	for i, n := range nodes {
		n.set(t, broken(i)+"gpu 2 lost\n")
	}
	for _, n := range nodes {
		p.await(t, "GPULost on "+n.name, ruleNamed(t, "GPULost").Expr+fmt.Sprintf(" and on (node) label_replace(vector(1), \"node\", %q, \"\", \"\")", n.name))
	}
}
