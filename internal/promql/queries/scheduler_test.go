// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// backend is a PromQL backend that takes a time for each query and remembers
// when it was asked what. It runs in a bubble of synctest.
type backend struct {
	mu     sync.Mutex
	took   func(promql string) time.Duration // nil: none
	fails  func(promql string) error         // nil: never
	begun  map[string][]time.Time            // by query
	now    map[string]int                    // evaluations at this moment, by the query's first word
	most   map[string]int                    // of them, at any moment; "" for all
	inAll  int
	answer float64
}

func (b *backend) query(ctx context.Context, _, promql string) (series.Sample, error) {
	who, _, _ := strings.Cut(promql, " ")
	b.mu.Lock()
	b.begun[promql] = append(b.begun[promql], time.Now())
	b.inAll++
	b.now[who]++
	b.most[who], b.most[""] = max(b.most[who], b.now[who]), max(b.most[""], b.inAll)
	took, fails := b.took, b.fails
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inAll--
		b.now[who]--
		b.mu.Unlock()
	}()
	if took != nil {
		select {
		case <-time.After(took(promql)):
		case <-ctx.Done():
			return series.Sample{}, ctx.Err()
		}
	}
	if fails != nil {
		if err := fails(promql); err != nil {
			return series.Sample{}, err
		}
	}
	return series.Sample{At: time.Now(), Value: b.answer}, nil
}

// times are when a query was asked, since the beginning.
func (b *backend) times(promql string, since time.Time) (out []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.begun[promql] {
		out = append(out, at.Sub(since))
	}
	return out
}

// rig is a scheduler with its owners, in a bubble of synctest.
type rig struct {
	*Scheduler
	*backend
	t      *testing.T
	owners map[tenantOf][]Owner
	told   map[string]int // by the owner's name
}

type tenantOf struct {
	kind      Kind
	namespace string
}

// said is the error of a query that was evaluated, which its author may read.
type said string

func (s said) Error() string  { return "the backend at 10.0.0.9 said: " + string(s) }
func (s said) Public() string { return string(s) }
func (s said) Reason() string { return "no_number" }
func (s said) Answered() bool { return true }

// schedule runs a scheduler until f returns, and then checks that nothing is left.
func schedule(t *testing.T, cfg SchedulerConfig, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &backend{begun: map[string][]time.Time{}, now: map[string]int{}, most: map[string]int{}, answer: 1}
		r := &rig{
			Scheduler: NewScheduler(cfg, SchedulerDeps{Query: b.query}),
			backend:   b, t: t, owners: map[tenantOf][]Owner{}, told: map[string]int{},
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		f(r)
		for of := range r.owners {
			r.Set(of.kind, of.namespace, nil)
		}
		synctest.Wait()
		r.isEmpty()
		cancel()
		running.Wait()
	})
}

// isEmpty fails if the scheduler still has a query, a tenant or a slot.
func (r *rig) isEmpty() {
	r.t.Helper()
	r.Scheduler.mu.Lock()
	defer r.Scheduler.mu.Unlock()
	if held, waiting := r.deps.Slots.Counts(); held+waiting+len(r.queries)+len(r.tenants)+len(r.pending) != 0 {
		r.t.Errorf("%d hold slots, %d wait, %d queries, %d tenants, %d pending after all owners are gone", held, waiting, len(r.queries), len(r.tenants), len(r.pending))
	}
}

// epoch is when the oldest owner was created.
var epoch = time.Unix(1_800_000_000, 0)

// asks adds an owner with queries, created so long after epoch.
func (r *rig) asks(kind Kind, namespace, name string, created time.Duration, promql ...string) {
	o := Owner{Name: name, Created: epoch.Add(created), Changed: func() {
		r.backend.mu.Lock()
		defer r.backend.mu.Unlock()
		r.told[name]++
	}}
	for _, text := range promql {
		o.Queries = append(o.Queries, Query{Key: keyOf(namespace, text)})
	}
	r.put(kind, namespace, &o)
}

