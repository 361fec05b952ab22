// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// No two policies share a name.
func TestUniqueNames(t *testing.T) {
	f := func(names, files, want []string) {
		t.Helper()
		var all []policy.Named
		for _, name := range names {
			all = append(all, policy.Named{Name: name})
		}
		UniqueNames(all, files)
		for i := range all {
			if all[i].Name != want[i] {
				t.Errorf("%q in %q is called %q, want %q", names[i], files[i], all[i].Name, want[i])
			}
		}
	}
	f([]string{"a", "b"}, []string{"x.yaml", "x.yaml"}, []string{"a", "b"})
	f([]string{"chat", "chat"}, []string{"one/slo.yaml", "gpu.yaml"}, []string{"chat (slo.yaml)", "chat (gpu.yaml)"})
	f([]string{"chat", "chat", "chat", "b"}, []string{"one/p.yaml", "two/p.yaml", "p.yaml", "p.yaml"},
		[]string{"chat (p.yaml)", "chat (p.yaml, 2)", "chat (p.yaml, 3)", "b"})
}
