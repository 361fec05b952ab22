// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// TestAgainstAPlainModel drives a target at random (devices come, fall silent
// and go, stamps jump) and compares every pod's range with what a list of all
// samples gives.
func TestAgainstAPlainModel(t *testing.T) {
	type row struct {
		at     int64
		value  map[string]float64
		holder map[string]string
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		const span = 30 * time.Second
		s := New(Config{Span: span, Interval: 100 * time.Millisecond})
		a := newTarget(t, s, "a")
		var rows []row
		holder := map[string]string{}
		now := t0
		for range 300 {
			now = now.Add(time.Duration(100+r.IntN(1000)) * time.Millisecond)
			if r.IntN(10) == 0 {
				holder[fmt.Sprint("G", r.IntN(6))] = fmt.Sprint("p", r.IntN(3))
			}
			var list []DeviceOwners
			for d, p := range holder {
				list = append(list, held(d, p))
			}
			a.own(now, list...)
			values, keys := map[string]float64{}, map[Key]float64{}
			for g := range 6 {
				if r.IntN(3) > 0 && (g != int(now.Unix()/40)%6) {
					d := fmt.Sprint("G", g)
					values[d] = float64(r.IntN(101))
					keys[util(d)] = values[d]
				}
			}
			a.put(now, keys)
			h := map[string]string{}
			for d, p := range holder {
				h[d] = p
			}
			rows = append(rows, row{now.UnixNano(), values, h})
		}
		for p := range 3 {
			pod := fmt.Sprint("p", p)
			var want []Sample
			for i, x := range rows {
				var g gathered
				for d, v := range x.value {
					if !slices.ContainsFunc(rows[i:], func(x row) bool { return x.holder[d] != pod }) { // it has held d since
						g.add(x.at, v)
					}
				}
				if v, ok := g.combine(gpu.Mean); ok && x.at >= now.Add(-span/2).UnixNano() {
					want = append(want, v)
				}
			}
			if got := podRange(s, "n-a", pod, gpu.GPUUtil, now.Add(-span/2), now); !slices.Equal(got, want) {
				t.Fatalf("seed %d %s:\n got %v\nwant %v", seed, pod, got, want)
			}
		}
		if used := a.columns.ring.Bytes(); used != s.Stats().Bytes {
			t.Fatalf("seed %d: metered %d bytes, has %d", seed, s.Stats().Bytes, used)
		}
	}
}

// TestReadersAndWriters is for the race detector.
func TestReadersAndWriters(t *testing.T) {
	s := New(Config{Span: 5 * time.Second, Interval: 10 * time.Millisecond})
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			name := fmt.Sprint("t", w)
			a := newTarget(t, s, name)
			for i := range 500 {
				at := sec(float64(i) / 10)
				a.own(at, held("G"+name, fmt.Sprint("p", i/50)))
				a.put(at, map[Key]float64{util("G" + name): float64(i % 100)})
				if i%100 == 99 {
					s.Drop(name)
					a = newTarget(t, s, name)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				pod := fmt.Sprint("p", i%10)
				s.Pod("ns", pod, gpu.GPUUtil, sec(float64(i%50)), time.Minute)
				podRange(s, fmt.Sprint("n-t", i%4), pod, gpu.GPUUtil, sec(0), sec(50))
				s.Devices("", []gpu.FieldID{gpu.GPUUtil}, sec(50), time.Minute)
				s.Forget("ns", pod, sec(1))
				s.Stats()
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// filled is a target like a node's: 8 GPUs, 4 fields, a full window.
func filled(tb testing.TB, s *Store, name string, slots int) (*Target, *Batch) {
	a := newTarget(tb, s, name)
	var batch Batch
	var list []DeviceOwners
	for g := range 8 {
		d := fmt.Sprintf("GPU-%s-%d", name, g)
		for _, f := range []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed, gpu.PowerUsage, gpu.SMActive} {
			r, _ := a.Ref(Key{Device: d, Field: f})
			batch.Add(r, float64(g))
		}
		list = append(list, held(d, fmt.Sprintf("%s-pod-%d", name, g/2)))
	}
	a.own(sec(0), list...)
	for i := range slots {
		a.Append(sec(float64(i)), &batch)
	}
	return a.Target, &batch
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	s := New(Config{Span: time.Minute})
	a, batch := filled(t, s, "n1", 100)
	i := 100
	f := func(what string, fn func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
	f("Append", func() { i++; a.Append(sec(float64(i)), batch) })
	f("Pod", func() { s.Pod("ns", "n1-pod-1", gpu.GPUUtil, sec(float64(i)), 5*time.Second) })
}

func BenchmarkAppend(b *testing.B) {
	s := New(Config{})
	a, batch := filled(b, s, "n1", 700)
	b.ReportAllocs()
	for i := range b.N {
		a.Append(sec(float64(700+i)), batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch.Points)), "ns/sample")
}

func BenchmarkPod(b *testing.B) {
	s := New(Config{})
	for n := range 100 {
		filled(b, s, fmt.Sprint("n", n), 61)
	}
	b.ReportAllocs()
	for i := range b.N {
		if _, ok := s.Pod("ns", fmt.Sprintf("n%d-pod-1", i%100), gpu.GPUUtil, sec(60), 5*time.Second); !ok {
			b.Fatal("absent")
		}
	}
}

func BenchmarkPodRange(b *testing.B) {
	s := New(Config{})
	filled(b, s, "n1", 601)
	b.ReportAllocs()
	for range b.N {
		if got := podRange(s, "n-n1", "n1-pod-1", gpu.GPUUtil, sec(540), sec(600)); len(got) != 61 {
			b.Fatal(len(got))
		}
	}
}

// TestPodsThatAreGoneLeaveNothing: pods come under ever new names, as those of
// a Deployment do, and nobody calls Forget.
func TestPodsThatAreGoneLeaveNothing(t *testing.T) {
	s := New(Config{Span: 10 * time.Second})
	a := newTarget(t, s, "a")
	for i := range 10_000 {
		a.own(sec(float64(i)), held("G0", fmt.Sprint("p", i)))
	}
	if n := s.Pods(); n > 2100 {
		t.Errorf("%d pods are known, of which one holds a device", n)
	}
	for i := range 10_000 {
		name := fmt.Sprint("t", i)
		b := newTarget(t, s, name)
		b.own(sec(float64(10_000+i)), held("G", fmt.Sprint("q", i)))
		s.Drop(name)
	}
	if n := s.Pods(); n > 2100 {
		t.Errorf("%d pods are known after their targets were dropped", n)
	}
}

// BenchmarkFleet is a tick of 10,000 nodes with 8 GPUs and 4 fields.
func BenchmarkFleet(b *testing.B) {
	const nodes = 10_000
	s := New(Config{Span: 15 * time.Second})
	targets := make([]*Target, nodes)
	batches := make([]*Batch, nodes)
	for i := range nodes {
		targets[i], batches[i] = filled(b, s, fmt.Sprint("n", i), 20)
	}
	b.ReportAllocs()
	tick := 20
	for b.Loop() {
		tick++
		for i, t := range targets {
			t.Append(sec(float64(tick)), batches[i])
		}
	}
	st := s.Stats()
	b.ReportMetric(float64(st.Bytes)/float64(st.Series)/16, "bytes/slot")
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric((float64(m.HeapAlloc)-float64(st.Bytes))/nodes, "other-bytes/node")
	runtime.KeepAlive(targets)
	runtime.KeepAlive(s)
}