// put adds or replaces an owner.
func (r *rig) put(kind Kind, namespace string, o *Owner) {
	of := tenantOf{kind, namespace}
	r.owners[of] = append(r.without(of, o.Name), *o)
	r.Set(kind, namespace, r.owners[of])
}

// remove removes an owner.
func (r *rig) remove(kind Kind, namespace, name string) {
	of := tenantOf{kind, namespace}
	r.owners[of] = r.without(of, name)
	r.Set(kind, namespace, r.owners[of])
}

// without returns a new list of owners without one.
func (r *rig) without(of tenantOf, name string) []Owner {
	return slices.DeleteFunc(slices.Clone(r.owners[of]), func(o Owner) bool { return o.Name == name })
}

// keyOf is the key of a query of a namespace that is not trusted.
func keyOf(namespace, promql string) Key { return KeyOf(namespace, promql, false) }

// takes sets how long evaluations take from now on.
func (r *rig) takes(f func(promql string) time.Duration) {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	r.took = f
}

// failsWith sets how evaluations fail from now on.
func (r *rig) failsWith(f func(promql string) error) {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	r.fails = f
}

// mostOf is how many queries with this first word ran at a time; of all if it is empty.
func (r *rig) mostOf(who string) int {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	return r.most[who]
}

// asked is how often a query was evaluated.
func (r *rig) asked(promql string) int { return len(r.times(promql, time.Time{})) }

// calls is how often an owner was told of an answer.
func (r *rig) calls(name string) int {
	r.backend.mu.Lock()
	defer r.backend.mu.Unlock()
	return r.told[name]
}

// A query is evaluated repeatedly, once for all owners of a namespace that have it, and
// stops when none has it.
func TestEqualQueriesRunOnce(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		began := time.Now()
		// The first answer comes after all have asked.
		r.backend.mu.Lock()
		r.backend.took = func(string) time.Duration { return time.Millisecond }
		r.backend.mu.Unlock()
		r.asks(GPUAutoscaler, "ns", "a", 0, "x")
		r.asks(MetricQuery, "ns", "b", 0, "x")
		r.asks(GPUAutoscaler, "ns", "c", 0, "y")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		for _, name := range []string{"a", "b", "c"} {
			if n := r.calls(name); n != 1 {
				t.Errorf("%s was told of %d answers", name, n)
			}
		}
		time.Sleep(5*Every + Every/2)
		for _, promql := range []string{"x", "y"} {
			if got, want := fmt.Sprint(r.times(promql, began)), "[0s 2s 4s 6s 8s 10s]"; got != want {
				t.Errorf("%s was asked at %s, want %s", promql, got, want)
			}
		}
		r.remove(GPUAutoscaler, "ns", "a")
		time.Sleep(Every)
		if n := r.asked("x"); n != 7 || r.calls("b") != 7 || r.calls("a") != 6 {
			t.Errorf("x was asked %d times; told a %d and b %d times", n, r.calls("a"), r.calls("b"))
		}
		r.remove(MetricQuery, "ns", "b")
		time.Sleep(10 * Every)
		if n := r.asked("x"); n != 7 {
			t.Errorf("x was asked %d times; nobody asks it", n)
		}
		if n := r.asked("y"); n != 17 {
			t.Errorf("y was asked %d times, want 17", n)
		}
		if a := r.Answer("ns", keyOf("ns", "x")); a != (Answer{}) {
			t.Errorf("the answer to a query without owner: %+v", a)
		}
	})
}

