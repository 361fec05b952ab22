// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"maps"
	"slices"

	k8slabels "k8s.io/apimachinery/pkg/labels"
)

// Namespaces returns the namespaces that series can have, sorted: more than they have if
// the API server contradicts exporters. It is cheap, unlike the values of a label.
func (s *Store) Namespaces() []string {
	s.refresh()
	found := map[string]bool{}
	s.index.mu.RLock()
	for ns := range s.index.postings[postedNamespace] {
		found[ns] = true
	}
	s.index.mu.RUnlock()
	if s.deps.Pods != nil {
		for _, pod := range s.deps.Pods.Select("", k8slabels.Everything()) {
			if hasGPUs(pod) {
				found[pod.Namespace] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
