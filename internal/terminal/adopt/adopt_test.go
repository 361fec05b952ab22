// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// convert makes a GPUAutoscaler of the fixtures, as gpupilot migrate would.
func convert(kind string, object []byte) (Converted, error) {
	u := parse(string(object))
	o := &v1alpha1.GPUAutoscaler{}
	o.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "chat"}
	o.Spec.MaxReplicas = 6
	if n, ok, _ := unstructured.NestedFloat64(u.Object, "spec", "maxReplicas"); ok {
		o.Spec.MaxReplicas = int32(n)
	}
	o.Spec.Signals = []v1alpha1.Signal{{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}}}
	if text(u.Object["spec"]) != text(original(u).Object["spec"]) {
		return Converted{}, errors.New("the converter got a stopped object")
	}
	return Converted{Object: o, Text: "# The equivalent of the " + kind + ".\n"}, nil
}

// inCluster runs a test with a cluster in a bubble. Nothing ever has two writers there.
func inCluster(t *testing.T, seed uint64, kind string, f func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(seed)
		if kind == kindHPA {
			c.put("horizontalpodautoscalers/chat", hpa("chat"))
		} else {
			c.put("scaledobjects/chat", scaledObject())
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); c.run(ctx) }()
		time.Sleep(10 * time.Second) // simulated
		f(t, c)
		time.Sleep(20 * time.Second) // what runs on may write
		stop()
		<-done
		if len(c.both) > 0 {
			t.Errorf("two writers:\n%s\n%q", c.both[0], c.changes())
		}
	})
}

// attempt runs a command. killAt is the number of the call in which it is killed; 0: it is not.
func (c *cluster) attempt(t *testing.T, killAt int, applied bool, run func(ctx context.Context, o objects, r *runner) error) (string, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.mu.Lock()
	c.calls, c.writes, c.killAt, c.applied, c.kill = nil, 0, killAt, applied, cancel
	c.mu.Unlock()
	var out strings.Builder
	err := run(ctx, objects{c, "llm", "chat"}, &runner{out: &out, timeout: 2 * time.Minute})
	return out.String(), err
}

func adopts(kind string, change ...func(*adoption)) func(context.Context, objects, *runner) error {
	return func(ctx context.Context, o objects, r *runner) error {
		a := &adoption{objects: o, kind: kind, convert: convert}
		for _, f := range change {
			f(a)
		}
		return a.command(ctx, r, false)
	}
}

func releases(change ...func(*release)) func(context.Context, objects, *runner) error {
	return func(ctx context.Context, o objects, r *runner) error {
		x := &release{objects: o}
		for _, f := range change {
			f(x)
		}
		return x.command(ctx, r, false)
	}
}

// wantAdopted checks that the GPUAutoscaler, and nothing else, scales.
func wantAdopted(t *testing.T, c *cluster, kind string) {
	t.Helper()
	time.Sleep(20 * time.Second) // simulated
	c.mu.Lock()
	defer c.mu.Unlock()
	if fmt.Sprint(c.writers) != "[GPUAutoscaler]" {
		t.Errorf("%v write, want the GPUAutoscaler; calls %q", c.writers, c.calls)
	}
	if u := c.objects["scaledobjects/chat"]; kind == kindScaledObject && (u == nil || text(original(u).Object["spec"]) != text(scaledObject().Object["spec"])) {
		t.Errorf("the ScaledObject is %v", u)
	}
}

// wantReleased checks that the other autoscaler scales as before, and nothing else.
func wantReleased(t *testing.T, c *cluster, kind string) {
	t.Helper()
	time.Sleep(20 * time.Second) // simulated
	c.mu.Lock()
	defer c.mu.Unlock()
	if fmt.Sprint(c.writers) != "[HPA]" {
		t.Errorf("%v write, want the HPA; calls %q", c.writers, c.calls)
	}
	key, want := "horizontalpodautoscalers/chat", hpa("chat")
	if kind == kindScaledObject {
		key, want = "scaledobjects/chat", scaledObject()
	}
	u := c.objects[key]
	if u == nil {
		t.Fatalf("no %s; calls %q", key, c.calls)
	}
	for _, field := range [][]string{{"spec"}, {"metadata", "labels"}, {"metadata", "annotations"}, {"metadata", "finalizers"}} {
		got, _, _ := unstructured.NestedFieldNoCopy(u.Object, field...)
		before, _, _ := unstructured.NestedFieldNoCopy(want.Object, field...)
		if text(got) != text(before) {
			t.Errorf("%v is %s, want %s", field, text(got), text(before))
		}
	}
	if o := c.objects["gpuautoscalers/chat"]; o != nil {
		if mode, _, _ := unstructured.NestedString(o.Object, "spec", "actuation"); mode != "Advise" || o.GetAnnotations()[recordAnnotation] != "" {
			t.Errorf("the GPUAutoscaler is left with %s, %v", mode, o.GetAnnotations())
		}
	}
}

