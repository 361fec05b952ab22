// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/samples"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
)

// podSeries are the series of the pods with GPUs, as kube-state-metrics exposes them.
// They are made from the pods for each query. The index of pods exists while queries
// use it.
type podSeries struct {
	s *Store

	mu     sync.Mutex
	active bool
	pods   map[claimKey]*podRecord
	sets   map[string]map[*podRecord]struct{} // by label and value
	gone   []*podRecord                       // deleted pods, by the time of their deletion
	budget podBudget
}

// podRecord is a pod with GPUs.
type podRecord struct {
	pod   *corev1.Pod
	keys  []string // in sets
	bytes int64    // that are charged to its namespace
	podSpan
}

// podSpan is the time in which a pod's series exist, [from, until) in ms since 1970,
// and their value.
type podSpan struct {
	from, until int64
	value       float64
}

func (p *podSeries) init(s *Store) {
	p.s = s
	p.budget.limit = s.cfg.PodBytes
	p.budget.reset()
}

// drop drops the index.
func (p *podSeries) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active, p.pods, p.sets, p.gone = false, nil, nil, nil
	p.budget.reset()
}

// prune drops the pods that were deleted before the window, and adds those that had no
// room if there is some now.
func (p *podSeries) prune(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := now.Add(-p.s.deps.Windows.Span()).UnixMilli()
	n := 0
	for n < len(p.gone) && p.gone[n].until < before {
		p.unlink(p.gone[n])
		n++
	}
	p.gone = slices.Delete(p.gone, 0, n)
	if p.active && p.budget.hasRoomAgain() {
		p.linkAll()
	}
}

// changed handles a change of a pod.
func (p *podSeries) changed(old, pod *corev1.Pod, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.active {
		return
	}
	if old != nil {
		k := claimKey{old.Namespace, old.Name}
		if r := p.pods[k]; r != nil {
			delete(p.pods, k)
			if pod == nil || pod.UID != old.UID {
				p.retire(r, now)
			} else {
				p.unlink(r)
			}
		}
	}
	if pod != nil {
		p.link(pod)
	}
}

// retire keeps a deleted pod for the rest of the window, if there is room.
func (p *podSeries) retire(r *podRecord, now time.Time) {
	r.until = now.UnixMilli()
	more := goneBytes + r.pod.Size()
	if !p.makeRoom(r.pod.Namespace, int64(more)) {
		p.unlink(r)
		return
	}
	r.bytes += int64(more)
	p.budget.add(r.pod.Namespace, int64(more))
	p.gone = append(p.gone, r)
}

// link adds a pod, if it has GPUs and there is room.
func (p *podSeries) link(pod *corev1.Pod) {
	if !hasGPUs(pod) {
		return
	}
	r := &podRecord{pod: pod, podSpan: podSpan{from: pod.CreationTimestamp.UnixMilli(), until: math.MaxInt64, value: 1}, bytes: recordBytes}
	k := claimKey{pod.Namespace, pod.Name}
	if before := p.pods[k]; before != nil {
		p.unlink(before)
		delete(p.pods, k)
	}
	r.keys = append(r.keys, setKey("namespace", pod.Namespace), setKey("pod", pod.Name))
	for _, l := range podLabels(pod) {
		r.keys = append(r.keys, setKey(l.Name, l.Value))
	}
	for _, key := range r.keys {
		r.bytes += keyBytes + int64(len(key))
	}
	if !p.makeRoom(pod.Namespace, r.bytes) {
		p.budget.refused++
		p.budget.short = true
		return
	}
	p.budget.add(pod.Namespace, r.bytes)
	p.pods[k] = r
	for _, key := range r.keys {
		if p.sets[key] == nil {
			p.sets[key] = map[*podRecord]struct{}{}
		}
		p.sets[key][r] = struct{}{}
	}
}

// makeRoom drops pods of the namespaces with the most until there is room for some
// bytes. It returns false if the namespace itself has the most.
func (p *podSeries) makeRoom(namespace string, bytes int64) bool {
	for p.budget.total+bytes > p.budget.limit {
		largest, most := p.budget.largest()
		if largest == namespace || most <= p.budget.bytes[namespace]+bytes || !p.dropOne(largest) {
			return false
		}
	}
	return true
}

// dropOne drops a pod of a namespace. It returns false if there is none.
func (p *podSeries) dropOne(namespace string) bool {
	for r := range p.sets[setKey("namespace", namespace)] {
		p.unlink(r)
		if k := (claimKey{namespace, r.pod.Name}); p.pods[k] == r {
			delete(p.pods, k)
			p.budget.refused++
			p.budget.short = true
		} else {
			p.gone = slices.DeleteFunc(p.gone, func(x *podRecord) bool { return x == r })
		}
		return true
	}
	return false
}

