// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// recount adds up what a target takes from what it has, and checks the sum of each part.
func recount(t *Target) int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := targetBytes + int64(len(t.name)) + t.writer + t.failures.Bytes() + int64(t.account.paid.peak)*payerEntry
	for id := range t.account.paid.of {
		if !t.columns.series[id].live {
			panic("somebody pays for a series that is gone")
		}
	}
	for _, part := range []struct{ size, count int64 }{
		{t.columns.size(), countColumns(&t.columns)},
		{t.devices.size(), countDevices(&t.devices)},
		{t.holdings.size(), countHoldings(&t.holdings)},
		{t.exposed.size(), countExposures(&t.exposed)},
	} {
		mustBe("bytes of a part", part.size, part.count)
		n += part.count
	}
	return n
}

func mustBe[N int | int64](what string, kept, counted N) {
	if kept != counted {
		panic(fmt.Sprintf("%s: %d, counted %d", what, kept, counted))
	}
}

func countColumns(c *columns) int64 {
	n := c.ring.Bytes() // which its own test counts
	n += int64(cap(c.series))*seriesBytes + int64(c.metrics.peak)*idEntry
	if cap(c.free) > cap(c.series) {
		panic("a list of free ids has more than its room")
	}
	live, own := 0, 0
	for i := range c.series {
		if s := &c.series[i]; s.live {
			live++
			n += TextBytes(len(s.name))
			if s.own {
				own++
			}
		}
	}
	mustBe("live series", c.live, live)
	mustBe("ids", len(c.series), live+len(c.free))
	mustBe("a pod's own metrics", len(c.metrics.entries), own)
	return n
}

func countDevices(x *devices) int64 {
	n := int64(x.byUUID.peak) * deviceEntry
	owned, measured := 0, 0
	for uuid, d := range x.byUUID.entries {
		n += deviceBytes + TextBytes(len(uuid)) + int64(cap(d.fields))*fieldBytes + int64(cap(d.shares))*shareBytes + ownerBytes(d.owners)
		owned += min(len(d.owners), 1)
		measured += int(min(d.util, 1))
	}
	mustBe("owned devices", x.owned, owned)
	mustBe("measured devices", len(x.measured), measured)
	return n
}

func countHoldings(x *holdings) int64 {
	n := int64(x.pods.peak) * holdingEntry
	for k, h := range x.pods.entries {
		n += holdingBytes + TextBytes(len(k.pod)) + int64(cap(h.spans))*spanSize
		if len(h.spans) == 0 {
			panic("a pod without a device")
		}
	}
	return n
}

func countExposures(e *exposures) int64 {
	n := int64(cap(e.list)) * exposureBytes
	closed := 0
	for i := range e.list {
		n += TextBytes(int(e.list[i].Labels.ByteSize())) + 16
		if e.list[i].Until != Open {
			closed++
		}
	}
	mustBe("ended exposures", e.closed, closed)
	return n
}

// checkLedger compares the account with a count of everything.
func checkLedger(t testing.TB, s *Store) {
	t.Helper()
	var total, rings int64
	groups, paid := map[*group]int64{}, map[*ledger.Group]int64{}
	for _, g := range s.groups {
		groups[g] = 0
	}
	for _, a := range s.targets {
		n := recount(a)
		if got := a.account.bytes.Load(); got != n {
			t.Fatalf("target %s is charged %d bytes and has %d", a.name, got, n)
		}
		if got := a.facts.owned.Load(); int(got) != a.devices.owned {
			t.Fatalf("readers see %d owned devices of target %s, it has %d", got, a.name, a.devices.owned)
		}
		total += n
		rings += a.columns.ring.Bytes()
		groups[a.account.group] += n - a.account.paidBytes.Load()
		for _, x := range a.paidAccounts(nil) {
			paid[x.Group] += x.Bytes
		}
	}
	st := s.Stats()
	if st.Memory != total || st.Bytes != rings {
		t.Fatalf("the account has %d bytes, %d of samples; the targets have %d, %d", st.Memory, st.Bytes, total, rings)
	}
	if st.Memory > st.Limit {
		t.Fatalf("%d bytes are above the limit of %d", st.Memory, st.Limit)
	}
	for g, n := range groups {
		if got := g.Bytes(); got != n+paid[&g.Group] {
			t.Fatalf("a group is charged %d bytes and has %d", got, n)
		}
	}
}

