// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Problem is why a MetricQuery has no value now. Reason and Message are those of its
// condition Ready.
type Problem struct {
	Namespace, Name string
	UID             types.UID
	Reason, Message string
}

// Problems returns the MetricQueries without a value, sorted by namespace and name. One
// that was not evaluated yet has no problem.
func (k *Keeper) Problems() (out []Problem) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	now := time.Now()
	for key, e := range k.entries {
		_, v := e.answer(now)
		if v.reason == ReasonValue || v == notEvaluated {
			continue
		}
		out = append(out, Problem{key.Namespace, key.Name, e.object.UID, v.reason, v.message})
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out
}