var kinds = []string{kindHPA, kindScaledObject}

func TestAdoptAndRelease(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			adoptAndRelease(t, kind)
		})
	}
}

func adoptAndRelease(t *testing.T, kind string) {
	for seed := range uint64(20) {
		inCluster(t, seed, kind, func(t *testing.T, c *cluster) {
			before := c.nobody()
			out, err := c.attempt(t, 0, false, adopts(kind))
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			gap := c.nobody() - before
			wantAdopted(t, c, kind)
			// One sync of the HorizontalPodAutoscaler, its duration, and the lags.
			if limit := syncPeriod + 10*time.Second + settle; gap > limit {
				t.Errorf("for %v nobody scaled, want at most %v", gap, limit)
			}
			if seed == 0 {
				t.Logf("%s: for %v nobody scaled; %q\n%s", kind, gap, c.changes(), out)
			}
			out, err = c.attempt(t, 0, false, adopts(kind)) // again
			if err != nil || len(c.changes()) > 0 || !strings.Contains(out, "has taken over") {
				t.Errorf("again: %v, %q\n%s", err, c.changes(), out)
			}
			before = c.nobody()
			if out, err = c.attempt(t, 0, false, releases()); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if seed == 0 {
				t.Logf("%s: for %v nobody scaled; %q\n%s", kind, c.nobody()-before, c.changes(), out)
			}
			wantReleased(t, c, kind)
			out, err = c.attempt(t, 0, false, releases())
			if err != nil || len(c.changes()) > 0 || !strings.Contains(out, "nothing to hand back") {
				t.Errorf("again: %v, %q\n%s", err, c.changes(), out)
			}
			if out, err = c.attempt(t, 0, false, adopts(kind)); err != nil { // and once more
				t.Fatalf("%v\n%s", err, out)
			}
			wantAdopted(t, c, kind)
			if out, err = c.attempt(t, 0, false, releases(func(r *release) { r.deletes = true })); err != nil || c.object("gpuautoscalers/chat") != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			wantReleased(t, c, kind)
		})
	}
}

// The command is killed in each of its calls, before and after the API server has applied it. A second run finishes,
// or goes back.
func TestKilledInEachCall(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for _, from := range []string{"adopt", "release"} {
			t.Run(from+" "+kind, func(t *testing.T) {
				t.Parallel()
				killEach(t, kind, from)
			})
		}
	}
}

// killEach kills a command in each of its calls, and in each of those that change something four times: with the change
// applied and not, and with adopt and release as the second run.
func killEach(t *testing.T, kind, from string) {
	reads, changes := 0, 0
	for killIn(t, kind, from, reads+1, false, false, reads%2 == 0) {
		reads++
	}
	for killIn(t, kind, from, changes+1, true, false, false) {
		changes++
		killIn(t, kind, from, changes, true, false, true)
		killIn(t, kind, from, changes, true, true, false)
		killIn(t, kind, from, changes, true, true, true)
	}
	t.Logf("%s of a %s: killed in %d calls, and four times in each of %d that change something", from, kind, reads, changes)
	if changes < 3 {
		t.Errorf("%s of a %s: %d calls change something", from, kind, changes)
	}
}