// The same text is two queries in two namespaces, and one where both are trusted. The
// first namespace with a signal pays for it.
func TestQueriesAreSharedAmongTrustedNamespacesOnly(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		shared := Key{PromQL: "backlog"}
		for _, ns := range []string{"team-a", "team-b"} {
			r.asks(GPUAutoscaler, ns, "web", 0, "backlog of "+ns)
		}
		for _, ns := range []string{"ops", "ml"} {
			r.put(GPUAutoscaler, ns, &Owner{Name: "web", Queries: []Query{{Key: shared}}})
		}
		r.put(MetricQuery, "all", &Owner{Name: "web", Queries: []Query{{Key: shared}}})
		synctest.Wait()
		for _, promql := range []string{"backlog", "backlog of team-a", "backlog of team-b"} {
			if n := r.asked(promql); n != 1 {
				t.Errorf("%s was asked %d times", promql, n)
			}
		}
		payer := func(want fair.Request) {
			t.Helper()
			r.Scheduler.mu.Lock()
			defer r.Scheduler.mu.Unlock()
			if q := r.queries[shared]; q == nil || q.request.Payer != want.Payer || q.request.Signal != want.Signal {
				t.Errorf("the shared query: %+v, want %+v", q, want)
			}
		}
		payer(fair.Request{Payer: fair.Namespace("ml"), Signal: true})
		r.remove(GPUAutoscaler, "ml", "web")
		payer(fair.Request{Payer: fair.Namespace("ops"), Signal: true})
		r.remove(GPUAutoscaler, "ops", "web")
		payer(fair.Request{Payer: fair.Namespace("all")})
	})
}

// Slow queries of one namespace, however many, delay no other.
func TestSlowQueriesDelayNoOtherNamespace(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(promql string) time.Duration {
			if strings.HasPrefix(promql, "slow") {
				return 5 * time.Second
			}
			return 0
		})
		r.failsWith(func(promql string) error {
			if strings.HasPrefix(promql, "slow") {
				return errors.New("no answer within 5s")
			}
			return nil
		})
		for i := range 100 {
			r.asks(GPUAutoscaler, "hostile", fmt.Sprint("a", i), 0, fmt.Sprint("slow ", i))
		}
		began := time.Now()
		r.asks(GPUAutoscaler, "ns", "web", 0, "quick")
		time.Sleep(time.Minute - time.Second)
		got := r.times("quick", began)
		for i, at := range got {
			if at != time.Duration(i)*Every {
				t.Errorf("quick was asked at %v, not every %s", got, Every)
				break
			}
		}
		if len(got) != 30 || r.mostOf("slow") != ForBackend().Share || r.mostOf("") > ForBackend().Slots {
			t.Errorf("quick was asked %d times; at most %d queries of the slow namespace ran at a time, and %d in all", len(got), r.mostOf("slow"), r.mostOf(""))
		}
	})
}

// Signals run at their times beside as many slow MetricQueries as a namespace may have,
// in their namespace and in every other.
func TestMetricQueriesDelayNoSignals(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(promql string) time.Duration {
			if strings.HasPrefix(promql, "slow") {
				return time.Second
			}
			return 0
		})
		for ns := range 4 {
			for i := range 100 {
				r.asks(MetricQuery, fmt.Sprint("ns", ns), fmt.Sprint("q", i), 0, fmt.Sprintf("slow %d %d", ns, i))
			}
		}
		time.Sleep(10 * time.Second)
		began := time.Now()
		for ns := range 4 {
			r.asks(GPUAutoscaler, fmt.Sprint("ns", ns), "web", time.Hour, fmt.Sprint("signal", ns))
		}
		time.Sleep(time.Minute - time.Second)
		for ns := range 4 {
			got := r.times(fmt.Sprint("signal", ns), began)
			if len(got) != 30 || got[0] != 0 || got[29] != 29*Every {
				t.Errorf("the signal of ns%d was asked at %v, want every %s", ns, got, Every)
			}
		}
		if n := r.mostOf("slow"); n != ForBackend().Slots-ForBackend().ForSignals {
			t.Errorf("%d MetricQueries ran at a time", n)
		}
	})
}

// A query that is due as a MetricQuery, and becomes a signal while it waits, has the
// slots of signals.
func TestAWaitingQueryBecomesASignal(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(string) time.Duration { return 10 * time.Second })
		for i := range 5 {
			r.asks(MetricQuery, "ns", fmt.Sprint("q", i), time.Duration(i), fmt.Sprint("x", i))
			synctest.Wait() // so that they wait in this order
		}
		time.Sleep(time.Second)
		if n := r.asked("x4"); n != 0 {
			t.Fatal("it does not wait")
		}
		r.asks(GPUAutoscaler, "ns", "web", time.Hour, "x4")
		synctest.Wait()
		if n := r.asked("x4"); n != 1 {
			t.Errorf("the signal was asked %d times", n)
		}
		time.Sleep(40 * time.Second)
		if a := r.Answer("ns", keyOf("ns", "x4")); a.Problem != "" {
			t.Errorf("%+v", a)
		}
	})
}

