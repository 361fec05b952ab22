// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"slices"
	"testing"
)

func TestClosest(t *testing.T) {
	f := func(name string, names []string, want ...string) {
		t.Helper()
		if got := Closest(name, names, 2); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	f("vllm:num_requests_runing", []string{"vllm:num_requests_waiting", "vllm:num_requests_running"}, "vllm:num_requests_running", "vllm:num_requests_waiting")
	f("QUEUE", []string{"queue", "queue", "queues", "quees", "kuehe"}, "queue", "queues")
	f("queue", []string{"queue", "utilization"})
	f("", []string{"queue"})
}

func FuzzClosest(f *testing.F) {
	f.Add("queue", "queues", "other")
	f.Fuzz(func(t *testing.T, name, a, b string) {
		got := Closest(name, []string{a, b, a}, 2)
		if slices.Contains(got, name) || len(got) > 2 || len(got) == 2 && got[0] == got[1] {
			t.Errorf("%q is like %q", name, got)
		}
		for _, x := range got {
			if x != a && x != b || len(x) > maxCompared {
				t.Errorf("%q is none of them", x)
			}
			if len(name) <= maxCompared && len(x) <= 4*len(name) && len(name)/4 == len(x)/4 && !slices.Contains(Closest(x, []string{name}, 1), name) {
				t.Errorf("%q is like %q, and not the other way round", x, name)
			}
		}
	})
}