// killIn runs a command, kills it in its n-th call, of all or of those that change something, and goes on, or back. It
// reports whether there was such a call.
func killIn(t *testing.T, kind, from string, n int, change, applied, back bool) (reached bool) {
	seed := uint64(n)*8 + bit(change)*4 + bit(applied)*2 + bit(back)
	inCluster(t, seed, kind, func(t *testing.T, c *cluster) {
		first := adopts(kind)
		if from == "release" {
			if out, err := c.attempt(t, 0, false, first); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			first = releases()
		}
		c.set(func() { c.killsChange = change })
		out, err := c.attempt(t, n, applied, first)
		c.set(func() { c.killsChange = false })
		if err == nil {
			return // it was over before
		} else if !errors.Is(err, context.Canceled) {
			t.Fatalf("killed in call %d: %v\n%s", n, err, out)
		}
		reached = true
		killed := c.calls[len(c.calls)-1]
		time.Sleep(time.Duration(rand.New(rand.NewPCG(seed, 1)).Int64N(int64(40 * time.Second)))) // simulated
		fail := func(out string, err error) {
			t.Helper()
			t.Errorf("%s, killed in call %d (%s, applied %t), then back %t: %v\n%s", from, n, killed, applied, back, err, out)
		}
		if !back {
			if out, err := c.attempt(t, 0, false, adopts(kind)); err != nil {
				fail(out, err)
			}
			wantAdopted(t, c, kind)
			return
		}
		exists := c.object("gpuautoscalers/chat") != nil
		if out, err := c.attempt(t, 0, false, releases()); err != nil && (exists || !strings.Contains(err.Error(), "not found")) {
			fail(out, err)
		}
		wantReleased(t, c, kind)
	})
	return reached
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func forbidden(what string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "chat", errors.New("not you"))
}

// Whether a request is tried again depends on its status, except where that is known to pass. The status stays readable.
func TestErrorsThatPass(t *testing.T) {
	err := forbidden("scaledobjects")
	if passes := fmt.Errorf("remove the annotation: %w", passing{err}); !isFinal(err) || isFinal(passes) || !apierrors.IsForbidden(passes) {
		t.Errorf("final: %v, and %v for %v", isFinal(err), isFinal(passes), passes)
	}
}

// What cannot be finished is undone: the other autoscaler scales as before.
func TestGoesBack(t *testing.T) {
	f := func(what, kind, want string, break_ func(c *cluster)) {
		t.Helper()
		inCluster(t, 7, kind, func(t *testing.T, c *cluster) {
			c.set(func() { break_(c) })
			out, err := c.attempt(t, 0, false, adopts(kind))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q\n%s", what, err, want, out)
			}
			c.set(func() { c.refuses, c.ready = nil, true })
			if out, err := c.attempt(t, 0, false, releases()); err != nil && !strings.Contains(err.Error(), "not found") {
				t.Errorf("%s: %v\n%s", what, err, out)
			}
			wantReleased(t, c, kind)
		})
	}
	deny := func(call string, alsoDry bool) func(*cluster) {
		return func(c *cluster) {
			c.refuses = func(method, path string, dry bool) error {
				if method+" "+path == call && (alsoDry || !dry) {
					return forbidden(path)
				}
				return nil
			}
		}
	}
	f("never ready", kindHPA, "Ready is False, OwnedByAnother", func(c *cluster) { c.ready = false })
	f("no controller", kindHPA, "Does it run?", func(c *cluster) { c.controllerDead = true })
	f("would scale down", kindHPA, "it would set 3 instead of 4 replicas", func(c *cluster) { c.desired = func(n int64) int64 { return n - 1 } })
	f("no right to create", kindHPA, "forbidden", deny("POST gpuautoscalers", true))
	f("no right to stop", kindHPA, "The HorizontalPodAutoscaler chat still scales", deny("PUT horizontalpodautoscalers/chat", true))
	f("no right to delete", kindHPA, "delete it later", deny("DELETE horizontalpodautoscalers/chat", true))
	f("a right to delete that ends", kindHPA, "The HorizontalPodAutoscaler chat scales again", deny("DELETE horizontalpodautoscalers/chat", false))
	f("no right to scale", kindHPA, "The HorizontalPodAutoscaler chat still scales", deny("PATCH gpuautoscalers/chat", true))
	f("no right to pause", kindScaledObject, "The ScaledObject chat still scales", deny("PATCH scaledobjects/chat", true))
	f("no right to scale", kindScaledObject, "set actuation: Scale later", deny("PATCH gpuautoscalers/chat", true))
	f("nobody syncs", kindHPA, "no condition of the HorizontalPodAutoscaler names the metric", func(c *cluster) { c.lags["hpa sync"] = time.Hour })
	f("KEDA is away", kindScaledObject, "The ScaledObject chat scales again", func(c *cluster) { c.lags["keda"] = time.Hour })
	f("0 replicas", kindHPA, "set 1 or more first", func(c *cluster) { c.replicas = 0 })
}