// The time-out of an evaluation begins when it has its slot.
func TestTimeoutDoesNotCountTheWait(t *testing.T) {
	schedule(t, SchedulerConfig{Timeout: 10 * time.Second}, func(r *rig) {
		r.takes(func(promql string) time.Duration {
			if promql == "hangs" {
				return time.Hour
			}
			return 9 * time.Second
		})
		for i := range 8 { // two at a time
			r.asks(MetricQuery, "ns", fmt.Sprint("q", i), 0, fmt.Sprint("x", i))
		}
		time.Sleep(36*time.Second + time.Millisecond)
		for i := range 8 {
			if a := r.Answer("ns", keyOf("ns", fmt.Sprint("x", i))); a.Evaluated.IsZero() || a.Problem != "" {
				t.Errorf("x%d, which took 9 s after a wait: %+v", i, a)
			}
		}
		r.asks(GPUAutoscaler, "ns", "web", 0, "hangs")
		time.Sleep(10*time.Second - time.Millisecond)
		if a := r.Answer("ns", keyOf("ns", "hangs")); a != (Answer{}) {
			t.Errorf("before its time-out: %+v", a)
		}
		time.Sleep(2 * time.Millisecond)
		if a := r.Answer("ns", keyOf("ns", "hangs")); !strings.Contains(a.Problem, "the controller's log") {
			t.Errorf("after its time-out: %+v", a)
		}
	})
}

// A query that waits long says so, and keeps its place: each one has its turn.
func TestAQueryThatWaitsSaysSo(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(string) time.Duration { return 5 * time.Second })
		for i := range 60 {
			r.asks(GPUAutoscaler, "ns", fmt.Sprint("a", i), 0, fmt.Sprint("slow ", i))
		}
		time.Sleep(maxWait + time.Second)
		late := 0
		for i := range 60 {
			if strings.Contains(r.Answer("ns", keyOf("ns", fmt.Sprint("slow ", i))).Problem, "has waited for 30 s") {
				if late++; r.calls(fmt.Sprint("a", i)) == 0 {
					t.Errorf("owner %d was not told", i)
				}
			}
		}
		if late < 32 || late > 36 { // 4 begin every 5 s, the last ones at 30 s
			t.Errorf("%d queries say that they wait", late)
		}
		time.Sleep(2 * time.Minute)
		r.backend.mu.Lock()
		defer r.backend.mu.Unlock()
		if len(r.begun) != 60 {
			t.Errorf("%d of 60 queries were evaluated", len(r.begun))
		}
	})
}

// However many namespaces have slow queries, each waits for its turn only.
func TestNamespacesTakeTurns(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(promql string) time.Duration {
			if promql == "quick" {
				return 0
			}
			return time.Second
		})
		for ns := range 5 {
			for i := range min(50+100*ns, 100) {
				r.asks(GPUAutoscaler, fmt.Sprint("ns", ns), fmt.Sprint("a", i), 0, fmt.Sprintf("ns%d %d", ns, i))
			}
		}
		time.Sleep(time.Second / 2)
		began := time.Now()
		r.asks(GPUAutoscaler, "late", "web", 0, "quick")
		time.Sleep(100 * time.Second)
		if got := r.times("quick", began); len(got) == 0 || got[0] > 1500*time.Millisecond {
			t.Errorf("the namespace that came last was first asked at %v", got)
		}
		asked := map[string]int{}
		r.backend.mu.Lock()
		defer r.backend.mu.Unlock()
		for promql, at := range r.begun {
			who, _, _ := strings.Cut(promql, " ")
			asked[who] += len(at)
		}
		for ns := range 5 {
			if n := asked[fmt.Sprint("ns", ns)]; n < 135 || n > 150 { // 7 slots for 100.5 s, fifths of 703: one is for light payers
				t.Errorf("ns%d was asked %d times, want a fifth: %v", ns, n, asked)
				break
			}
		}
		if r.most[""] > ForBackend().Slots {
			t.Errorf("%d queries at a time", r.most[""])
		}
	})
}

