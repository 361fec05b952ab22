// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// PrometheusRule is the kind of the Prometheus Operator's objects with rules.
var PrometheusRule = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"}

// ObjectsConfig holds the settings and the collaborators of Objects.
type ObjectsConfig struct {
	Selector labels.Selector             // of the objects
	Trusted  func(namespace string) bool // whether rules of a namespace may read and record series of all
	Manager  *Manager                    // is offered the rules
	Check    Checker
	// Read reads an object again; nil: there is none. Those that were refused are not kept.
	Read func(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error)
}

// Objects offers the rules of PrometheusRules. It is the handler of their watch. Run reads
// the rules.
type Objects struct {
	cfg ObjectsConfig

	mu      sync.Mutex
	refs    map[string]corev1.ObjectReference // by the source's ID
	changed map[string]change                 // by the source's ID
	queue   fair.Queue[string]                // the keys of changed
	wake    chan struct{}                     // of length 1
}

// change is the newest version of an object that has changed.
type change struct {
	*unstructured.Unstructured
	gone bool
}

// NewObjects returns no objects.
func NewObjects(cfg ObjectsConfig) *Objects {
	return &Objects{
		cfg: cfg, refs: map[string]corev1.ObjectReference{}, changed: map[string]change{}, wake: make(chan struct{}, 1),
	}
}

// OnAdd implements ResourceEventHandler.
func (o *Objects) OnAdd(obj any, _ bool) { o.note(obj, false) }

// OnUpdate implements ResourceEventHandler.
func (o *Objects) OnUpdate(_, obj any) { o.note(obj, false) }

// OnDelete implements ResourceEventHandler.
func (o *Objects) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	o.note(obj, true)
}

// note has Run read an object.
func (o *Objects) note(obj any, gone bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	id := ruleID(u)
	o.mu.Lock()
	if _, ok := o.changed[id]; !ok {
		o.queue.Put(fair.Namespace(u.GetNamespace()), id)
	}
	o.changed[id] = change{u, gone}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// readAgain is the interval at which objects that were refused are read again, if others
// have made room.
const readAgain = 5 * time.Second

// Run reads the objects that change, until ctx is done. It takes one object of each
// namespace in turn, and of an object the newest version only, because large objects take
// long to read. It offers objects again that were refused.
func (o *Objects) Run(ctx context.Context) {
	tick := time.NewTicker(readAgain)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			o.readAgain(ctx)
		default:
		}
		if c, ok := o.next(); ok {
			o.offer(c)
			continue
		}
		select {
		case <-ctx.Done():
		case <-o.wake:
		case <-tick.C:
			o.readAgain(ctx)
		}
	}
}

func (o *Objects) readAgain(ctx context.Context) {
	for _, id := range o.cfg.Manager.Waiting() {
		o.mu.Lock()
		ref, ok := o.refs[id]
		o.mu.Unlock()
		if u, err := o.cfg.Read(ctx, ref.Namespace, ref.Name); ok && err == nil && u != nil && u.GetUID() == ref.UID {
			o.offer(change{u, false})
		}
	}
}

// next returns a changed object. It reports false if there is none.
func (o *Objects) next() (c change, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, ok := o.queue.Take()
	c = o.changed[id]
	delete(o.changed, id)
	return c, ok
}

func (o *Objects) remove(id string) {
	o.mu.Lock()
	delete(o.refs, id)
	o.mu.Unlock()
	o.cfg.Manager.Remove(id)
}

func ruleID(u *unstructured.Unstructured) string {
	return "PrometheusRule/" + u.GetNamespace() + "/" + u.GetName()
}

// offer offers the rules of one object.
func (o *Objects) offer(u change) {
	s := &Source{ID: ruleID(u.Unstructured), Namespace: u.GetNamespace(), Created: u.GetCreationTimestamp().Time}
	if u.gone || !o.cfg.Selector.Matches(labels.Set(u.GetLabels())) {
		o.remove(s.ID)
		return
	}
	if o.cfg.Trusted(s.Namespace) {
		s.Namespace = ""
	}
	ref := corev1.ObjectReference{
		APIVersion: PrometheusRule.GroupVersion().String(), Kind: PrometheusRule.Kind,
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
	}
	o.mu.Lock()
	o.refs[s.ID] = ref
	o.mu.Unlock()
	var text []byte
	spec, _, err := unstructured.NestedMap(u.Object, "spec")
	if err == nil {
		text, err = yaml.Marshal(spec)
	}
	if err == nil {
		s.Groups, err = Parse(text, o.cfg.Check)
	}
	o.cfg.Manager.Set(s, err)
}

// ObjectProblem is a Problem with the object that it is about.
type ObjectProblem struct {
	About corev1.ObjectReference
	Problem
}

// Problems returns what is wrong with the objects now.
func (o *Objects) Problems() (list []ObjectProblem) {
	problems := o.cfg.Manager.Problems()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range problems {
		if ref, ok := o.refs[x.Source]; ok {
			list = append(list, ObjectProblem{ref, x})
		}
	}
	return list
}
