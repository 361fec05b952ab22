// SPDX-License-Identifier: Apache-2.0

// Package objective measures how well the slo of a GPUAutoscaler is kept, and reports it: in
// conditions, in the status, on the page and on /metrics.
//
// A Keeper counts the requests of one GPUAutoscaler from the counters and histograms of its
// pods. Its record is stored in the status, so that another controller continues with it.
package objective

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/requests"
)

// maxName bounds the name of a signal, in bytes.
const maxName = 100

// maxObjectives is the number of objectives of a GPUAutoscaler that are recorded.
const maxObjectives = 2

// encodeInterval is the shortest time between two encodings of a record.
const encodeInterval = 10 * time.Second

// Keeper counts the requests of the objectives of one GPUAutoscaler. The zero Keeper has no
// records. It is not safe for concurrent use.
type Keeper struct {
	kept     []*kept // those of the policy, in its order
	restored *v1alpha1.Memory
	encoded  []v1alpha1.RequestsRecord
	at       time.Time // of encoded
}

// kept is the record of one objective.
type kept struct {
	of     string // the name and the limits
	name   string // of the signal; unique
	source int    // the index in the policy
	meter  budget.Meter
	ledger budget.Ledger
	edges  requests.Edges
}

// of identifies an objective's counts: with other limits they are others. Two signals may
// have the same name.
func of(name string, s *scale.Signal) string {
	return fmt.Sprintf("%s %g/%g", name, s.FirstLimit, s.Limit)
}

// Observe counts the requests of the pods since the last observation.
func (k *Keeper) Observe(p *policy.Compiled, pods []*corev1.Pod, v requests.Values, now time.Time, maxAge time.Duration) {
	k.adopt(p, now)
	for _, x := range k.kept {
		x.observe(p.Sources[x.source].Misses, pods, v, now, maxAge)
	}
}

// adopt makes the records those of the policy's objectives. Records of others are dropped.
func (k *Keeper) adopt(p *policy.Compiled, now time.Time) {
	n := 0
	for i := range p.Sources {
		if p.Sources[i].Misses == nil || n == maxObjectives {
			continue
		}
		sig := &p.Policy.Signals[i]
		name := excerpt.Of(sig.Name, maxName)
		for other := 2; slices.ContainsFunc(k.kept[:n], func(x *kept) bool { return x.name == name }); other++ {
			name = fmt.Sprintf("%s (%d)", excerpt.Of(sig.Name, maxName-len(" (9)")), other)
		}
		id := of(name, sig)
		at := slices.IndexFunc(k.kept[n:], func(x *kept) bool { return x.of == id })
		if at < 0 {
			k.kept = slices.Insert(k.kept, n, &kept{of: id})
		} else {
			k.kept[n], k.kept[n+at] = k.kept[n+at], k.kept[n]
		}
		k.kept[n].source, k.kept[n].name = i, name
		n++
	}
	k.kept = k.kept[:n]
	if k.restored != nil {
		k.merge(k.restored, now)
		k.restored = nil
	}
}

// Restore continues with the record in a status, from the next observation on. The records
// of two controllers merge, so that a new leader lacks nothing.
func (k *Keeper) Restore(m *v1alpha1.Memory) { k.restored = m }

// Forget drops all records: they are about another target.
func (k *Keeper) Forget() { *k = Keeper{} }

func (k *Keeper) merge(m *v1alpha1.Memory, now time.Time) {
	for i := range m.Requests {
		at := slices.IndexFunc(k.kept, func(x *kept) bool { return x.of == m.Requests[i].Of })
		if at < 0 {
			continue
		}
		if l, err := budget.Decode(m.Requests[i].Data, now); err == nil {
			k.kept[at].ledger.Merge(l)
		}
	}
}

// Record returns the stored form. It changes every encodeInterval.
func (k *Keeper) Record(now time.Time) []v1alpha1.RequestsRecord {
	if since := now.Sub(k.at); since >= 0 && since < encodeInterval && len(k.encoded) > 0 {
		return k.encoded
	}
	k.at, k.encoded = now, nil
	for _, x := range k.kept {
		if b := x.ledger.Encode(); b != nil {
			k.encoded = append(k.encoded, v1alpha1.RequestsRecord{Of: x.of, Data: b})
		}
	}
	return k.encoded
}

// observe adds the requests of the pods since their last samples.
func (x *kept) observe(m *policy.Misses, pods []*corev1.Pod, v requests.Values, now time.Time, maxAge time.Duration) {
	var sum budget.Count
	var found requests.Edges
	for _, pod := range pods {
		s, e, ok := requests.Of(v, m, pod.Namespace, pod.Name, now, maxAge)
		if !ok {
			continue
		}
		found.Widen(&e)
		c := x.meter.Add(string(pod.UID), s)
		sum.Add(&c)
	}
	if found.Pods > 0 {
		x.edges = found
	}
	x.ledger.Add(now, sum)
	x.meter.Keep(len(pods), func(uid string) bool {
		return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == uid })
	})
}

// AddPace adds the rates of tokens, of requests and of misses to a pod's pace, and the requests and
// what they hold of the KV cache. read returns the value of a term, of counters the rate per second.
func AddPace(p *scale.Pace, m *policy.Misses, read func(policy.Term) (float64, bool)) {
	ended, ok1 := read(m.Ended)
	prompt, ok2 := read(m.PromptTokens)
	output, ok3 := read(m.OutputTokens)
	if !ok1 || !ok2 || !ok3 {
		return
	}
	aborted := 0.0
	for _, t := range m.Aborted {
		n, _ := read(t)
		aborted += n
	}
	if n, ok := read(m.Extra); ok {
		ended, aborted = ended+n, aborted+n
	}
	first, ok1 := overRate(m.First, 1, read)
	token, ok2 := overRate(m.Token, ended, read)
	if !ok1 || !ok2 {
		return
	}
	p.Counted, p.PromptTokensPerSecond, p.OutputTokensPerSecond = true, prompt, output
	p.EndedPerSecond, p.MissedPerSecond = ended, min(max(first, token, aborted), ended)
	p.CacheUse, _ = read(m.CacheUse)
	if running, ok := read(m.Running); ok {
		p.Running = running
		p.Waiting, _ = read(m.Waiting)
	}
}

// overRate returns the requests/s over a limit, at least. Of a histogram of tokens it is the
// share of the tokens, of some requests/s.
func overRate(list []policy.Histogram, requests float64, read func(policy.Term) (float64, bool)) (rate float64, ok bool) {
	for i := range list {
		count, hasCount := read(list[i].Count)
		above, hasAbove := read(list[i].Above)
		if !hasCount || !hasAbove {
			continue
		}
		over := max(0, count-above)
		if list[i].OfTokens {
			over *= requests / max(count, 1e-9)
		}
		return over, true
	}
	return 0, len(list) == 0
}

// learnedOf returns what the engine has learned for the signal at an index; nil: nothing.
func learnedOf(s *scale.State, i int, signal string) *promise.State {
	if i < len(s.Signals) && s.Signals[i].Name == signal {
		return &s.Signals[i].Promise
	}
	return nil
}