// A query that is not answered backs off alone, and returns to its interval with the
// first answer. One that is evaluated and has no value keeps its interval.
func TestFailingQueriesBackOff(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		down := true
		r.failsWith(func(promql string) error {
			switch {
			case promql == "down" && down:
				return errors.New("connection refused")
			case promql == "empty":
				return said("it gives nothing")
			}
			return nil
		})
		began := time.Now()
		for _, promql := range []string{"down", "empty", "fine", "nan"} {
			r.asks(GPUAutoscaler, "ns", promql, 0, promql)
		}
		time.Sleep(3 * time.Minute)
		r.backend.mu.Lock()
		down = false
		r.backend.mu.Unlock()
		synctest.Wait()
		got := r.times("down", began)
		if len(got) < 7 {
			t.Fatalf("it was asked at %v", got)
		}
		for i, want := range []float64{2, 4, 8, 16, 30, 30} {
			if gap := (got[i+1] - got[i]).Seconds(); gap < want*(1-jitter) || gap > want*(1+jitter) || gap == want {
				t.Errorf("pause %d is %.1f s, want %g s ± %g %%, varied", i, gap, want, 100*jitter)
			}
		}
		for _, promql := range []string{"empty", "fine"} {
			if n := r.asked(promql); n != 91 && n != 90 {
				t.Errorf("%s was asked %d times in 3 min, want 90", promql, n)
			}
		}
		if a := r.Answer("ns", keyOf("ns", "empty")); a.Problem != "it gives nothing" {
			t.Errorf("%+v", a)
		}
		a := r.Answer("ns", keyOf("ns", "down"))
		if a.Problem == "" || strings.Contains(a.Problem, "refused") {
			t.Errorf("the author reads %q of an error that is not public", a.Problem)
		}
		time.Sleep(2 * maxPause)
		got = r.times("down", began)
		if gap := got[len(got)-1] - got[len(got)-2]; gap != Every {
			t.Errorf("after an answer it is asked every %s, want %s", gap, Every)
		}
		if a := r.Answer("ns", keyOf("ns", "down")); a.Problem != "" || a.Evaluated.IsZero() {
			t.Errorf("%+v", a)
		}
	})
}

// An answer that is not a number is a problem and no value. The last value stays.
func TestNotANumber(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.asks(MetricQuery, "ns", "web", 0, "x")
		synctest.Wait()
		before := r.Answer("ns", keyOf("ns", "x"))
		for value, want := range map[float64]string{math.NaN(): "the value is NaN, not a number", math.Inf(1): "the value is +Inf, not a number"} {
			r.backend.mu.Lock()
			r.answer = value
			r.backend.mu.Unlock()
			time.Sleep(Every)
			synctest.Wait()
			if a := r.Answer("ns", keyOf("ns", "x")); a.Problem != want || a.Sample != before.Sample || a.Evaluated != before.Evaluated {
				t.Errorf("%+v, want %q and the value of %+v", a, want, before)
			}
		}
	})
}

// A query that takes long occupies its slot for half of the time at most.
func TestSlowAnswers(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.takes(func(string) time.Duration { return 3 * time.Second })
		began := time.Now()
		r.asks(GPUAutoscaler, "ns", "web", 0, "x")
		time.Sleep(14 * time.Second)
		if got, want := fmt.Sprint(r.times("x", began)), "[0s 6s 12s]"; got != want {
			t.Errorf("asked at %s, want %s", got, want)
		}
	})
}

