// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// Statistic returns a statistic of an object: of a workload, over its serving pods; of a
// pod, a node or a namespace, over its GPUs. The object exists. The error is an API
// status error. A requested field is scraped from then on.
func (m *Reader) Statistic(ctx context.Context, r schema.GroupResource, namespace, name string, q *stat.Request) (stat.Value, error) {
	if q.Metric == "" {
		m.deps.Fields.Request(q.Field, q.Now)
		if q.InUse == stat.ActiveGPU {
			m.deps.Fields.Request(gpu.GPUUtil, q.Now)
		}
	}
	x := newStatReader(&m.deps, q, isOverGPUs(r))
	switch r {
	case schema.GroupResource{Resource: "pods"}:
		if pod, ok := m.deps.Pods.Get(namespace, name); ok && replica.Serving(pod) {
			x.addDevicesOf(pod)
		}
		return x.result("GPUs"), nil
	case schema.GroupResource{Resource: "nodes"}:
		x.addNode(name)
		return x.result("GPUs"), nil
	case schema.GroupResource{Resource: "namespaces"}:
		for _, pod := range m.deps.Pods.Select(name, labels.Everything()) {
			if replica.Serving(pod) {
				x.addDevicesOf(pod)
			}
		}
		return x.result("GPUs"), nil
	}
	if m.deps.PodsOf == nil {
		return stat.Value{Reason: "its pods are not known"}, nil
	}
	pods, err := m.deps.PodsOf(ctx, nil, r, namespace, name)
	if err != nil {
		return stat.Value{}, err
	}
	if q.Metric != "" {
		for _, pod := range pods {
			if replica.Serving(pod) {
				x.addPod(pod, true)
			}
		}
		return x.result("serving pods"), nil
	}
	roster := m.rosters.take(rosterKey{namespace, r.String() + "/" + name}, q.Now)
	defer m.rosters.put(roster)
	roster.update(pods, m.deps.Devices)
	for i := range roster.members {
		x.addMember(&roster.members[i])
	}
	return x.result("serving pods"), nil
}

// statReader collects the values of one request.
type statReader struct {
	deps        *Deps
	q           *stat.Request
	field       *gpu.Field // nil: a pod's own metric
	reader      series.FieldReader
	utilization series.FieldReader // of the utilisation, for ActiveGPU

	stats        stat.Accumulator
	bounds       stat.Bounds
	expects      expects
	members      int // with a value, and missing ones
	missing      missing
	new          int       // members that became ready just now and have no value yet
	unmeasured   int       // GPUs without the field, and pods without the GPU
	idleAt       time.Time // the oldest time at which members were found idle, for ActiveGPU
	window, util series.Window
	samples      []series.Sample
	seen         map[deviceKey]bool // shared GPUs that were added
	uncombined   bool               // the field has no aggregation, and none was requested
}

type deviceKey struct{ node, device string }

// isOverGPUs reports whether the statistics of a resource are over GPUs, not over pods.
func isOverGPUs(r schema.GroupResource) bool {
	return r.Group == "" && (r.Resource == "pods" || r.Resource == "nodes" || r.Resource == "namespaces")
}

// newStatReader makes a reader. A field's default over pods is its LoadAgg, over GPUs
// its PodAgg.
func newStatReader(deps *Deps, q *stat.Request, overGPUs bool) *statReader {
	x := &statReader{deps: deps, q: q, expects: expects{deps.Store, deps.Devices, q.Now, q.MaxAge}}
	statistic := q.Stat
	if q.Metric == "" {
		x.reader = deps.Store.FieldReader(q.Field, q.Now, q.MaxAge)
		x.utilization = deps.Store.FieldReader(gpu.GPUUtil, q.Now, q.MaxAge)
		x.field, _ = gpu.Lookup(q.Field)
		if statistic.Kind == stat.Default {
			var ok bool
			how := x.field.LoadAgg
			if overGPUs {
				how = x.field.PodAgg
			}
			statistic, ok = stat.Of(how)
			x.uncombined = !ok
		}
	}
	x.stats.Reset(statistic)
	x.bounds = stat.BoundsOf(x.field, !overGPUs)
	return x
}

// lack adds a serving pod of a workload without a value or, of a namespace, its GPUs, if
// there should be one. Whether a pod of a namespace has GPUs must be known.
func (x *statReader) lack(pod *corev1.Pod, ofGPUs bool) {
	n, known := x.expects.gpus(pod)
	switch {
	case n == 0, ofGPUs && !known:
		return
	case x.expects.isNew(pod):
		x.new++
		return
	case !ofGPUs:
		n = 1
	}
	x.members += n
	x.missing.add(n, pod.Name, x.expects.whyNot(pod))
}

