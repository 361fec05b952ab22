// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/schema"
	"github.com/gpupilot/gpupilot/test/stack"
)

// kind is a kind of objects whose fields are swept.
type kind struct {
	name, plural string
	schema       *schema.Schema
	bases        []map[string]any // specs that together have every field
	workers      int
	prepare      func(t *testing.T, w *worker)
	// renew makes an object of the spec that the worker's object has, which never had another.
	renew func(ctx context.Context, w *worker, spec map[string]any) error
	// differ is how the worker's object differs from the fresh one; empty: not at all.
	differ func(ctx context.Context, w *worker) (string, error)
}

// worker has one object of a kind, whose fields it changes.
type worker struct {
	*kind
	id      int
	object  *unstructured.Unstructured // as it was last read
	fresh   *unstructured.Unstructured
	before  string // what belonged to the object before the transition, see exporterKind
	made    int    // fresh objects
	history []string
}

// tally counts transitions.
type tally struct {
	mu                                   sync.Mutex
	accepted, refused, unchanged, values map[string]int // by field
	violations                           []string
	slowest                              time.Duration
	total                                atomic.Int64
}

func (c *tally) violate(w *worker, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	c.violations = append(c.violations, fmt.Sprintf("%s: %s\n  after %s", w.name, text, strings.Join(w.history[max(0, len(w.history)-4):], "\n  then ")))
}

// sequence is a series of specs: what is swept, and whether the schema forbids it.
type sequence struct {
	field schema.Path
	steps []step
}

type step struct {
	what      string
	spec      map[string]any
	forbidden bool
}

// sequences of a kind: for each field and value, set it, change it, remove it, and back,
// with another field changed in between. The fields take turns, so that a part of the
// list is about all of them.
func (k *kind) sequences(r *rand.Rand) (out []sequence) {
	fields := slices.DeleteFunc(k.schema.Fields(nil), func(p schema.Path) bool { return !rig.match.MatchString(k.name + " " + p.String()) })
	by := make([][]sequence, len(fields))
	for i, f := range fields {
		values := k.schema.At(f).Values()
		r.Shuffle(len(values), func(a, b int) { values[a], values[b] = values[b], values[a] })
		// Allowed ones first, so that a small sample has some.
		slices.SortStableFunc(values, func(a, b schema.Value) int { return rank(a) - rank(b) })
		for n, v := range values {
			other := fields[r.IntN(len(fields))]
			others := k.schema.At(other).Values()
			by[i] = append(by[i], k.sequence(k.baseFor(f, r), f, v, values[(n+1)%len(values)], other, others[r.IntN(len(others))]))
		}
	}
	for n := 0; ; n++ {
		any := false
		for _, i := range r.Perm(len(by)) {
			if n < len(by[i]) {
				out, any = append(out, by[i][n]), true
			}
		}
		if !any {
			return out
		}
	}
}

func rank(v schema.Value) int {
	if v.Forbidden {
		return 1
	}
	return 0
}

// baseFor chooses a base, mostly one that has the field.
func (k *kind) baseFor(f schema.Path, r *rand.Rand) map[string]any {
	var have []map[string]any
	for _, b := range k.bases {
		if has(b, f) {
			have = append(have, b)
		}
	}
	if len(have) > 0 && r.IntN(4) > 0 {
		return have[r.IntN(len(have))]
	}
	return k.bases[r.IntN(len(k.bases))]
}

func has(spec any, f schema.Path) bool {
	for _, name := range f {
		switch x := spec.(type) {
		case map[string]any:
			spec = x[name]
		case []any:
			spec = nil
			if len(x) > 0 {
				spec = x[0]
			}
		default:
			return false
		}
	}
	return spec != nil
}

func (k *kind) sequence(base map[string]any, f schema.Path, v, next schema.Value, other schema.Path, x schema.Value) sequence {
	show := func(v any) string {
		b, _ := json.Marshal(v)
		if len(b) > 80 {
			b = append(b[:77:77], "..."...)
		}
		return string(b)
	}
	s := sequence{field: f}
	s.steps = append(s.steps, step{"the base", base, false})
	first := k.schema.With(base, f, v.V, false)
	s.steps = append(s.steps, step{fmt.Sprintf("%s = %s", f, show(v.V)), first, v.Forbidden})
	s.steps = append(s.steps, step{fmt.Sprintf("%s = %s beside it", other, show(x.V)), k.schema.With(first, other, x.V, false), x.Forbidden})
	s.steps = append(s.steps, step{fmt.Sprintf("%s = %s", f, show(next.V)), k.schema.With(base, f, next.V, false), next.Forbidden})
	s.steps = append(s.steps, step{f.String() + " removed", k.schema.With(base, f, nil, true), false})
	s.steps = append(s.steps, step{"back to the base", base, false})
	return s
}

