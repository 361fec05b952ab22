// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	whatchanges "github.com/gpupilot/gpupilot/internal/autoscaler/explain"
)

// explainChanges writes what would change the last decision.
func explainChanges(out io.Writer, a *v1alpha1.GPUAutoscaler) {
	all, err := whatchanges.Changes(a)
	switch {
	case err != nil:
		fmt.Fprintf(out, "cannot determine what would change it: %v\n", err)
	case len(all) == 0:
		fmt.Fprintln(out, "no change of a single signal would change it")
	default:
		fmt.Fprintln(out, "what would change it, all else being equal:")
	}
	for _, x := range all {
		fmt.Fprintln(out, "  "+x)
	}
}
