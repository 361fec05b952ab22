// SPDX-License-Identifier: Apache-2.0

package hostlabel

import (
	"strings"
	"testing"
)

func TestOldHostLabel(t *testing.T) {
	f := func(query, want string) {
		t.Helper()
		if got := useOf(query); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	f(`avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL) > 90`, "avg by (Hostname) merges the GPUs of all nodes")
	f(`sum(max by (gpu, Hostname) (DCGM_FI_DEV_GPU_UTIL{pod!=""}))`, "max by (Hostname) merges")
	f(`DCGM_FI_DEV_GPU_UTIL * on (Hostname) group_left (x) kube_node_labels`, "on (Hostname) matches")
	f(`DCGM_FI_DEV_GPU_UTIL{Hostname="n1"}`, `Hostname="n1" selects no series`)
	f(`DCGM_FI_DEV_GPU_UTIL{hostname=~"n1|",Hostname=~"n1|"}`, "") // both labels
	f(`avg by (hostname) (DCGM_FI_DEV_GPU_UTIL)`, "")
	f(`avg without (Hostname) (DCGM_FI_DEV_GPU_UTIL)`, "")
	f(`avg by (Hostname) (node_load1)`, "")
	f(`avg by (`, "")
}

// FuzzOldHostLabel: any query is answered, and one without the label never has a use.
func FuzzOldHostLabel(f *testing.F) {
	f.Add(`avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)`)
	f.Add(`DCGM_FI_DEV_GPU_UTIL{Hostname="n1"} * on (Hostname) x`)
	f.Fuzz(func(t *testing.T, query string) {
		if use := useOf(query); use != "" && !strings.Contains(query, "ostname") && !strings.Contains(query, `\`) {
			t.Errorf("%q: %s", query, use)
		}
	})
}