func (p *podSeries) unlink(r *podRecord) {
	for _, key := range r.keys {
		delete(p.sets[key], r)
		if len(p.sets[key]) == 0 {
			delete(p.sets, key)
		}
	}
	p.budget.add(r.pod.Namespace, -r.bytes)
}

func setKey(name, value string) string { return name + "\xff" + value }

// hasGPUs reports whether a pod requests GPUs. The pods in memory have no other
// resources.
func hasGPUs(pod *corev1.Pod) bool {
	has := func(c corev1.Container) bool { return len(c.Resources.Limits) > 0 }
	return len(pod.Spec.ResourceClaims) > 0 || slices.ContainsFunc(pod.Spec.Containers, has) || slices.ContainsFunc(pod.Spec.InitContainers, has)
}

// add adds the pods' series that a selection selects.
func (p *podSeries) add(sel *selection) {
	var wanted []podMetric
	for _, m := range podMetrics() {
		if sel.wants(m.name) {
			wanted = append(wanted, m)
		}
	}
	if len(wanted) == 0 || p.s.deps.Pods == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.activate()
	each := func(r *podRecord) {
		for _, m := range wanted {
			p.addSeries(sel, m, r)
		}
	}
	if few, ok := p.candidates(sel.matchers); ok {
		for r := range few {
			each(r)
		}
		return
	}
	for _, r := range p.pods {
		each(r)
	}
	for _, r := range p.gone {
		each(r)
	}
}

func (p *podSeries) activate() {
	if p.active {
		return
	}
	p.active, p.pods, p.sets = true, map[claimKey]*podRecord{}, map[string]map[*podRecord]struct{}{}
	p.linkAll()
}

// linkAll adds the pods that are not there.
func (p *podSeries) linkAll() {
	p.budget.short = false
	for _, pod := range p.s.deps.Pods.Select("", k8slabels.Everything()) {
		if r := p.pods[claimKey{pod.Namespace, pod.Name}]; r == nil || r.pod != pod {
			p.link(pod)
		}
	}
}

// candidates returns the pods that can have series that the matchers select. ok is
// false if all pods can.
func (p *podSeries) candidates(matchers []*labels.Matcher) (found map[*podRecord]struct{}, ok bool) {
	for _, m := range matchers {
		values, limited := valuesOf(m)
		if !limited || m.Name != "namespace" && m.Name != "pod" && !isPodLabel(m.Name) {
			continue
		}
		n := 0
		for _, v := range values {
			n += len(p.sets[setKey(m.Name, v)])
		}
		if ok && n >= len(found) {
			continue
		}
		ok, found = true, p.sets[setKey(m.Name, values[0])]
		if len(values) == 1 {
			continue
		}
		found = make(map[*podRecord]struct{}, n)
		for _, v := range values {
			for r := range p.sets[setKey(m.Name, v)] {
				found[r] = struct{}{}
			}
		}
	}
	return found, ok
}

func (p *podSeries) addSeries(sel *selection, m podMetric, r *podRecord) {
	if r.from > sel.to || r.until <= sel.from {
		return
	}
	m.each(r.pod, func(pairs []labels.Label, v float64) {
		pairs = append(pairs,
			labels.Label{Name: model.MetricNameLabel, Value: m.name}, labels.Label{Name: "namespace", Value: r.pod.Namespace},
			labels.Label{Name: "pod", Value: r.pod.Name}, labels.Label{Name: "uid", Value: string(r.pod.UID)},
			labels.Label{Name: "job", Value: p.s.cfg.Job}, labels.Label{Name: "instance", Value: p.s.cfg.Instance},
		)
		l := labels.New(pairs...).WithoutEmpty()
		if sel.matches(l, false) {
			sel.addVirtual(result{sel: sel, labels: l, pod: &podSpan{r.from, r.until, v}})
		}
	})
}

// samples appends the samples of a pod's series: one per interval, up to now.
func (p *podSpan) samples(dst []samples.Sample, sel *selection) []samples.Sample {
	step := sel.s.cfg.Interval.Milliseconds()
	first := max(sel.from, p.from)
	last := min(sel.to, p.until-1, sel.now.UnixMilli())
	if first > last {
		return dst
	}
	if sel.instant {
		if p.until <= sel.to {
			return dst
		}
		return append(dst, samples.Sample{T: last, V: p.value})
	}
	for t := last - (last-first)/step*step; t <= last; t += step {
		dst = append(dst, samples.Sample{T: t, V: p.value})
	}
	if p.until <= sel.to {
		dst = append(dst, samples.Sample{T: p.until, V: staleNaN()})
	}
	return dst
}