// The shortest interval of the owners counts, from when one asks for it until it is gone.
func TestIntervalsOfOwners(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		with := func(name string, every time.Duration) *Owner {
			return &Owner{Name: name, Queries: []Query{{Key: keyOf("ns", "x"), Every: every}}}
		}
		perMinute := func(want ...int) {
			t.Helper()
			time.Sleep(time.Nanosecond) // past the moment at which one is due
			before := r.asked("x")
			time.Sleep(time.Minute)
			if n := r.asked("x") - before; !slices.Contains(want, n) {
				t.Errorf("asked %d times in a minute, want %d", n, want)
			}
		}
		r.put(GPUAutoscaler, "ns", with("slow", 10*time.Second))
		perMinute(6)
		r.put(MetricQuery, "ns", with("usual", 0))
		perMinute(30)
		followed := time.Now()
		r.put(MetricQuery, "ns", with("usual", 500*time.Millisecond))
		time.Sleep(500 * time.Millisecond)
		if got := r.times("x", followed); got[len(got)-1] < 0 {
			t.Error("it is not asked within its new interval")
		}
		perMinute(120)
		r.takes(func(string) time.Duration { return 400 * time.Millisecond }) // 0.4 s of 1.6 s
		time.Sleep(10 * time.Second)
		perMinute(37, 38)
		r.takes(func(string) time.Duration { return 5 * time.Second }) // as without a follower
		time.Sleep(10 * time.Second)
		perMinute(6)
		r.takes(nil)
		r.failsWith(func(string) error { return errors.New("down") }) // a follower does not disturb the backing off
		time.Sleep(10 * time.Second)
		before := r.asked("x")
		time.Sleep(time.Minute)
		if n := r.asked("x") - before; n > 5 {
			t.Errorf("a failing query was asked %d times in a minute", n)
		}
		r.failsWith(nil)
		time.Sleep(time.Minute)
		r.remove(MetricQuery, "ns", "usual")
		perMinute(6)
	})
}

// A value that is read without PromQL needs no slot and no backend, does not back off,
// and counts in the budget.
func TestReadsWithoutPromQL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewScheduler(SchedulerConfig{PerNamespace: 4}, SchedulerDeps{Slots: fair.NewSlots(fair.Config{Slots: 1})})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		reads := map[string]int{}
		var mu sync.Mutex
		var owners []Owner
		for i := range 5 {
			name := fmt.Sprint("q", i)
			owners = append(owners, Owner{Name: name, Queries: []Query{{
				Key: Key{Scope: "ns", Object: name}, Every: time.Second, Read: func(ctx context.Context) (series.Sample, error) {
					mu.Lock()
					reads[name]++
					mu.Unlock()
					switch name {
					case "q1":
						return series.Sample{}, errors.New("no pod serves")
					case "q2":
						<-ctx.Done()
						return series.Sample{}, ctx.Err()
					}
					return series.Sample{Value: 7}, nil
				},
			}}})
		}
		s.Set(MetricQuery, "ns", append(owners, Owner{Name: "promql", Created: epoch, Queries: []Query{{Key: keyOf("ns", "x")}}}))
		time.Sleep(time.Minute - time.Millisecond)
		mu.Lock()
		if reads["q0"] != 60 || reads["q1"] != 60 || reads["q2"] > 2 || reads["q3"]+reads["q4"] != 0 {
			t.Errorf("reads in a minute: %v", reads)
		}
		mu.Unlock()
		if a := s.Answer("ns", Key{Scope: "ns", Object: "q0"}); a.Sample.Value != 7 || a.Evaluated.IsZero() || a.Problem != "" {
			t.Errorf("%+v", a)
		}
		if a := s.Answer("ns", Key{Scope: "ns", Object: "q1"}); a.Problem != "no pod serves" {
			t.Errorf("%+v", a)
		}
		if a := s.Answer("ns", Key{Scope: "ns", Object: "q3"}); !a.Refused || !strings.Contains(a.Problem, "already have 3 different queries; the rest of the 4") {
			t.Errorf("%+v", a)
		}
		if a := s.Answer("ns", keyOf("ns", "x")); !strings.Contains(a.Problem, "start the controller with --prometheus-url") || a.Refused {
			t.Errorf("without a backend: %+v", a)
		}
		s.Set(MetricQuery, "ns", nil)
		synctest.Wait()
		if len(s.queries)+len(s.tenants) != 0 {
			t.Errorf("%+v remains", s.queries)
		}
		cancel()
		running.Wait()
	})
}