// since returns the start of the window for a pod: not before it served.
func (x *statReader) since(pod *corev1.Pod) time.Time {
	from := x.q.From()
	if from.IsZero() {
		return from
	}
	if phase, at := replica.PhaseOf(pod); phase == scale.Serving && at.After(from) {
		return at
	}
	return from
}

// addPod adds a serving pod's own metric as one member. All pods of a workload should have
// it; of a namespace, those that had it.
func (x *statReader) addPod(pod *corev1.Pod, ofWorkload bool) {
	x.samples = x.samples[:0]
	if x.q.Window > 0 {
		x.samples = append(x.samples, x.ownWindow(pod)...)
	} else if s, ok := x.deps.Store.PodMetric(pod.Namespace, pod.Name, x.q.Metric, x.q.Now, x.q.MaxAge); ok {
		x.samples = append(x.samples, s)
	}
	switch {
	case len(x.samples) > 0:
		x.members++
		x.stats.Add(x.samples)
	case ofWorkload && replica.IsWorker(pod), !ofWorkload && len(x.deps.Store.PodMetricRange(pod.Namespace, pod.Name, x.q.Metric, time.Unix(0, 0), x.q.Now)) == 0:
	case x.expects.isNew(pod):
		x.new++
	default:
		x.members++
		x.missing.add(1, pod.Name, "its metrics page cannot be read, or does not have it")
	}
}

// addMember adds the GPUs of a serving pod of a workload as one member.
func (x *statReader) addMember(m *member) {
	x.samples = x.samples[:0]
	if !m.serving {
		return
	}
	if !m.counted {
		m.holder.Devices = x.deps.Devices.MostOfPod(m.pod)
	}
	if m.holder.Devices == 0 {
		return // it has no GPU
	}
	if x.q.Window == 0 && x.q.GPU == "" && x.q.InUse != stat.ActiveGPU {
		if r, ok := x.reader.PodOn(&m.holder, &m.handle); ok {
			x.samples = append(x.samples, r.Sample)
		}
	} else {
		x.read(m.pod, &m.holder)
		if x.isIdle() {
			return
		}
		if len(x.window.Devices) > 0 && !slices.ContainsFunc(x.window.Devices, func(d series.DeviceWindow) bool { return x.q.IsSelected(&d) }) {
			x.unmeasured++ // it does not hold this GPU
			return
		}
		if x.q.Window > 0 {
			x.samples = x.window.Combine(x.samples, x.field.PodAgg, x.counts)
		} else if s, ok := x.window.CombineNewest(x.field.PodAgg, x.counts); ok {
			x.samples = append(x.samples, s)
		}
	}
	if len(x.samples) == 0 {
		x.lack(m.pod, false)
		return
	}
	x.members++
	x.stats.Add(x.samples)
}

// ownWindow returns a pod's own metric over the window; none if the newest value is too
// old.
func (x *statReader) ownWindow(pod *corev1.Pod) []series.Sample {
	all := x.deps.Store.PodMetricRange(pod.Namespace, pod.Name, x.q.Metric, x.since(pod), x.q.Now)
	if len(all) == 0 || x.q.Now.Sub(all[len(all)-1].At) > x.q.MaxAge {
		return nil
	}
	return all
}

// read reads the values of the pod's GPUs, and their utilisation if it is needed.
func (x *statReader) read(pod *corev1.Pod, h *series.Holder) {
	from := x.since(pod)
	x.reader.WindowOn(&x.window, h, from)
	if x.q.InUse == stat.ActiveGPU {
		x.utilization.WindowOn(&x.util, h, from)
	}
}

// counts reports whether the query is about a GPU.
func (x *statReader) counts(d *series.DeviceWindow) bool {
	return x.q.IsSelected(d) && (x.q.InUse != stat.ActiveGPU || x.isActive(d.Device))
}

// isActive reports whether a GPU was active within the window.
func (x *statReader) isActive(device string) bool {
	for i := range x.util.Devices {
		if d := &x.util.Devices[i]; d.Device == device {
			return wasActive(d)
		}
	}
	return false
}

// wasActive reports whether a GPU was active at one of the samples of its utilisation.
func wasActive(d *series.DeviceWindow) bool {
	return slices.ContainsFunc(d.Samples, func(s series.Sample) bool { return gpu.IsActive(s.Value) })
}

// mayBeActive reports whether the query is about active GPUs, and it is not known now
// whether this one is.
func (x *statReader) mayBeActive(d *series.DeviceWindow) bool {
	return x.q.InUse == stat.ActiveGPU && slices.ContainsFunc(x.util.Devices, func(u series.DeviceWindow) bool {
		return u.Device == d.Device && u.Measured && len(u.Samples) == 0
	})
}

