// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// MaxNamed is the most fields that the objects of one namespace may name, and its queries, beside those that are kept
// of all GPUs.
const MaxNamed = 32

// Named are the fields that the objects of tenants name, by namespace. They are kept of the GPUs that pods of the
// namespace hold, and the namespace pays for them. Named does not change; nil: none is named.
type Named struct{ by map[string]gpu.FieldSet }

// NewNamed returns the named fields.
func NewNamed(by map[string]gpu.FieldSet) *Named { return &Named{maps.Clone(by)} }

// Of returns the fields that the objects of a namespace name.
func (n *Named) Of(namespace string) gpu.FieldSet {
	if n == nil {
		return gpu.FieldSet{}
	}
	return n.by[namespace]
}

// All returns the fields that any of them names.
func (n *Named) All() (set gpu.FieldSet) {
	if n != nil {
		for _, s := range n.by {
			set = set.Union(s)
		}
	}
	return set
}

// Equal reports whether the same fields are named.
func (n *Named) Equal(o *Named) bool {
	if n == nil || o == nil {
		n, o = cmp.Or(n, &Named{}), cmp.Or(o, &Named{})
	}
	return maps.Equal(n.by, o.by)
}

// tenants are the namespaces whose pods hold devices of a target, and what they name of it.
type tenants struct {
	named  *Named
	names  *Names
	owners []series.DeviceOwners // of the last page
	spaces []string              // of owners, sorted
	held   map[string][]string   // the namespaces of a device that name fields, sorted; by device
	again  bool                  // held has changed: the next page is parsed from scratch
}

// fieldsOf returns the fields that the objects and the queries of a namespace name.
func (x *tenants) fieldsOf(namespace string) gpu.FieldSet {
	return x.named.Of(namespace).Union(x.names.fieldsFor(namespace))
}

// setNamed sets the named fields.
func (x *tenants) setNamed(named *Named) {
	changed := slices.ContainsFunc(x.spaces, func(ns string) bool { return x.named.Of(ns) != named.Of(ns) })
	if x.named = named; changed {
		x.again = true
		x.find()
	}
}

// setOwners sets the owners of a page.
func (x *tenants) setOwners(list []series.DeviceOwners) {
	x.owners = list
	var spaces []string
	for i := range list {
		for j := range list[i].Owners {
			if ns := list[i].Owners[j].Namespace; len(spaces) == 0 || spaces[len(spaces)-1] != ns {
				spaces = append(spaces, ns)
			}
		}
	}
	slices.Sort(spaces)
	if spaces = slices.Compact(spaces); x.names.scopesOthers() && !slices.Equal(spaces, x.spaces) {
		x.again = true
	}
	x.spaces = spaces
	x.find()
}

// find finds who names fields of which device.
func (x *tenants) find() {
	var held map[string][]string
	for i := range x.owners {
		var of []string
		for j := range x.owners[i].Owners {
			ns := x.owners[i].Owners[j].Namespace // the owners are sorted by it
			if set := x.fieldsOf(ns); (len(of) == 0 || of[len(of)-1] != ns) && !set.Empty() {
				of = append(of, ns)
			}
		}
		if len(of) > 0 {
			if held == nil {
				held = map[string][]string{}
			}
			held[x.owners[i].Device] = of
		}
	}
	if !maps.EqualFunc(held, x.held, slices.Equal) {
		x.held, x.again = held, true
	}
}

// payer returns who pays for a field of a device that is not kept of all GPUs; empty: nobody names it.
func (x *tenants) payer(device string, f gpu.Index) string {
	for _, ns := range x.held[device] {
		if set := x.fieldsOf(ns); set.Has(f) {
			return ns
		}
	}
	return ""
}

// fields returns the fields of the target that tenants name.
func (x *tenants) fields() (set gpu.FieldSet) {
	for _, of := range x.held {
		for _, ns := range of {
			set = set.Union(x.fieldsOf(ns))
		}
	}
	return set
}

// size returns the bytes that are remembered. The names are those of the owners.
func (x *tenants) size() int64 {
	return int64(cap(x.owners))*(16+24) + int64(cap(x.spaces))*16 + int64(len(x.held))*2*(16+24+16)
}
