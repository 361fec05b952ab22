// SPDX-License-Identifier: Apache-2.0

package page

import (
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Names are the metrics whose series queries read. They are kept with their labels,
// beside the fields and metrics that autoscalers read. Names do not change.
type Names struct {
	all    bool
	names  map[string][]string     // whose series: the namespaces, sorted; nil: all
	fields gpu.FieldSet            // those of names of all series, in any profile's name
	named  map[string]gpu.FieldSet // those of names of namespaces, by namespace
	others []string                // of names, those of all series that are no field's; sorted
	scopes []string                // of names, those of namespaces that are no field's; sorted
}

// maxAskedNames is the number of names up to which an agent is asked for them only.
// With more, it is asked for its whole page.
const maxAskedNames = 100

// NewNames returns the names. If all is set, all series of agents and dcgm-exporters
// are kept, and of pods those of the names. A field's name in any profile stands for
// the field's series under the name that the target's page has. Of the names in of, only the series of these
// namespaces are kept.
func NewNames(all bool, list []string, of map[string][]string) *Names {
	n := &Names{all: all, names: make(map[string][]string, len(list)+len(of)), named: map[string]gpu.FieldSet{}}
	for name, namespaces := range of {
		n.names[name] = namespaces
		i, ok := fieldOf(name)
		if !ok {
			n.scopes = append(n.scopes, name)
			continue
		}
		for _, ns := range namespaces {
			set := n.named[ns]
			set.Add(i)
			n.named[ns] = set
		}
	}
	for _, name := range list {
		if whose, twice := n.names[name]; twice && whose == nil {
			continue
		}
		n.names[name] = nil
		if i, ok := fieldOf(name); ok {
			n.fields.Add(i)
		} else {
			n.others = append(n.others, name)
		}
	}
	slices.Sort(n.others)
	slices.Sort(n.scopes)
	return n
}

// IsField reports whether a name is that of a GPU's field, in any profile.
func IsField(name string) bool {
	_, ok := fieldOf(name)
	return ok
}

func fieldOf(name string) (gpu.Index, bool) {
	if r, ok := names.Resolve(name); ok {
		return gpu.IndexOf(r.Field)
	}
	return 0, false
}

// has reports whether the series of a name are kept, of these namespaces.
func (n *Names) has(name []byte, namespaces []string) bool {
	if n == nil {
		return false
	}
	whose, ok := n.names[string(name)]
	return ok && (whose == nil || meet(whose, namespaces))
}

// hasField is has for a field, in any profile's name.
func (n *Names) hasField(f gpu.Index, namespaces []string) bool {
	return n.fields.Has(f) || slices.ContainsFunc(namespaces, func(ns string) bool {
		set := n.named[ns]
		return set.Has(f)
	})
}

func meet(sorted, some []string) bool {
	return slices.ContainsFunc(some, func(s string) bool {
		_, ok := slices.BinarySearch(sorted, s)
		return ok
	})
}

// fieldsFor returns the fields whose series are kept of a namespace.
func (n *Names) fieldsFor(namespace string) gpu.FieldSet {
	if n == nil {
		return gpu.FieldSet{}
	}
	return n.named[namespace]
}

// scoped reports whether some series are kept of namespaces only.
func (n *Names) scoped() bool { return len(n.named) > 0 || len(n.scopes) > 0 }

// scopesOthers reports that of series that are no field's.
func (n *Names) scopesOthers() bool { return n != nil && len(n.scopes) > 0 }

// Covers reports whether these names keep whatever the others keep.
func (n *Names) Covers(others *Names) bool {
	if others == nil || n != nil && n.all {
		return true
	}
	if n == nil || others.all {
		return false
	}
	for name, whose := range others.names {
		own, ok := n.names[name]
		if !ok || own != nil && (whose == nil || slices.ContainsFunc(whose, func(ns string) bool { return !slices.Contains(own, ns) })) {
			return false
		}
	}
	return true
}

// allOf reports whether all series of a page are kept. A pod's page is isPod.
func (n *Names) allOf(isPod bool) bool { return n != nil && n.all && !isPod }

// FieldsOf returns the fields to keep of an exporter of GPUs with these fields in use;
// empty: all.
func (n *Names) FieldsOf(inUse gpu.FieldSet) gpu.FieldSet {
	switch {
	case n == nil || inUse.Empty():
		return inUse
	case n.all:
		return gpu.FieldSet{}
	}
	return inUse.Union(n.fields)
}

// AskedByName reports whether an agent is asked for names. Otherwise its whole page is needed.
func (n *Names) AskedByName() bool {
	return n == nil || !n.all && len(n.others)+len(n.scopes) <= maxAskedNames
}

// Asked returns the names to ask an agent for whose GPUs these namespaces hold, beside those of fields.
func (n *Names) Asked(namespaces []string) []string {
	if n == nil {
		return nil
	}
	list := slices.Clone(n.others)
	for _, name := range n.scopes {
		if whose := n.names[name]; whose != nil && meet(whose, namespaces) {
			list = append(list, name)
		}
	}
	return list
}

// isReserved reports whether a page may not have series of this name. A scrape adds up
// and scrape_*, and the controller adds kube_*. A tenant chooses the page of a pod: it
// has no series of GPUs.
func isReserved(isPod bool, name []byte) bool {
	s := string(name)
	switch {
	case s == "up", s == "ALERTS", s == "ALERTS_FOR_STATE", strings.HasPrefix(s, "scrape_"), strings.HasPrefix(s, "kube_"):
		return true
	case !isPod:
		return false
	case strings.HasPrefix(s, "DCGM_"), strings.HasPrefix(s, "dcgm_"), strings.HasPrefix(s, "gpupilot_"):
		return true
	}
	_, field := names.Resolve(s)
	return field
}
