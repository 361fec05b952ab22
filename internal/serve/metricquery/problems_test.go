// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fine, silent, twin, wrong := query("a", "fine", 0), query("a", "silent", 1), query("a", "twin", 2), query("b", "wrong", 3)
		twin.Spec.MetricName = "fine"
		wrong.Spec.Query = nil
		r := newRig(t, fine, silent, twin, wrong)
		r.set("a/fine", 1)
		r.put(fine, false)
		r.put(silent, false)
		r.put(twin, false)
		r.put(wrong, false)
		problems := func() string {
			var all []string
			for _, p := range r.Problems() {
				if p.Message == "" || string(p.UID) != p.Namespace+"/"+p.Name {
					t.Errorf("%+v", p)
				}
				all = append(all, fmt.Sprintf("%s/%s %s", p.Namespace, p.Name, p.Reason))
			}
			return strings.Join(all, ", ")
		}
		if got, want := problems(), "a/silent NoValue, a/twin Conflict, b/wrong Invalid"; got != want {
			t.Errorf("the problems are %s, want %s", got, want)
		}
		r.set("a/silent", 1)
		r.put(wrong, true)
		r.put(fine, true) // its name is the other's then
		r.set("a/twin", 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := problems(); got != "" {
			t.Errorf("the problems are %s", got)
		}
	})
}
