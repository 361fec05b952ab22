// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// naming is what a GPUAutoscaler names: fields beside those that are kept of all GPUs.
type naming struct {
	key     types.NamespacedName
	created metav1.Time
	fields  gpu.FieldSet
}

func namingOf(key types.NamespacedName, created metav1.Time, fields gpu.FieldSet) naming {
	return naming{key, created, fields.Minus(usage.AlwaysScraped())}
}

// nameFields returns the fields that namespaces name. Of a namespace that names too many, the fields of its oldest
// objects are kept; over says of the others what is not.
func nameFields(list []naming) (named *page.Named, over map[types.NamespacedName]string) {
	slices.SortFunc(list, func(a, b naming) int {
		return cmp.Or(a.created.Compare(b.created.Time), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.Namespace, b.key.Namespace))
	})
	by, over := map[string]gpu.FieldSet{}, map[types.NamespacedName]string{}
	for _, n := range list {
		set := by[n.key.Namespace]
		for i, f := range gpu.Fields() {
			at := gpu.Index(i)
			switch {
			case !n.fields.Has(at), set.Has(at):
			case set.Len() < page.MaxNamed:
				set.Add(at)
			case over[n.key] == "":
				over[n.key] = fmt.Sprintf("gpu.metric %s is not read: the older GPUAutoscalers of the namespace name %d other fields, which is the limit; use one of theirs, or remove signals", f.Name, page.MaxNamed)
			}
		}
		if !set.Empty() {
			by[n.key.Namespace] = set
		}
	}
	return page.NewNamed(by), over
}
