// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync/atomic"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// PodsConfig selects the pods to watch and the labels to keep.
type PodsConfig struct {
	Node   *Node // the node of the pods
	Labels bool  // keep labels
	// Allow limits the labels to keys that contain a match of one of the
	// expressions; empty: all labels.
	Allow []*regexp.Regexp
	Log   *slog.Logger
}

// errNotYet is the error until the first list.
var errNotYet = errors.New("the API server has not listed the pods yet")

// Pods watches a node's pods that have not ended.
type Pods struct {
	cfg   PodsConfig
	log   *slog.Logger // the goroutine of Run owns it
	f     follower
	all   map[gpu.PodName]gpu.Pod // the goroutine of Run owns it
	state atomic.Pointer[podsState]
}

type podsState struct {
	pods map[gpu.PodName]gpu.Pod // immutable; nil: never listed
	err  error
}

// NewPods returns a Pods that is empty until Run. A non-nil err is why there is
// no client; then it stays empty.
func NewPods(c *Client, err error, cfg PodsConfig) *Pods {
	p := &Pods{cfg: cfg}
	first := err
	if first == nil {
		first = errNotYet
	}
	p.state.Store(&podsState{err: first})
	if err != nil {
		return p
	}
	p.f = follower{
		c: c, path: "/api/v1/pods", metadata: true,
		reset: p.reset, change: p.change, state: p.note,
	}
	return p
}

// Run watches the pods until ctx is done.
func (p *Pods) Run(ctx context.Context) {
	if p.f.c == nil {
		return
	}
	p.cfg.Node.each(ctx, func(ctx context.Context, node string) {
		p.state.Store(&podsState{err: errNotYet})
		// A pod that ends leaves the selection: the watch reports it as
		// deleted.
		p.f.selector = "spec.nodeName=" + node + ",status.phase!=Succeeded,status.phase!=Failed"
		p.log = p.cfg.Log.With("node", node)
		p.f.run(ctx)
	})
}

// Pods returns the last known pods; nil before the first list. The error is why
// they may be out of date. The caller must not change the map.
func (p *Pods) Pods() (map[gpu.PodName]gpu.Pod, error) {
	s := p.state.Load()
	if errors.Is(s.err, errNotYet) {
		if err := p.cfg.Node.err(); err != nil {
			return nil, err
		}
	}
	return s.pods, s.err
}

func (p *Pods) reset(all []object) {
	p.all = make(map[gpu.PodName]gpu.Pod, len(all))
	for i := range all {
		p.all[nameOf(&all[i])] = p.pod(&all[i])
	}
	p.publish()
}

func (p *Pods) change(o object, there bool) {
	if o.Metadata.Name == "" { // a bookmark
		return
	}
	name := nameOf(&o)
	if there {
		p.all[name] = p.pod(&o)
	} else {
		delete(p.all, name)
	}
	p.publish()
}

func (p *Pods) publish() {
	p.state.Store(&podsState{pods: maps.Clone(p.all)})
}

func (p *Pods) note(err error) {
	was := p.state.Load()
	p.state.Store(&podsState{pods: was.pods, err: err})
	switch {
	case err != nil && (was.err == nil || errors.Is(was.err, errNotYet)):
		p.log.Warn("cannot watch the node's pods; the last known pods are kept", "err", err)
	case err == nil && was.err != nil && !errors.Is(was.err, errNotYet):
		p.log.Info("the node's pods are watched again")
	}
}

func nameOf(o *object) gpu.PodName {
	return gpu.PodName{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
}

// pod returns the wanted fields of a pod.
func (p *Pods) pod(o *object) gpu.Pod {
	out := gpu.Pod{UID: o.Metadata.UID}
	if !p.cfg.Labels {
		return out
	}
	keys := slices.Sorted(maps.Keys(o.Metadata.Labels))
	for _, k := range keys {
		if !p.allowed(k) {
			continue
		}
		name := LabelName(k)
		// Two keys can have the same name: the first in order gets it.
		if !slices.ContainsFunc(out.Labels, func(l gpu.PodLabel) bool { return l.Name == name }) {
			out.Labels = append(out.Labels, gpu.PodLabel{Name: name, Value: o.Metadata.Labels[k]})
		}
	}
	slices.SortFunc(out.Labels, func(a, b gpu.PodLabel) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (p *Pods) allowed(key string) bool {
	return len(p.cfg.Allow) == 0 || slices.ContainsFunc(p.cfg.Allow, func(r *regexp.Regexp) bool { return r.MatchString(key) })
}

// LabelName converts a pod label's key to the name of a metric's label, as
// dcgm-exporter does: every character except ASCII letters, digits and _
// becomes _. A key that starts with a digit gets a leading _.
func LabelName(key string) string {
	b := []byte(nil)
	for _, r := range key {
		switch {
		case r >= '0' && r <= '9' && len(b) == 0:
			b = append(b, '_', byte(r))
		case r == '_', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			b = append(b, byte(r))
		default:
			b = append(b, '_')
		}
	}
	return string(b)
}