// sweepKind makes about n transitions of a kind, several objects at a time; 0: all.
func sweepKind(t *testing.T, k *kind, n int) *tally {
	t.Helper()
	c := &tally{accepted: map[string]int{}, refused: map[string]int{}, unchanged: map[string]int{}, values: map[string]int{}}
	all := k.sequences(random(k.name))
	jobs := make(chan sequence)
	var done sync.WaitGroup
	for id := range k.workers {
		w := &worker{kind: k, id: id}
		k.prepare(t, w)
		done.Go(func() {
			for s := range jobs {
				w.run(t.Context(), c, s)
			}
		})
	}
	for _, s := range all {
		if n > 0 && c.total.Load() >= int64(n) || t.Context().Err() != nil {
			break
		}
		jobs <- s
	}
	close(jobs)
	done.Wait()
	return c
}

// run makes the transitions of a sequence.
func (w *worker) run(ctx context.Context, c *tally, s sequence) {
	w.history = nil
	for _, step := range s.steps {
		if ctx.Err() != nil {
			return
		}
		w.history = append(w.history, step.what)
		if w.object != nil && cmp.Equal(w.object.Object["spec"], step.spec) {
			continue
		}
		c.total.Add(1)
		began := time.Now()
		result := w.transition(ctx, c, step)
		c.mu.Lock()
		c.slowest = max(c.slowest, time.Since(began))
		map[string]map[string]int{"accepted": c.accepted, "refused": c.refused, "unchanged": c.unchanged}[result][s.field.String()]++
		c.mu.Unlock()
	}
}

// transition gives the object a spec. What the API server refuses changes nothing; what
// it accepts ends as a fresh object of that spec does.
func (w *worker) transition(ctx context.Context, c *tally, to step) string {
	was, err := w.write(ctx, to.spec)
	switch {
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err):
		now := w.read(ctx)
		if now == nil || now.GetGeneration() != was.GetGeneration() || !cmp.Equal(now.Object["spec"], was.Object["spec"]) {
			c.violate(w, "it was refused and has changed: %v", err)
		}
		if !strings.Contains(err.Error(), "spec") {
			c.violate(w, "the refusal names no field: %v", err)
		}
		return "refused"
	case err != nil:
		if ctx.Err() == nil {
			c.violate(w, "it was neither accepted nor refused: %v", err)
		}
		return "refused"
	case to.forbidden:
		c.violate(w, "the schema forbids it, and it was accepted")
	}
	if w.object.GetGeneration() == was.GetGeneration() {
		return "unchanged"
	}
	spec, _ := w.object.Object["spec"].(map[string]any)
	if err := w.renew(ctx, w, spec); err != nil {
		if ctx.Err() == nil {
			c.violate(w, "a fresh object of the same spec: %v", err)
		}
		return "accepted"
	}
	err = stack.Await(ctx, stack.Patience, func() error {
		difference, err := w.differ(ctx, w)
		if err == nil && difference != "" {
			err = errors.New(difference)
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		c.violate(w, "it does not become as a fresh one: %v", err)
	}
	return "accepted"
}

// write replaces the spec, as kubectl replace does, and returns the object as it was.
func (w *worker) write(ctx context.Context, spec map[string]any) (was *unstructured.Unstructured, err error) {
	for {
		was = w.read(ctx)
		if was == nil {
			return w.object, fmt.Errorf("the object has gone")
		}
		next := was.DeepCopy()
		next.Object["spec"] = schema.Copy(spec)
		if err = rig.Client.Update(ctx, next); err == nil {
			w.object = next
		}
		if !apierrors.IsConflict(err) {
			return was, err
		}
	}
}

func (w *worker) read(ctx context.Context) *unstructured.Unstructured {
	u := w.object.DeepCopy()
	if rig.Client.Get(ctx, client.ObjectKeyFromObject(u), u) != nil {
		return nil
	}
	return u
}

// settled reads the object and the fresh one, and returns an error while a status is about
// an older spec.
func (w *worker) settled(ctx context.Context) error {
	for _, u := range []*unstructured.Unstructured{w.object, w.fresh} {
		if err := rig.Client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		if seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); seen != u.GetGeneration() {
			return fmt.Errorf("%s: the status is about generation %d, not %d", u.GetName(), seen, u.GetGeneration())
		}
		if b, _ := json.Marshal(u.Object["status"]); len(b) > 10<<10 {
			return fmt.Errorf("%s: the status has %d bytes", u.GetName(), len(b))
		}
	}
	return nil
}