// isIdle reports whether the query is about active GPUs, and all GPUs that were read
// are known to be idle. It records that.
func (x *statReader) isIdle() bool {
	if x.q.InUse != stat.ActiveGPU || len(x.util.Devices) == 0 {
		return false
	}
	var at time.Time
	for i := range x.util.Devices {
		d := &x.util.Devices[i]
		newest, ok := d.Newest()
		if !ok || x.isActive(d.Device) {
			return false
		}
		if at.IsZero() || newest.At.Before(at) {
			at = newest.At
		}
	}
	if x.idleAt.IsZero() || at.Before(x.idleAt) {
		x.idleAt = at
	}
	return true
}

// addDevicesOf adds each GPU of a serving pod as one member. A shared GPU whose value is
// the same for all its pods is added once.
func (x *statReader) addDevicesOf(pod *corev1.Pod) {
	if x.field == nil {
		x.addPod(pod, false)
		return
	}
	h := x.deps.Devices.Holder(pod)
	if h.Devices == 0 || pod.Spec.NodeName == "" {
		return
	}
	x.read(pod, &h)
	if len(x.window.Devices) == 0 { // its GPUs are not known
		x.lack(pod, true)
	}
	x.addDevices(pod, pod.Spec.NodeName, x.q.IsSelected)
}

// addDevices adds the GPUs that were read, of a serving pod or, without one, of a node.
func (x *statReader) addDevices(pod *corev1.Pod, node string, selects func(*series.DeviceWindow) bool) {
	if x.isIdle() {
		return
	}
	for i := range x.window.Devices {
		d := &x.window.Devices[i]
		unknown := x.mayBeActive(d)
		if !selects(d) || !unknown && !x.counts(d) {
			continue
		}
		if key := (deviceKey{node, d.Device}); d.Shared {
			if x.seen[key] {
				continue
			}
			if x.seen == nil {
				x.seen = map[deviceKey]bool{}
			}
			x.seen[key] = true
		}
		switch {
		case !d.Measured:
			x.unmeasured++
		case len(d.Samples) > 0 && !unknown:
			x.members++
			x.stats.Add(d.Samples)
		case pod != nil && x.expects.isNew(pod):
			x.new++
		default:
			x.members++
			x.missing.add(1, d.Device, "it has no value on node "+excerpt.Of(node, maxName))
		}
	}
}

// addNode adds each GPU of a node as one member.
func (x *statReader) addNode(node string) {
	if x.field == nil {
		return
	}
	x.reader.NodeWindow(&x.window, node, x.q.From())
	if x.q.InUse == stat.ActiveGPU {
		x.utilization.NodeWindow(&x.util, node, x.q.From())
	}
	x.addDevices(nil, node, func(d *series.DeviceWindow) bool {
		return x.q.IsSelected(d) && (x.q.InUse == stat.AnyGPU || x.isAllocated(node, d))
	})
}

// isAllocated reports whether a running pod of the node owns the GPU.
func (x *statReader) isAllocated(node string, d *series.DeviceWindow) bool {
	return slices.ContainsFunc(d.Owners(), func(o gpu.Owner) bool {
		pod, ok := x.deps.Pods.Get(o.Namespace, o.Pod)
		return ok && pod.Spec.NodeName == node && !replica.Finished(pod) && pod.DeletionTimestamp == nil
	})
}

// result returns the statistic. The members are pods or GPUs.
func (x *statReader) result(members string) stat.Value {
	v := stat.Value{Members: x.members, Have: x.stats.Members()}
	var ok bool
	v.Sample, v.Span, ok = x.stats.Value()
	switch lacking := x.members - v.Have; {
	case x.members == 0 && !x.idleAt.IsZero():
		// Every GPU is known to be idle, which is a measurement, not a gap.
		v.Sample = series.Sample{At: x.idleAt}
	case x.members == 0 && x.new > 0:
		v.Reason = fmt.Sprintf("its %s became ready just now, and have no value yet", members)
	case x.members == 0 && x.unmeasured > 0:
		v.Reason = fmt.Sprintf("none of its %d %s has a value from the last %s", x.unmeasured, members, x.q.MaxAge)
	case x.members == 0:
		v.Reason = "it has no " + members
	case !ok:
		v.Reason = fmt.Sprintf("none of its %d %s has a value from the last %s (%v)", x.members, members, x.q.MaxAge, &x.missing)
	case x.uncombined && x.members > 1:
		v.Reason = fmt.Sprintf("the values of its %d %s cannot be combined; name a statistic, such as :max", x.members, members)
	case x.stats.CanMislead(lacking, x.bounds):
		v.Reason = fmt.Sprintf("%d of its %d %s have no value from the last %s, and the others could look like less load (%v)",
			lacking, x.members, members, x.q.MaxAge, &x.missing)
	}
	return v
}
