// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ResolveFunc finds a custom resource by its group and its name in the singular or the
// plural. found is false if the API server does not serve it.
type ResolveFunc func(ctx context.Context, group, resource string) (k Kind, found bool, err error)

// maxCustom bounds the custom resources of a file.
const maxCustom = 100

// resolveTimeout bounds the requests about all of them.
const resolveTimeout = 10 * time.Second

// customKinds has the custom resources that a file's overrides name, as they are written
// there. Labels of series never select others: tenants choose labels.
type customKinds map[GroupResource]Kind

// Find implements Kinds.
func (c customKinds) Find(group, resource string) (Kind, bool) {
	if k, ok := (Builtin{}).Find(group, resource); ok {
		return k, true
	}
	k, ok := c[GroupResource{group, resource}]
	return k, ok
}

// customOf returns the resources of a file's overrides that are not built in, sorted.
func customOf(c *Config) []GroupResource {
	seen := map[GroupResource]bool{}
	for _, rules := range [][]DiscoveryRule{c.Rules, c.ExternalRules} {
		for i := range rules {
			for _, gr := range rules[i].Resources.Overrides {
				if _, ok := (Builtin{}).Find(gr.Group, gr.Resource); !ok && gr.Group != "" && gr.Resource != "" {
					seen[gr] = true
				}
			}
		}
	}
	out := slices.SortedFunc(maps.Keys(seen), func(a, b GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return out[:min(len(out), maxCustom)]
}

// String returns RESOURCE.GROUP.
func (gr GroupResource) String() string { return strings.Trim(gr.Resource+"."+gr.Group, ".") }

// resolve finds custom resources. One that the API server could not be asked about stays
// as it was before.
func resolve(ctx context.Context, find ResolveFunc, wanted []GroupResource, before customKinds) (customKinds, error) {
	out, failed := customKinds{}, error(nil)
	for _, gr := range wanted {
		k, found, err := find(ctx, gr.Group, gr.Resource)
		if err != nil {
			failed = fmt.Errorf("find the resource %s: %w", gr, err)
			k, found = before[gr]
		}
		if found {
			out[gr] = k
			// A template makes the label from the name in the plural.
			out[GroupResource{k.Group, k.Resource}] = k
		}
	}
	return out, failed
}

// Unchecked takes every resource with a group for one that the API server serves: for
// programs that have no API server to ask.
type Unchecked struct{}

// Find implements Kinds. The name of a custom resource is as written.
func (Unchecked) Find(group, resource string) (Kind, bool) {
	if k, ok := (Builtin{}).Find(group, resource); ok {
		return k, true
	}
	k := namespaced(group, resource, resource)
	return k, strings.Contains(group, ".") && resource != ""
}

// followCustom recompiles the rules if the API server now serves other custom
// resources of theirs than before.
func (s *Server) followCustom(ctx context.Context) {
	if s.cfg.Resolve == nil {
		return
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.loaded == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	next, err := resolve(ctx, s.cfg.Resolve, customOf(s.loaded), s.custom)
	if failed := err != nil; failed != s.unresolved {
		if s.unresolved = failed; failed {
			s.deps.Log.Warn("the API server cannot be asked about the custom resources of the adapter's rules, retrying", "err", err)
		} else {
			s.deps.Log.Info("the API server answers about the custom resources of the adapter's rules again")
		}
	}
	if maps.Equal(next, s.custom) {
		return
	}
	s.custom = next
	set, _ := Compile(s.loaded, next) // the mistakes are those of Load
	set.Warnings = append(slices.Clone(s.notes), set.Warnings...)
	s.rules.Store(set)
}
