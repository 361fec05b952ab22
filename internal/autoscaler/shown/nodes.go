// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// maxAge is the age up to which a device's value is on the page, together with the age.
const maxAge = 5 * time.Minute

// Pods finds a pod.
type Pods interface {
	Get(namespace, name string) (*corev1.Pod, bool)
}

// Nodes returns the nodes with their GPUs, sorted by name, and the GPUs by index. Values count up to fresh.
func Nodes(store *series.Store, devices *trust.Devices, pods Pods, now time.Time, fresh time.Duration) []view.Node {
	fields := []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp}
	nodes := []view.Node{}
	all := store.Devices("", fields, now, maxAge)
	values := make([]float64, 0, len(all)*(len(fields)+1)) // one allocation for all GPUs
	indexes := make([]int, 0, len(all))
	runs := make([]gpu.IdleRun, 0, len(all)) // in the order of the GPUs
	for i := range all {
		d := &all[i]
		node := d.Labels.Node
		if n := len(nodes); n == 0 || nodes[n-1].Name != node {
			nodes = append(nodes, view.Node{Name: node, GPUs: make([]view.GPU, 0, 8)})
		}
		last := &nodes[len(nodes)-1]
		if slices.ContainsFunc(last.GPUs, func(g view.GPU) bool { return g.UUID == d.Device }) {
			continue // an agent and a dcgm-exporter on one node
		}
		last.GPUs, runs = append(last.GPUs, gpuOf(d, now, fresh, &values, &indexes)), append(runs, d.Idle)
	}
	states := view.View{MaxAge: fresh}
	for i := range nodes {
		about := devices.About(nodes[i].Name)
		nodes[i].Pool, nodes[i].Model, nodes[i].Fault, nodes[i].FaultSince = about.Pool, about.Model, about.Fault, about.FaultSince
		for j := range nodes[i].GPUs {
			g := &nodes[i].GPUs[j]
			g.Lost = gpu.IsLost(about.Fault, g.UUID)
			setIdle(g, states.State(g), runs[0], pods)
			runs = runs[1:]
			if price.IsInstance(g.UUID) && (len(g.Owners) > 0 || g.Slices > 0) {
				var pod *corev1.Pod
				if len(g.Owners) > 0 {
					pod, _ = pods.Get(g.Owners[0].Namespace, g.Owners[0].Pod)
				}
				g.Share = about.Share(g.UUID, g.Slices, pod)
			}
			g.USDPerHour = price.Part(g.UUID, g.Share, about.Model, about.USDPerHour)
		}
		slices.SortStableFunc(nodes[i].GPUs, byIndex)
	}
	return nodes
}

// byIndex compares the indexes of two GPUs. One without an index comes last.
func byIndex(a, b view.GPU) int {
	last := math.MaxInt
	return cmp.Compare(*cmp.Or(a.Index, &last), *cmp.Or(b.Index, &last))
}

// WithSilent returns the nodes with those of exporters that have never answered this controller, by name: nothing else
// is known of them.
func WithSilent(nodes []view.Node, targets []view.Target, devices *trust.Devices) []view.Node {
	known := make(map[string]bool, len(nodes))
	for i := range nodes {
		known[nodes[i].Name] = true
	}
	for i := range targets {
		t := &targets[i]
		if t.Kind == view.KindPod || t.Node == "" || t.Up || !t.LastSuccess.IsZero() || !t.Starting.IsZero() || known[t.Node] {
			continue
		}
		known[t.Node] = true
		about := devices.About(t.Node)
		nodes = append(nodes, view.Node{Name: t.Node, GPUs: []view.GPU{}, Pool: about.Pool, Model: about.Model, Fault: about.Fault, FaultSince: about.FaultSince})
	}
	slices.SortFunc(nodes, func(a, b view.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// gpuOf converts a device for the page. Values that are more than fresh older than
// the newest one are left out, because the page shows only the newest age. The values
// are appended to values and indexes, which have room for them.
func gpuOf(d *series.DeviceView, now time.Time, fresh time.Duration, values *[]float64, indexes *[]int) view.GPU {
	g := view.GPU{UUID: d.Device, Slices: d.Slices, HeldSince: d.Since}
	if d.Index >= 0 {
		*indexes = append(*indexes, d.Index)
		g.Index = &(*indexes)[len(*indexes)-1]
	}
	var newest time.Time
	for i := range d.Values {
		if at := d.Values[i].At; at.After(newest) {
			newest = at
		}
	}
	if !newest.IsZero() {
		g.Age = max(0, now.Sub(newest))
	}
	keep := func(v float64) *float64 {
		*values = append(*values, v)
		return &(*values)[len(*values)-1]
	}
	value := func(f gpu.FieldID) *float64 {
		if s, ok := valueOf(d, f); ok && newest.Sub(s.At) <= fresh {
			return keep(s.Value)
		}
		return nil
	}
	g.Utilization, g.MemoryUsedMiB = value(gpu.GPUUtil), value(gpu.FBUsed)
	g.PowerWatts, g.TemperatureC = value(gpu.PowerUsage), value(gpu.GPUTemp)
	if free := value(gpu.FBFree); free != nil && g.MemoryUsedMiB != nil {
		g.MemoryTotalMiB = keep(*free + *g.MemoryUsedMiB)
	}
	if len(d.Owners) > 0 {
		g.Owners = make([]view.Owner, 0, len(d.Owners))
	}
	for _, o := range d.Owners {
		g.Owners = append(g.Owners, view.Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container})
	}
	return g
}

func valueOf(d *series.DeviceView, f gpu.FieldID) (series.Sample, bool) {
	for _, x := range d.Values {
		if x.Field == f {
			return x.Sample, true
		}
	}
	return series.Sample{}, false
}

// heldAfter is the time from a pod's place on a node within which an exporter usually says what it holds. A pod that got its
// place earlier held the GPU before: the exporter's list of owners had a gap.
const heldAfter = time.Minute

// setIdle sets since when a GPU is idle-held. The run of values without activity counts from the time at which the present
// owners got the GPU.
func setIdle(g *view.GPU, state view.State, run gpu.IdleRun, pods Pods) {
	since, atLeast, ok := run.Since()
	if state != view.Idle || !ok {
		return
	}
	if held := g.HeldSince; held.After(since) {
		since, atLeast = held, slices.ContainsFunc(g.Owners, func(o view.Owner) bool {
			at, ok := placedAt(pods, &o)
			return !ok || held.Sub(at) > heldAfter
		})
	}
	// Whole seconds, and none of the time before.
	g.IdleSince, g.IdleAtLeast = since.Add(time.Second-1).Truncate(time.Second).UTC(), atLeast
}

// placedAt returns when an owner got its place on a node.
func placedAt(pods Pods, o *view.Owner) (at time.Time, ok bool) {
	pod, ok := pods.Get(o.Namespace, o.Pod)
	if !ok {
		return at, false
	}
	return replica.ScheduledAt(pod)
}
