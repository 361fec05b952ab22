// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// sharedPage has a page of GPUs: each string has the namespaces whose pods hold a GPU. One that is shared has no pod.
func sharedPage(gpus ...string) string {
	var b strings.Builder
	for g, of := range gpus {
		l := fmt.Sprintf(`UUID="G%d"`, g)
		if spaces := strings.Fields(of); len(spaces) == 1 {
			l += fmt.Sprintf(`,namespace="%s",pod="p",container="c"`, of)
		}
		for _, name := range []string{"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"} {
			fmt.Fprintf(&b, "%s{%s} 0.5\n", name, l)
		}
	}
	for g, of := range gpus {
		for _, ns := range strings.Fields(of) {
			fmt.Fprintf(&b, "gpupilot_gpu_allocation_info{uuid=\"G%d\",namespace=\"%s\",pod=\"p\",container=\"c\",replica=\"\"} 1\n", g, ns)
			fmt.Fprintf(&b, "gpupilot_other{uuid=\"G%d\",namespace=\"%s\",pod=\"p\"} 1\n", g, ns)
		}
	}
	return b.String()
}

// kept lists the namespaces that have a fresh value of a field.
func (x *reader) kept(f gpu.FieldID) (of []string) {
	for _, ns := range []string{"a", "b", "c"} {
		if _, ok := x.store.PodOn(series.Holder{Namespace: ns, Pod: "p", Devices: -1}, f, x.now, 500*time.Millisecond); ok {
			of = append(of, ns)
		}
	}
	return of
}

// A field that the objects of a namespace name is kept of the GPUs that its pods hold, wherever they move, and of no
// others.
func TestNamedFieldsAreKeptOfThoseWhoNameThem(t *testing.T) {
	named := page.NewNamed(map[string]gpu.FieldSet{"a": gpu.SetOf(gpu.SMActive)})
	for _, kind := range []Kind{Agent, DCGM} {
		target := Target{Kind: kind, Fields: gpu.SetOf(gpu.GPUUtil), Named: named}
		x := newReader(t, target)
		f := func(want string, series int, gpus ...string) {
			t.Helper()
			for i := range 3 {
				x.read(strings.ReplaceAll(sharedPage(gpus...), " 0.5", fmt.Sprint(" 0.", i+1)))
			}
			if got := strings.Join(x.kept(gpu.SMActive), " "); got != want {
				t.Errorf("kept of %s, want %s", got, want)
			}
			if got := strings.Join(x.kept(gpu.GPUUtil), " "); got == "" {
				t.Error("what is kept of all GPUs is not")
			}
			if st := x.store.Stats(); st.Series != series {
				t.Errorf("%d series, want %d", st.Series, series)
			}
		}
		f("a", 4, "a", "b", "")    // three of GPUUtil, one of SMActive
		f("a", 5, "", "a", "b")    // the pod of a has moved; its first GPU keeps its past
		f("a c", 6, "", "", "a c") // a GPU that a holds with another one
		f("", 6, "b", "", "c")     // the pod of a has gone
		want := *x.r.want.Load()   // the list has other names now
		want.Named = page.NewNamed(map[string]gpu.FieldSet{"b": gpu.SetOf(gpu.SMActive)})
		x.r.want.Store(&want)
		f("b", 6, "b", "", "c")
		f("", 6, "a", "", "c")
	}
}

// What queries of a namespace name is kept with its labels for the lines of its pods only; that of all namespaces is
// kept of all.
func TestNamesOfQueriesAreKeptOfTheirNamespaces(t *testing.T) {
	shown := func(names *page.Names, kind Kind, labels series.TargetLabels, text string) string {
		t.Helper()
		x := newReader(t, Target{Kind: kind, Labels: labels, Fields: gpu.SetOf(gpu.FBUsed)})
		x.r.s.SetNames(names)
		for range 3 {
			x.read(text)
		}
		var out []string
		for _, e := range x.r.series.Exposures(nil) {
			l := e.Labels.(interface{ Get(string) string })
			if name := l.Get("__name__"); e.Until == series.Open && !strings.HasPrefix(name, "scrape_") && name != "up" {
				out = append(out, name+"/"+l.Get("UUID")+l.Get("namespace"))
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	f := func(names *page.Names, want string) {
		t.Helper()
		if got := shown(names, Agent, series.TargetLabels{Node: "n"}, sharedPage("a", "b", "a c", "")); got != want {
			t.Errorf("shown are\n%s\nwant\n%s", got, want)
		}
	}
	of := map[string][]string{"gpupilot_other": {"c"}, "dcgm_sm_active": {"x"}, "DCGM_FI_PROF_SM_ACTIVE": {"a"}}
	f(page.NewNames(false, nil, of), "DCGM_FI_PROF_SM_ACTIVE/G0a DCGM_FI_PROF_SM_ACTIVE/G2 gpupilot_other/c")
	f(page.NewNames(false, []string{"gpupilot_other"}, of), "DCGM_FI_PROF_SM_ACTIVE/G0a DCGM_FI_PROF_SM_ACTIVE/G2 gpupilot_other/a gpupilot_other/a gpupilot_other/b gpupilot_other/c")
	f(page.NewNames(false, []string{"DCGM_FI_PROF_SM_ACTIVE"}, nil), "DCGM_FI_PROF_SM_ACTIVE/G0a DCGM_FI_PROF_SM_ACTIVE/G1b DCGM_FI_PROF_SM_ACTIVE/G2 DCGM_FI_PROF_SM_ACTIVE/G3")
	for _, ns := range []string{"a", "b"} {
		want := map[string]string{"a": "requests/a"}[ns]
		names := page.NewNames(false, nil, map[string][]string{"requests": {"a"}})
		if got := shown(names, Pod, series.TargetLabels{Namespace: ns, Pod: "p"}, "requests 1\n"); got != want {
			t.Errorf("of a pod of %s, %s is shown, want %s", ns, got, want)
		}
	}
}

// What one namespace names changes nothing for the nodes on which it has no pods: their pages are not learned again,
// and they are not asked for more.
func TestNamedFieldsLeaveOtherNodesAlone(t *testing.T) {
	target := Target{Kind: Agent, Fields: gpu.SetOf(gpu.GPUUtil)}
	asked := func(ns string) string {
		x := newReader(t, target)
		for range 3 {
			x.read(sharedPage("a", ""))
		}
		want := *x.r.want.Load()
		want.Named = page.NewNamed(map[string]gpu.FieldSet{ns: gpu.SetOf(gpu.SMActive)})
		x.r.want.Store(&want)
		if err := x.r.prepare(x.now); err != nil {
			t.Fatal(err)
		}
		return x.r.req.http.URL.String()
	}
	if q := asked("b"); !strings.Contains(q, "DCGM_FI_DEV_GPU_UTIL") || strings.Contains(q, "SM_ACTIVE") {
		t.Errorf("a node without pods of the namespace is asked for %q", q)
	}
	if q := asked("a"); q == "" || strings.Contains(q, "DCGM") {
		t.Errorf("a node with pods of the namespace is asked for %q, not for its whole page", q)
	}
}