// The query of an owner that is gone is cancelled, gives its slot back, and stores and
// counts nothing. Another owner keeps it.
func TestAnOwnerGoesWhileItsQueryRuns(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(r.Scheduler)
		r.takes(func(string) time.Duration { return time.Minute })
		r.asks(GPUAutoscaler, "ns", "a", 0, "x")
		r.asks(GPUAutoscaler, "ns", "b", 0, "y")
		r.asks(MetricQuery, "ns", "c", 0, "y")
		time.Sleep(time.Second)
		r.remove(GPUAutoscaler, "ns", "a")
		r.remove(GPUAutoscaler, "ns", "b")
		synctest.Wait()
		if held, waiting := r.deps.Slots.Counts(); held != 1 || waiting != 0 {
			t.Errorf("%d run and %d wait", held, waiting)
		}
		time.Sleep(28 * time.Second)
		if r.calls("a")+r.calls("b") != 0 {
			t.Error("an owner that is gone was told of an answer")
		}
		metricsAre(t, reg, map[string]float64{"gpupilot_queries_total  answered": 0})

		// It comes again before its old evaluation has ended.
		r.takes(func(string) time.Duration { return 0 })
		r.asks(GPUAutoscaler, "ns", "a", 0, "x")
		synctest.Wait()
		if n := r.asked("x"); n != 2 || r.calls("a") != 1 {
			t.Errorf("x was asked %d times, and its owner told %d times", n, r.calls("a"))
		}
		metricsAre(t, reg, map[string]float64{"gpupilot_queries_total  answered": 1, "gpupilot_query_duration_seconds ns": 1})
	})
}

// An evaluation that ends when its query was removed changes nothing, neither does the
// note about a wait that has ended.
func TestLateResults(t *testing.T) {
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.asks(GPUAutoscaler, "ns", "a", 0, "x")
		synctest.Wait()
		r.Scheduler.mu.Lock()
		removed := r.queries[keyOf("ns", "x")]
		r.Scheduler.mu.Unlock()
		r.remove(GPUAutoscaler, "ns", "a")
		r.asks(GPUAutoscaler, "ns", "b", 0, "x")
		synctest.Wait()
		r.store(removed, &evaluation{err: errors.New("late")})
		r.storeLate(removed, removed.round)
		r.Scheduler.mu.Lock()
		now := r.queries[keyOf("ns", "x")]
		round := now.round
		r.Scheduler.mu.Unlock()
		r.storeLate(now, round) // it does not wait
		if a := r.Answer("ns", keyOf("ns", "x")); a.Problem != "" || removed.err != nil || r.calls("a") != 1 || r.calls("b") != 1 {
			t.Errorf("%+v, %v; told a %d and b %d times", a, removed.err, r.calls("a"), r.calls("b"))
		}

		// Nor does the note about an earlier wait of a query that waits again.
		r.takes(func(string) time.Duration { return 10 * time.Second })
		for i := range 4 {
			r.asks(GPUAutoscaler, "ns", fmt.Sprint("slow", i), 0, fmt.Sprint("slow ", i))
		}
		time.Sleep(5 * time.Second)
		r.storeLate(now, round)
		if a := r.Answer("ns", keyOf("ns", "x")); a.Problem != "" {
			t.Errorf("%+v", a)
		}
		r.storeLate(now, round+1)
		if a := r.Answer("ns", keyOf("ns", "x")); !strings.Contains(a.Problem, "has waited") {
			t.Errorf("%+v", a)
		}
	})
}

// Queries that the end of the program interrupts have not failed.
func TestTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		s := NewScheduler(SchedulerConfig{}, SchedulerDeps{
			Query: func(ctx context.Context, _, _ string) (series.Sample, error) {
				<-ctx.Done()
				return series.Sample{}, ctx.Err()
			},
			Log: slog.New(slog.NewTextHandler(&logged, nil)),
		})
		s.Set(GPUAutoscaler, "ns", []Owner{{Name: "web", Queries: []Query{{Key: keyOf("ns", "x")}}}}) // before Run
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.Run(ctx)
		if a := s.Answer("ns", keyOf("ns", "x")); a != (Answer{}) || logged.String() != "" {
			t.Errorf("%+v; log: %s", a, &logged)
		}
	})
}

