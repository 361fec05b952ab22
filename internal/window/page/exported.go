// SPDX-License-Identifier: Apache-2.0

package page

import (
	"slices"
	"strings"
)

// exportedPrefix is what a Prometheus puts before a label of a page that the target has
// too.
const exportedPrefix = "exported_"

// OwnerLabels are the labels of an exporter's series with the pod that holds the GPU.
var OwnerLabels = [...]string{"namespace", "pod", "container"}

// ExportedOwner returns the label of the owner that a Prometheus without honor_labels
// renames to name, such as pod for exported_pod; not ok for another name. Queries and
// rules that were written for such a Prometheus ask for the owner by these names.
func ExportedOwner(name string) (label string, ok bool) {
	label, ok = strings.CutPrefix(name, exportedPrefix)
	return label, ok && slices.Contains(OwnerLabels[:], label)
}

// Exported returns the name that a Prometheus without honor_labels gives a label.
func Exported(label string) string { return exportedPrefix + label }
