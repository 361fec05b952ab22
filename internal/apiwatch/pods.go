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

// PodsConfig says which pods to follow and what to keep of them.
type PodsConfig struct {
	Node   *Node // whose pods
	Labels bool  // keep labels
	// Allow limits the labels to those whose key one of them matches somewhere;
	// empty: all.
	Allow []*regexp.Regexp
	Log   *slog.Logger
}

// errNotYet is the error of the time before the first list.
var errNotYet = errors.New("the API server has not listed the pods yet")

// Pods are a node's pods that have not ended.
type Pods struct {
	cfg   PodsConfig
	log   *slog.Logger // the goroutine of Run owns it
	f     follower
	all   map[gpu.PodName]gpu.Pod // the goroutine of Run owns it
	state atomic.Pointer[podsState]
}

type podsState struct {
	pods map[gpu.PodName]gpu.Pod // nobody changes it any more; nil: never listed
	err  error
}

// NewPods makes a Pods that knows nothing until Run. err, if it is not nil, is
// why it never will: what a client could not be made for.
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

// Run follows the pods until ctx is done.
func (p *Pods) Run(ctx context.Context) {
	if p.f.c == nil {
		return
	}
	p.cfg.Node.each(ctx, func(ctx context.Context, node string) {
		p.state.Store(&podsState{err: errNotYet})
		// A pod that ends leaves the selection, which a watch tells as a deletion.
		p.f.selector = "spec.nodeName=" + node + ",status.phase!=Succeeded,status.phase!=Failed"
		p.log = p.cfg.Log.With("node", node)
		p.f.run(ctx)
	})
}

// Pods are the pods as they were last told; nil before the first time. The
// error is why that may not be true any more. Nobody changes what it returns.
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
		p.log.Warn("API server does not tell of the node's pods; what it told last stands", "err", err)
	case err == nil && was.err != nil && !errors.Is(was.err, errNotYet):
		p.log.Info("API server tells again of the node's pods")
	}
}

func nameOf(o *object) gpu.PodName {
	return gpu.PodName{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
}

// pod keeps what is wanted of a pod.
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
		// Two keys may become one name: the first in order has it.
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

// LabelName makes a metric's label name of a pod label's key, as dcgm-exporter
// does: what is not a letter of ASCII, a digit or _ becomes _. A name that would
// start with a digit gets one before it.
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