// FuzzLedger plays random targets, series, appends, owners and drops.
func FuzzLedger(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed, uint32(1<<(12+seed%10)))
	}
	f.Add(uint64(69), uint32(8123)) // series are freed under a limit that is used up
	f.Fuzz(func(t *testing.T, seed uint64, limit uint32) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := New(Config{Span: 20 * time.Second, MaxBytes: int64(limit%(8<<20)) + 1})
		now := 0.0
		targets := map[string]*Target{}
		for range 150 {
			now += r.Float64() * 2
			name := fmt.Sprint("t", r.IntN(6))
			a := targets[name]
			if a == nil || r.IntN(20) == 0 {
				l := TargetLabels{Node: fmt.Sprint("n", r.IntN(3))}
				if r.IntN(2) == 0 {
					l.Namespace, l.Pod = fmt.Sprint("ns", r.IntN(2)), name
				}
				a = s.Target(name, l)
				targets[name] = a
			}
			switch r.IntN(11) {
			case 8:
				a.Fail(sec(now))
			case 9, 10:
				a.Expose(sec(now), randomExposed(r, a))
			case 0:
				s.Drop(name)
				delete(targets, name)
			case 1:
				a.Account(int64(r.IntN(1 << uint(r.IntN(18)))))
			case 2, 3:
				shape := func(d int) []string {
					return []string{fmt.Sprint(r.IntN(30)), fmt.Sprint(30 + r.IntN(3))}[:r.IntN(3)]
				}
				a.SetOwners(sec(now), claims(fmt.Sprint(r.IntN(3)), r.IntN(1<<uint(r.IntN(8))), shape))
			case 4:
				s.Forget("ns", fmt.Sprint(r.IntN(3), r.IntN(30)), sec(now))
			default:
				a.Append(sec(now-float64(r.IntN(20)/19*10)), randomBatch(r, a))
			}
			checkLedger(t, s)
		}
		for name := range targets {
			s.Drop(name)
		}
		s.forgetPayers()
		if st := s.Stats(); st.Memory != 0 || st.Bytes != 0 || st.Series != 0 || st.Limited != 0 || s.Pods() != 0 || len(s.groups) != 0 {
			t.Fatalf("after all were dropped: %+v, %d pods, %d groups", st, s.Pods(), len(s.groups))
		}
	})
}

// textLabels are Labels in the form of a test.
type textLabels string

func (l textLabels) ByteSize() uint64 { return uint64(len(l)) }

func randomExposed(r *rand.Rand, a *Target) (list []Exposed) {
	first := r.IntN(1 << uint(r.IntN(6)))
	for i := range r.IntN(1 << uint(r.IntN(8))) {
		text := fmt.Sprint("x", first+i, strings.Repeat("x", r.IntN(40)/39*r.IntN(2*maxLabelBytes)))
		if ref, ok := a.Ref(Key{Line: text}); ok {
			list = append(list, Exposed{Labels: textLabels(text), Ref: ref, Scale: 1})
		}
	}
	return list
}

func randomBatch(r *rand.Rand, a *Target) *Batch {
	var b Batch
	first := r.IntN(1 << uint(r.IntN(10)))
	for i := range r.IntN(1 << uint(r.IntN(8))) {
		k := Key{Device: fmt.Sprint("GPU-", (first+i)/4), Field: []gpu.FieldID{gpu.GPUUtil, gpu.FBUsed, gpu.PowerUsage, gpu.TotalEnergy}[i%4]}
		switch r.IntN(6) {
		case 0:
			k = Key{Metric: fmt.Sprint("m", first+i)}
		case 1:
			k.Pod = fmt.Sprint("ns/p", r.IntN(40))
		case 2:
			k.PaidBy = fmt.Sprint("ns", r.IntN(4))
		}
		if ref, ok := a.Ref(k); ok {
			b.Add(ref, []float64{r.Float64(), float64(r.IntN(101)), float64(r.IntN(101))}[r.IntN(3)])
		}
	}
	return &b
}