// conditions are the conditions of an object that a fresh one has too: type, status, reason.
func conditions(u *unstructured.Unstructured) (out []string) {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range all {
		c, _ := c.(map[string]any)
		if c["type"] == "WindowComplete" && c["status"] == "True" || c["type"] == "Overridden" && c["reason"] == "NoOverride" {
			continue // it exists once it has been otherwise
		}
		out = append(out, fmt.Sprintf("%v=%v %v", c["type"], c["status"], c["reason"]))
	}
	slices.Sort(out)
	return out
}

// report prints what was swept, and fails the test for each violation.
func (c *tally) report(t *testing.T, k *kind, whole bool) {
	t.Helper()
	sum := func(m map[string]int) (n int) {
		for x := range maps.Values(m) {
			n += x
		}
		return n
	}
	fields := k.schema.Fields(nil)
	t.Logf("%s: %d transitions of %d fields: %d accepted, %d refused, %d without a change; the slowest took %v; %d violations",
		k.name, c.total.Load(), len(fields), sum(c.accepted), sum(c.refused), sum(c.unchanged), c.slowest.Round(time.Millisecond), len(c.violations))
	for _, v := range c.violations {
		t.Error(v)
	}
	for _, f := range fields {
		if name := f.String(); whole && *only == "" && c.accepted[name] == 0 {
			t.Errorf("%s: no change of %s was accepted: give the field to a base, or a value to the lists", k.name, name)
		}
	}
}

// TestFields sweeps the fields of every CRD. Meanwhile another tenant's workload stays as
// it is, the controller lives, and nothing of the swept objects is left afterwards.
func TestFields(t *testing.T) {
	began := rig.ControllerPID()
	bystander := newBystander(t)
	before := vitals(t)
	t.Run("sweep", func(t *testing.T) {
		for _, k := range []*kind{autoscalerKind(t), queryKind(t), exporterKind(t)} {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				c := sweepKind(t, k, *transitions/3)
				c.report(t, k, *transitions == 0 || *transitions >= 2000)
			})
		}
	})
	bystander(t)
	if rig.ControllerPID() != began {
		t.Error("the controller has ended")
	}
	checkLog(t)
	stack.Eventually(t, func() error { return before.restored(t.Context()) })
}

// maxLine bounds a line of the controller's log, whatever a tenant writes into a field.
const maxLine = 4 << 10

// checkLog fails the test for a panic and for a line that is too long.
func checkLog(t *testing.T) {
	t.Helper()
	log, err := os.ReadFile(rig.ControllerLog())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "panic:") {
		t.Error("the controller's log has a panic")
	}
	for line := range strings.Lines(string(log)) {
		if len(line) > maxLine {
			t.Errorf("the controller's log has a line of %d bytes: %s", len(line), line[:300])
		}
	}
}

// newBystander makes a workload of another tenant. The returned function fails the test
// if somebody has changed it.
func newBystander(t *testing.T) func(*testing.T) {
	t.Helper()
	space := "bystander-" + strings.ToLower(t.Name()) // the namespace of an earlier test may still be going
	createNamespace(t, space)
	d := deployment(space, "server", 2)
	rig.loads.set(space, 20)
	a := autoscalerObject(space, "server", space)
	create(t, d, a)
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
			return err
		}
		if c := conditions(a); !slices.Contains(c, "Ready=True Deciding") {
			return fmt.Errorf("the bystander: %v", c)
		}
		return nil
	})
	if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
		t.Fatal(err)
	}
	generation := d.GetGeneration()
	return func(t *testing.T) {
		t.Helper()
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil || d.GetGeneration() != generation {
			t.Errorf("the bystander's workload was changed: generation %d, was %d (%v)", d.GetGeneration(), generation, err)
		}
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil || !slices.Contains(conditions(a), "Ready=True Deciding") {
			t.Errorf("the bystander: %v, %v", conditions(a), err)
		}
	}
}

// vital are figures of the controller that have to be as before when the swept objects
// have gone.
type vital struct {
	goroutines float64
}

func vitals(t *testing.T) vital {
	t.Helper()
	n, err := sample(t.Context(), "go_goroutines")
	if err != nil {
		t.Fatal(err)
	}
	return vital{goroutines: n}
}

func (v vital) restored(ctx context.Context) error {
	n, err := sample(ctx, "go_goroutines")
	if err != nil {
		return err
	}
	if n > v.goroutines+30 {
		return fmt.Errorf("%v goroutines, before there were %v", n, v.goroutines)
	}
	text, err := page(ctx)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, `"swept-`) || strings.Contains(line, `"fresh-`) {
			return fmt.Errorf("a series is left: %s", line)
		}
	}
	return nil
}
