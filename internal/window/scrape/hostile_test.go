// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// More values than a page may have are no partial sum.
func TestTooManyValues(t *testing.T) {
	x := newReader(t, Target{Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"}, Metrics: []page.Metric{{Key: "m", Name: "m"}}})
	var b strings.Builder
	for i := range 1<<14 + 1 {
		fmt.Fprintf(&b, "m{i=\"%d\"} 1\n", i)
	}
	x.now = x.now.Add(time.Second)
	if err := x.r.prepare(x.now); err != nil {
		t.Fatal(err)
	}
	x.r.keep([]byte(b.String()), x.now, x.now)
	if _, ok := x.store.PodMetric("ns", "p", "m", x.now, time.Second); ok || x.r.state.Err == nil {
		t.Errorf("a part of the values became a sum; error %v", x.r.state.Err)
	}
	if n := x.r.s.Stats().Failures["too_large"]; n != 1 {
		t.Errorf("%d failures too_large, want 1", n)
	}
}

// A metric of which a part does not fit has no value.
func TestAPartThatDoesNotFit(t *testing.T) {
	x := newReader(t, Target{Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"}, Metrics: []page.Metric{{Key: "m", Name: "m", By: "by"}}})
	x.read("m{by=\"a\"} 1\nm{by=\"" + strings.Repeat("x", 200) + "\"} 1\n")
	if v, ok := x.store.PodMetric("ns", "p", "m", x.now, time.Second); ok {
		t.Errorf("a part of the sum is its value: %v", v)
	}
	x.read("m{by=\"a\"} 1\nm{by=\"b\"} 2\n")
	x.read("m{by=\"a\"} 1\nm{by=\"b\"} 2\n")
	if v, ok := x.store.PodMetric("ns", "p", "m", x.now, time.Second); !ok || v.Value != 3 {
		t.Errorf("afterwards %v, %v; want 3", v, ok)
	}
}

// hostilePages are pages of a second, by what they attack.
var hostilePages = map[string]func(second int) string{
	"allocations": func(s int) string {
		return lines(16_384, func(i int) string {
			return fmt.Sprintf(`gpupilot_gpu_allocation_info{uuid="GPU-%d",namespace="ns",pod="p-%d-%d",container="c",replica=""} 1`, i%2048, s, i)
		})
	},
	"identities": func(s int) string {
		return lines(8192, func(i int) string { return fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{UUID="GPU-%d-%d"} 1`, s, i) })
	},
	"label values": func(s int) string {
		return lines(8192, func(i int) string {
			return fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{UUID="GPU-%d",namespace="ns",pod="p-%d-%d",container="c"} 1`, i%8, s, i)
		})
	},
	"shares": func(s int) string {
		return lines(8192, func(i int) string {
			return fmt.Sprintf(`gpupilot_pod_gpu_utilization_ratio{uuid="G",namespace="ns",pod="p-%d-%d",container="c"} 1`, s, i)
		})
	},
	"long names": func(s int) string {
		long := strings.Repeat("x", 20<<10)
		return lines(100, func(i int) string {
			return fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{UUID="%s-%d-%d",namespace="%[1]s",pod="%[1]s"} 1`, long[:[]int{120, 20 << 10 / 3}[i%2]], s, i)
		})
	},
	"other lines": func(s int) string {
		return lines(30_000, func(i int) string { return fmt.Sprintf(`x{a="%d-%d"} 1`, s, i) })
	},
}

func lines(n int, line func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
		b.WriteByte('\n')
	}
	return b.String()
}

// Whatever a page has, what is held for its target is bounded, and is in the
// account.
func TestHostilePagesAreBounded(t *testing.T) {
	for what, page := range hostilePages {
		x := newReader(t, Target{Kind: DCGM})
		before := heap()
		for i := range 6 {
			x.now = x.now.Add(time.Second)
			if err := x.r.prepare(x.now); err != nil {
				t.Fatal(err)
			}
			x.r.keep([]byte(page(i)), x.now, x.now)
		}
		st := x.store.Stats()
		used := heap() - before
		t.Logf("%-13s heap %5.1f MiB, account %5.1f MiB, of that the page %4.1f MiB; %d series, %d pods, refused %v",
			what, mib(used), mib(st.Memory), mib(x.r.size()), st.Series, x.store.Pods(), st.Refused)
		if float64(used) > 1.25*float64(st.Memory)+1<<18 {
			t.Errorf("%s: the heap has %.1f MiB more, the account says %.1f", what, mib(used), mib(st.Memory))
		}
		if st.Memory > 24<<20 || x.r.size() > 8<<20 {
			t.Errorf("%s: %.1f MiB are held for one target, %.1f of them for its page", what, mib(st.Memory), mib(x.r.size()))
		}
		if sum(st.Refused[:]) == 0 && what != "other lines" {
			t.Errorf("%s: nothing that was refused is counted", what)
		}
		if n := x.store.Pods(); n > 2*series.MaxOwners {
			t.Errorf("%s: %d pods are known", what, n)
		}
		x.store.Drop("t")
		if st := x.store.Stats(); st.Memory != 0 || x.store.Pods() != 0 {
			t.Errorf("%s: after the target was dropped %d bytes and %d pods are left", what, st.Memory, x.store.Pods())
		}
		runtime.KeepAlive(x)
	}
}

func sum(list []uint64) (n uint64) {
	for _, x := range list {
		n += x
	}
	return n
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Honest targets keep their windows beside hostile ones, pages and all.
func TestHonestTargetsBesideHostilePages(t *testing.T) {
	const seconds, honest = 35, 20
	store := series.New(series.Config{Span: 30 * time.Second, MaxBytes: 16 << 20})
	s := New(Config{}, Deps{Store: store, Log: slog.New(slog.DiscardHandler)})
	start := func(name string, kind Kind) *runner {
		r := &runner{s: s, phase: newPhase(&s.cfg, name), state: State{Name: name}}
		r.want.Store(&Target{Name: name, URL: parse("http://10.0.0.1:9400/metrics"), Kind: kind})
		return r
	}
	var good, bad []*runner
	var pages []func(int) string
	for what, page := range hostilePages {
		bad, pages = append(bad, start("bad "+what, DCGM)), append(pages, page)
	}
	for i := range honest {
		good = append(good, start(fmt.Sprint("good ", i), DCGM))
	}
	before := heap()
	for i := range seconds {
		now := t0.Add(time.Duration(i) * time.Second)
		give := func(r *runner, body []byte) {
			if err := r.prepare(now); err == nil {
				r.keep(body, now, now)
			}
		}
		for j, r := range bad {
			if i%7 == 0 { // reading such pages takes most of this test's time
				give(r, []byte(pages[j](i)))
			}
		}
		for j, r := range good {
			// A timestamp says that the values are new though they do not change.
			body := strings.ReplaceAll(string(pagetest.Node(j, 40)), "gpupilot_collection_timestamp_seconds ", "x ")
			body += fmt.Sprintf("gpupilot_collection_timestamp_seconds %d\n", now.Unix())
			if give(r, []byte(body)); r.state.Err != nil {
				t.Fatal(r.state.Err)
			}
		}
		if st := store.Stats(); st.Memory > st.Limit {
			t.Fatalf("%d bytes are above the limit at %d s", st.Memory, i)
		}
	}
	for j := range good {
		pod := fmt.Sprintf("pod-%d-3", j)
		if got := podSamples(store, pod, t0, t0.Add(time.Hour)); len(got) != 31 {
			t.Errorf("%s has %d of 31 samples", pod, len(got))
		}
	}
	st := store.Stats()
	used := heap() - before
	t.Logf("heap %.1f MiB, account %.1f MiB, limit %.1f MiB", mib(used), mib(st.Memory), mib(st.Limit))
	if used > st.Limit+8<<20 {
		t.Errorf("the heap has %.1f MiB", mib(used))
	}
	limited := store.Limited()
	if len(limited) == 0 || slices.ContainsFunc(limited, func(x series.Limited) bool { return strings.HasPrefix(x.Target, "good") }) {
		t.Errorf("limited: %+v", limited)
	}
	runtime.KeepAlive(bad)
}

// doer is a function that is a Doer.
type doer func(*http.Request) (*http.Response, error)

func (f doer) Do(r *http.Request) (*http.Response, error) { return f(r) }

// atEnd is a body that calls f when all of it was read.
type atEnd struct {
	io.Reader
	f func()
}

func (a *atEnd) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b)
	if err != nil {
		a.f()
	}
	return n, err
}

// The answer of a target that vanished while it arrived is not worked on.
func TestAVanishedTargetsAnswerIsDropped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	page := hostilePages["allocations"](0) + hostilePages["label values"](0)
	store := series.New(series.Config{})
	s := New(Config{}, Deps{Store: store, Log: slog.New(slog.DiscardHandler), Client: doer(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(&atEnd{strings.NewReader(page), cancel})}, nil
	})})
	r := &runner{s: s, phase: newPhase(&s.cfg, "t")}
	r.want.Store(&Target{Name: "t", URL: parse("http://10.0.0.1:9400/metrics"), Kind: DCGM})
	r.scrape(ctx)
	if st := store.Stats(); st.Samples > 0 || store.Pods() > 0 {
		t.Errorf("%d samples and %d pods of a target that is gone", st.Samples, store.Pods())
	}
}

func TestAdmit(t *testing.T) {
	var all []Target
	add := func(n int, kind Kind, namespace string) {
		for i := range n {
			all = append(all, Target{Name: fmt.Sprintf("%s/%d", namespace, i), Kind: kind, Labels: series.TargetLabels{Namespace: namespace}})
		}
	}
	add(10, Agent, "")
	add(50, Pod, "hostile")
	add(5, Pod, "a")
	add(8, Pod, "b")
	count := func(refused map[string]error) string {
		n := map[string]int{}
		for name := range refused {
			n[name[:strings.IndexByte(name, '/')]]++
		}
		return fmt.Sprint(n)
	}
	f := func(most int, want string) {
		t.Helper()
		if got := count(admit(all, func(string) bool { return false }, most)); got != want {
			t.Errorf("of %d targets %d: refused %s, want %s", len(all), most, got, want)
		}
	}
	f(73, "map[]")
	f(40, "map[hostile:33]")
	f(30, "map[b:1 hostile:43]")
	f(13, "map[a:4 b:7 hostile:49]")
	f(9, "map[:4 a:4 b:7 hostile:49]")
	running := func(name string) bool { return name >= "hostile/40" }
	refused := admit(all, running, 40)
	for i := 40; i < 50; i++ {
		if err := refused[fmt.Sprint("hostile/", i)]; err != nil {
			t.Errorf("a target that is scraped was refused: %v", err)
		}
	}
	want := "not scraped: namespace hostile has 50 targets, --window-memory has room for 17 of them: raise it"
	if err := refused["hostile/30"]; err == nil || err.Error() != want {
		t.Errorf("error %v\n want %s", err, want)
	}
}