// honestPage are the series of 8 GPUs with 40 fields, as Refs of a target.
func honestPage(tb testing.TB, a *Target) *Batch {
	var b Batch
	ids := []gpu.FieldID{gpu.GPUUtil}
	for _, f := range gpu.Fields() {
		if f.Kind != gpu.Label && f.ID != gpu.GPUUtil && len(ids) < 40 {
			ids = append(ids, f.ID)
		}
	}
	for g := range 8 {
		for _, f := range ids {
			r, ok := a.Ref(Key{Device: fmt.Sprintf("GPU-%s-%d", a.name, g), Field: f})
			if !ok {
				tb.Errorf("honest target %s: a series was refused", a.name)
			}
			b.Add(r, float64(g))
		}
	}
	return &b
}

// TestHonestWindowsStayWhole: whatever hostile targets do, honest ones keep all
// of their window, the account stays below the limit and is true.
func TestHonestWindowsStayWhole(t *testing.T) {
	const span, honest, rounds = 30, 100, 45
	churn := func(a *Target, i int) *Batch { // new UUIDs each second
		var b Batch
		for d := range 160 {
			for _, f := range []gpu.FieldID{gpu.GPUUtil, gpu.TotalEnergy} {
				if r, ok := a.Ref(Key{Device: fmt.Sprint("GPU-", i, "-", d), Field: f}); ok {
					b.Add(r, 1)
				}
			}
		}
		return &b
	}
	labels := func(a *Target, i int) *Batch { // new pods' shares each second
		var b Batch
		for p := range 320 {
			if r, ok := a.Ref(Key{Device: "G0", Field: gpu.GPUUtil, Pod: fmt.Sprintf("ns/p-%d-%d", i, p)}); ok {
				b.Add(r, 1)
			}
		}
		return &b
	}
	many := func(a *Target, i int) *Batch { // as many series as go
		var b Batch
		fields := gpu.Fields()
		for d := range 16 {
			for j := range fields {
				if r, ok := a.Ref(Key{Device: fmt.Sprint("GPU-", d), Field: fields[j].ID}); ok {
					b.Add(r, 1)
				}
			}
		}
		return &b
	}
	owners := func(a *Target, i int) *Batch { // other owners each second
		a.SetOwners(sec(float64(i)), claims(fmt.Sprintf("%0200d", i), 160, func(d int) []string {
			return []string{fmt.Sprintf("%04d-0", d), fmt.Sprintf("%04d-1", d), fmt.Sprintf("%04d-2", d)}
		}))
		return &Batch{}
	}
	attacks := []func(*Target, int) *Batch{churn, labels, many, owners}
	for _, hostile := range []int{1, 10, 50} {
		t.Run(fmt.Sprint(hostile), func(t *testing.T) {
			before := heap()
			s := New(Config{Span: span * time.Second, MaxBytes: 18 << 20})
			var good, bad []*Target
			for i := range hostile {
				bad = append(bad, s.Target(fmt.Sprint("bad", i), TargetLabels{Node: fmt.Sprint("bad", i)}))
			}
			batches := map[*Target]*Batch{}
			for i := range rounds {
				// The hostile ones come first, and more honest ones come as time goes.
				for j, a := range bad {
					if hostile == 50 && (i+j)%3 > 0 {
						continue // it would only take longer
					}
					a.Append(sec(float64(i)), attacks[j%len(attacks)](a, i))
				}
				for len(good) < honest*(i+5)/15 && len(good) < honest {
					name := fmt.Sprint("good", len(good))
					a := s.Target(name, TargetLabels{Node: name})
					a.SetOwners(sec(float64(i)), []DeviceOwners{held("GPU-"+name+"-0", name)})
					batches[a] = honestPage(t, a)
					good = append(good, a)
				}
				for _, a := range good {
					if unknown, err := a.Append(sec(float64(i)), batches[a]); unknown > 0 || err != nil {
						t.Fatalf("%s at %d s: %d unknown, %v", a.name, i, unknown, err)
					}
				}
				if st := s.Stats(); st.Memory > st.Limit {
					t.Fatalf("%d bytes at %d s are above the limit", st.Memory, i)
				}
			}
			for _, a := range good {
				if got := podRange(s, a.name, a.name, gpu.GPUUtil, sec(0), sec(rounds)); len(got) != span+1 {
					t.Fatalf("%s has %d of %d samples", a.name, len(got), span+1)
				}
			}
			checkLedger(t, s)
			st := s.Stats()
			if used := heap() - before; used > st.Limit+8<<20 || float64(used) > 1.25*float64(st.Memory) || float64(used) < 0.5*float64(st.Memory) {
				t.Errorf("the heap has %d bytes, the account says %d, the limit is %d", used, st.Memory, st.Limit)
			} else {
				t.Logf("heap %.1f MiB, account %.1f MiB, limit %.1f MiB", mib(used), mib(st.Memory), mib(st.Limit))
			}
			named := s.Limited()
			if hostile == 50 && len(named) < hostile/2 {
				t.Errorf("%d of %d hostile targets are named", len(named), hostile)
			}
			for _, a := range good {
				if slices.ContainsFunc(named, func(x Limited) bool { return x.Target == a.name }) {
					t.Errorf("%s is limited and honest", a.name)
				}
			}
			runtime.KeepAlive(batches)
		})
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A namespace's pods pay as one: 2,000 pods of one do not take what the others
// need.
func TestANamespacePaysAsOne(t *testing.T) {
	s := New(Config{Span: time.Minute, MaxBytes: 8 << 20})
	pod := func(ns, name string) *Target {
		return s.Target(ns+"/"+name, TargetLabels{Namespace: ns, Pod: name, Node: "n"})
	}
	page := func(a *Target) *Batch {
		var b Batch
		for m := range 5 {
			if r, ok := a.Ref(Key{Metric: fmt.Sprint("m", m)}); ok {
				b.Add(r, 1)
			}
		}
		return &b
	}
	const writer = 16 << 10
	for i := range 90 {
		for j := range 2000 {
			a := pod("hostile", fmt.Sprint(j))
			if a.Account(writer) {
				a.Append(sec(float64(i)), page(a))
			}
		}
		for j := range 20 {
			a := pod(fmt.Sprint("team", j), "p")
			if !a.Account(writer) {
				t.Fatalf("an honest pod was refused at %d s", i)
			}
			if _, err := a.Append(sec(float64(i)), page(a)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for j := range 20 {
		if got := s.PodMetricRange(fmt.Sprint("team", j), "p", "m0", sec(0), sec(100)); len(got) != 61 {
			t.Errorf("team%d has %d of 61 samples", j, len(got))
		}
	}
	checkLedger(t, s)
	for _, x := range s.Limited() {
		if x.Labels.Namespace != "hostile" {
			t.Errorf("%s is limited", x.Target)
		}
	}
	if len(s.Limited()) == 0 {
		t.Error("nobody is limited")
	}
}

// Identities that come once are freed when they outnumber what pages carry, not
// a window later.
func TestChurnedIdentitiesAreFreedSoon(t *testing.T) {
	s := New(Config{})
	a := newTarget(t, s, "a")
	for i := range 400 {
		var b Batch
		for d := range 8 {
			r, ok := a.Ref(util(fmt.Sprintf("GPU-%d-%d", i, d)))
			if !ok {
				t.Fatal("refused")
			}
			b.Add(r, 1)
		}
		a.Append(sec(float64(i)), &b)
	}
	if most := 8*121 + 8; a.columns.live > most {
		t.Errorf("%d series, of which 8 have a value; want at most two minutes' worth, %d", a.columns.live, most)
	}
	if len(s.Limited()) > 0 {
		t.Error("the target is limited")
	}
	checkLedger(t, s)
}

// TestSqueezedConcurrently is for the race detector, and for locks that wait for
// each other.
func TestSqueezedConcurrently(t *testing.T) {
	s := New(Config{Span: 20 * time.Second, MaxBytes: 1 << 20})
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 6 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			name := fmt.Sprint("t", w)
			for i := range 150 {
				l := TargetLabels{Node: fmt.Sprint("n", i/50)}
				if w%2 == 0 {
					l.Namespace, l.Pod = fmt.Sprint("ns", i/40), name
				}
				a := s.Target(name, l)
				a.Account(int64(r.IntN(1 << 16)))
				a.SetOwners(sec(float64(i)), claims(fmt.Sprint(i%3), 40, onePod))
				a.Append(sec(float64(i)), randomBatch(r, a))
				if i%60 == 59 {
					s.Drop(name)
				}
			}
		})
	}
	readers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			s.Limited()
			s.Stats()
			s.PodOn(Holder{Node: "n1", Namespace: "ns", Pod: "1pod", Devices: 1}, gpu.GPUUtil, sec(float64(i%150)), time.Minute)
			s.Forget("ns", "2pod", sec(float64(i%150)))
			s.Devices("", []gpu.FieldID{gpu.GPUUtil}, sec(50), time.Minute)
		}
	})
	writers.Wait()
	close(stop)
	readers.Wait()
	checkLedger(t, s)
	for w := range 6 {
		s.Drop(fmt.Sprint("t", w))
	}
	if st := s.Stats(); st.Memory != 0 || st.Series != 0 || st.Limited != 0 || s.Pods() != 0 {
		t.Errorf("after all were dropped: %+v, %d pods", st, s.Pods())
	}
}

