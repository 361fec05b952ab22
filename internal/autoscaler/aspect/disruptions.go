// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"slices"
	"strings"
	"sync"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/scale"
	evict "github.com/gpupilot/gpupilot/internal/scale/drain"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// maxBudgets bounds the PodDisruptionBudgets of a namespace that are evaluated. With more,
// what they allow is not known.
const maxBudgets = 64

// Disruptions knows the cluster's PodDisruptionBudgets. It is safe for concurrent use.
type Disruptions struct {
	mu          sync.RWMutex
	byNamespace map[string]map[string]budget
	listed      bool
}

type budget struct {
	selector labels.Selector
	allowed  int32
}

// SetListed says that all PodDisruptionBudgets were delivered once.
func (d *Disruptions) SetListed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed = true
}

// Changed handles a change of a PodDisruptionBudget. One whose selector cannot be read
// covers every pod of its namespace.
func (d *Disruptions) Changed(b *policyv1.PodDisruptionBudget, gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gone {
		delete(d.byNamespace[b.Namespace], b.Name)
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	x := budget{selector, b.Status.DisruptionsAllowed}
	if err != nil {
		x = budget{labels.Everything(), 0}
	}
	if b.Status.ObservedGeneration < b.Generation { // as the Eviction API does
		x.allowed = 0
	}
	if d.byNamespace == nil {
		d.byNamespace = map[string]map[string]budget{}
	}
	if d.byNamespace[b.Namespace] == nil {
		d.byNamespace[b.Namespace] = map[string]budget{}
	}
	d.byNamespace[b.Namespace][b.Name] = x
}

// apply adds to an observation what PodDisruptionBudgets allow.
func (d *Disruptions) apply(o *scale.Observation, namespace string, units *replica.Units) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := d.byNamespace[namespace]
	if !d.listed || len(all) > maxBudgets {
		o.DisruptionsLost = true
		return
	}
	if len(all) == 0 {
		return
	}
	byName := make(map[string]int, len(units.Pods))
	for at, pod := range units.Pods {
		byName[pod.Name] = at
	}
	for i := range o.Pods {
		r := &o.Pods[i]
		at, ok := byName[r.Name]
		if !ok {
			continue
		}
		for _, member := range units.Members(at) {
			for name, b := range all {
				if b.selector.Matches(labels.Set(member.Labels)) {
					r.Disrupts = append(r.Disrupts, name)
				}
			}
		}
		slices.Sort(r.Disrupts)
	}
	for name, b := range all {
		o.Disruptions = append(o.Disruptions, evict.Budget{Name: name, Allowed: b.allowed})
	}
	slices.SortFunc(o.Disruptions, func(a, b evict.Budget) int { return strings.Compare(a.Name, b.Name) })
}