// A change between success and failure is logged once, with the backend's words.
func TestLog(t *testing.T) {
	var logged strings.Builder // written while the test waits
	schedule(t, SchedulerConfig{}, func(r *rig) {
		r.deps.Log = slog.New(slog.NewTextHandler(&logged, nil))
		r.failsWith(func(string) error { return said("no series") })
		r.asks(MetricQuery, "ns", "a", 0, "x")
		time.Sleep(10 * time.Second)
		r.failsWith(nil)
		time.Sleep(10 * time.Second)
	})
	lines := strings.Split(strings.TrimSpace(logged.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `msg="query failed" namespace=ns promql=x err="the backend at 10.0.0.9 said: no series"`) ||
		!strings.Contains(lines[1], `msg="query answered again" namespace=ns promql=x`) {
		t.Errorf("log: %s", &logged)
	}
}

// The metrics speak of signals, not of MetricQueries.
func TestMetricsOfSignals(t *testing.T) {
	schedule(t, SchedulerConfig{PerNamespace: 3}, func(r *rig) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(r.Scheduler)
		r.failsWith(func(promql string) error {
			switch promql {
			case "down":
				return errors.New("down")
			case "empty":
				return said("it gives nothing")
			}
			return nil
		})
		r.asks(GPUAutoscaler, "ns", "a", 0, "x", "down", "empty")
		r.asks(GPUAutoscaler, "ns", "b", 1, "z", "x")
		r.asks(GPUAutoscaler, "other", "c", 0, "x")
		r.asks(MetricQuery, "ns", "d", 2, "x", "more")
		r.asks(MetricQuery, "third", "e", 0, "x")
		r.Rejected(errors.New("?"))
		time.Sleep(3 * time.Second)
		metricsAre(t, reg, map[string]float64{
			"gpupilot_query_signals ns asked": 2, "gpupilot_query_signals ns backing_off": 1, "gpupilot_query_signals ns rejected": 1, "gpupilot_query_signals other asked": 1,
			"gpupilot_query_rejections_total limit": 1, "gpupilot_query_rejections_total syntax": 0, "gpupilot_query_rejections_total other": 1,
			"gpupilot_queries_total  answered": 4, "gpupilot_queries_total other failed": 2, "gpupilot_queries_total no_number failed": 2,
			"gpupilot_query_duration_seconds ns": 6, "gpupilot_query_duration_seconds other": 2,
		})
		r.remove(GPUAutoscaler, "ns", "a")
		r.remove(GPUAutoscaler, "other", "c")
		time.Sleep(3 * time.Second)
		metricsAre(t, reg, map[string]float64{"gpupilot_query_signals ns asked": 2, "gpupilot_query_rejections_total limit": 1})
		for _, gone := range []string{
			"gpupilot_query_signals other asked", "gpupilot_query_signals ns rejected", "gpupilot_query_signals ns backing_off",
			"gpupilot_query_signals third asked", "gpupilot_query_duration_seconds other", "gpupilot_query_duration_seconds third",
		} {
			if v, ok := gather(t, reg)[gone]; ok {
				t.Errorf("%s is %g, want none", gone, v)
			}
		}
	})
}

func metricsAre(t *testing.T, reg prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := gather(t, reg)
	for name, v := range want {
		if n, ok := got[name]; !ok || n != v {
			t.Errorf("%s is %g (%v), want %g", name, n, ok, v)
		}
	}
}

// gather are the metrics by their name and the values of their labels.
func gather(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[name] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				out[name] = m.GetGauge().GetValue()
			case dto.MetricType_SUMMARY:
				out[name] = float64(m.GetSummary().GetSampleCount())
			}
		}
	}
	return out
}