// A field whose values do not fit in two bytes any more gets four. Under a limit that is
// used up, its own window pays for that.
func TestWindowsPayForWidth(t *testing.T) {
	f := func(limit int64, wantSlots int) {
		t.Helper()
		s := New(Config{Span: time.Minute, MaxBytes: limit})
		a := newTarget(t, s, "a")
		now := 0.0
		put := func(used float64) {
			values := map[Key]float64{}
			for d := range 8 {
				values[Key{Device: fmt.Sprint("G", d), Field: gpu.FBUsed}] = used
			}
			now++
			a.put(sec(now), values)
			checkLedger(t, s)
		}
		for range 61 {
			put(40_000)
		}
		if a.columns.ring.Len() != 61 {
			t.Errorf("limit %d: the window of short values has %d samples", limit, a.columns.ring.Len())
		}
		narrow := a.columns.ring.PerSlot()
		for range 3 {
			put(80_000)
		}
		if got := a.columns.ring.PerSlot(); narrow != 8+8*2 || got != 8+8*4 {
			t.Errorf("%d bytes a slot, then %d", narrow, got)
		}
		if free, _ := a.columns.ring.FreeColumns(); free > 0 {
			t.Errorf("%d columns are not used", free)
		}
		if a.columns.ring.Len() < wantSlots || a.limits.short != (wantSlots < 61) {
			t.Errorf("limit %d: the window has %d samples, short: %v", limit, a.columns.ring.Len(), a.limits.short)
		}
		for d := range 8 {
			id, _ := a.lookup(&Key{Device: fmt.Sprint("G", d), Field: gpu.FBUsed})
			v, ok := a.columns.latest(id, 0)
			oldest, _ := a.columns.ring.At(a.columns.series[id].column, a.columns.ring.Slot(0))
			if !ok || v.Value != 80_000 || oldest != 40_000 {
				t.Errorf("limit %d: device %d has %v, %v, and at first %v", limit, d, v, ok, oldest)
			}
		}
	}
	f(1<<20, 61)
	f(6<<10, 30)
}
