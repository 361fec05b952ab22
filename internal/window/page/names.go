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
	names  map[string]struct{}
	fields gpu.FieldSet // those of names, in any profile's name
	others []string     // of names, those that are no field's; sorted
}

// maxAskedNames is the number of names up to which an agent is asked for them only.
// With more, it is asked for its whole page.
const maxAskedNames = 100

// NewNames returns the names. If all is set, all series of agents and dcgm-exporters
// are kept, and of pods those of the names. A field's name in any profile stands for
// the field's series under the name that the target's page has.
func NewNames(all bool, list []string) *Names {
	n := &Names{all: all, names: make(map[string]struct{}, len(list))}
	for _, name := range list {
		if _, twice := n.names[name]; twice {
			continue
		}
		n.names[name] = struct{}{}
		if i, ok := fieldOf(name); ok {
			n.fields.Add(i)
		} else {
			n.others = append(n.others, name)
		}
	}
	slices.Sort(n.others)
	return n
}

func fieldOf(name string) (gpu.Index, bool) {
	if r, ok := names.Resolve(name); ok {
		return gpu.IndexOf(r.Field)
	}
	return 0, false
}

// has reports whether the series of a name are kept.
func (n *Names) has(name []byte) bool {
	if n == nil {
		return false
	}
	_, ok := n.names[string(name)]
	return ok
}

// Covers reports whether these names keep whatever the others keep.
func (n *Names) Covers(others *Names) bool {
	if others == nil || n != nil && n.all {
		return true
	}
	if n == nil || others.all {
		return false
	}
	for name := range others.names {
		if _, ok := n.names[name]; !ok {
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

// Asked returns the names to ask an agent for, beside those of fields. ok is false if
// its whole page is needed.
func (n *Names) Asked() (list []string, ok bool) {
	if n == nil {
		return nil, true
	}
	return n.others, !n.all && len(n.others) <= maxAskedNames
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