// A metric that no file tells is looked at once. If its series does not exist, what is missing is said at once, and nothing
// is left.
func TestGuessedMetricIsLookedAtOnce(t *testing.T) {
	guesses := func(a *adoption) {
		a.convert = func(kind string, object []byte) (Converted, error) {
			c, err := convert(kind, object)
			c.Guessed = []string{"vllm_num_requests_waiting of Namespace llm"}
			return c, err
		}
	}
	inCluster(t, 3, kindHPA, func(t *testing.T, c *cluster) {
		c.set(func() {
			c.ready, c.silent = false, "no fresh value of q: query q: the query returns nothing: no series matches"
		})
		began := time.Now()
		out, err := c.attempt(t, 0, false, adopts(kindHPA, guesses))
		if took := time.Since(began); took > 15*time.Second { // of the simulation
			t.Errorf("it says so after %v", took)
		}
		for _, want := range []string{"no file says what vllm_num_requests_waiting of Namespace llm is", "--adapter-config FILE", "chat still scales, and the GPUAutoscaler is deleted again"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q\n%s", err, want, out)
			}
		}
		c.set(func() {
			if c.objects["gpuautoscalers/chat"] != nil {
				t.Error("a GPUAutoscaler is left")
			}
		})
		wantReleased(t, c, kindHPA)
		// A guess whose series exists is as good as a file.
		c.set(func() { c.ready, c.silent = true, "" })
		if out, err := c.attempt(t, 0, false, adopts(kindHPA, guesses)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		wantAdopted(t, c, kindHPA)
	})
}

// A dry run changes nothing, and says all steps.
func TestDryRun(t *testing.T) {
	for _, kind := range kinds {
		inCluster(t, 3, kind, func(t *testing.T, c *cluster) {
			dry := func(run func(ctx context.Context, o objects, r *runner) error) string {
				t.Helper()
				before := c.asWritten()
				out, err := c.attempt(t, 0, false, run)
				if after := c.asWritten(); err != nil || before != after {
					t.Errorf("%v: %s became %s", err, before, after)
				}
				return out
			}
			out := dry(func(ctx context.Context, o objects, r *runner) error {
				return (&adoption{objects: o, kind: kind, convert: convert}).command(ctx, r, true)
			})
			if c.object("gpuautoscalers/chat") != nil {
				t.Error("the dry run created a GPUAutoscaler")
			}
			steps := []string{"# The equivalent of", "1. create", "2. wait until it is Ready", "3. stop", "4. wait until", "5. delete", "6. set actuation: Scale", "7. wait until the controller", "dry run, nothing was changed"}
			if kind == kindScaledObject {
				steps = []string{"1. create", "2. wait until it is Ready", "3. pause", "4. wait until KEDA", "5. set actuation: Scale", "6. wait until the controller"}
			}
			inOrder(t, out, steps)
			if out, err := c.attempt(t, 0, false, adopts(kind)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out = dry(func(ctx context.Context, o objects, r *runner) error {
				return (&release{objects: o}).command(ctx, r, true)
			})
			steps = []string{"kind: HorizontalPodAutoscaler", "1. set actuation: Advise", "2. wait", "3. create the HorizontalPodAutoscaler", "4. remove the annotation gpupilot.dev/adopted"}
			if kind == kindScaledObject {
				steps = []string{"1. set actuation: Advise", "2. wait", "3. remove the annotation autoscaling.keda.sh/paused", "4. remove the annotation gpupilot.dev/adopted"}
			}
			inOrder(t, out, steps)
			wantAdopted(t, c, kind)
		})
	}
}

// asWritten is what people and commands write of all objects.
func (c *cluster) asWritten() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]any{}
	for k, u := range c.objects {
		out[k] = []any{u.Object["spec"], u.GetAnnotations(), u.GetLabels()}
	}
	return text(out)
}

func inOrder(t *testing.T, out string, want []string) {
	t.Helper()
	rest := out
	for _, w := range want {
		_, after, ok := strings.Cut(rest, w)
		if !ok {
			t.Errorf("no %q at its place in\n%s", w, out)
			return
		}
		rest = after
	}
}
