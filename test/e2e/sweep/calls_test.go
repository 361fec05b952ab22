// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/test/stack"
)

// space is the namespace of the scaled workloads.
const space = "calls"

// workloads is how many are scaled at a time, each with a disturbance of its own.
const workloads = 24

// low and high are the replicas that the workloads need in turn.
const low, high = 1, 3

// scaled is one workload of the scenario.
type scaled struct {
	name string
	seen []int32 // its replicas in this phase
}

// scenario is what the controller does while its calls are disturbed: it scales up and
// down, also through HorizontalPodAutoscalers that it owns, creates and deletes, drains,
// applies a GPUExporter, evaluates a MetricQuery, and starts.
type scenario struct {
	t       *testing.T
	mu      sync.Mutex
	all     map[string]*scaled
	faults  []string
	crashes chan struct{}
	fault   time.Time // when the controller was last made to start again
	edits   int64
	slowest time.Duration // from the last disturbance to the replicas that are needed
}

// actuations are those that edits change to in turn.
var actuations = [2]v1alpha1.Actuation{v1alpha1.ActuationScale, v1alpha1.ActuationHPA}

// editedWorkloads are those whose actuation is changed.
var editedWorkloads = [2]string{workloadName(2), workloadName(6)}

func workloadName(i int) string { return fmt.Sprintf("w%02d", i) }

func newScenario(t *testing.T) *scenario {
	t.Helper()
	s := &scenario{t: t, all: map[string]*scaled{}, crashes: make(chan struct{}, 16)}
	installMonitoring(t)
	createNamespace(t, space)
	for i := range workloads {
		name := workloadName(i)
		s.all[name] = &scaled{name: name}
		rig.loads.set(name, low*10)
		d, a := deployment(space, name, low), autoscalerObject(space, name, name)
		var err error
		switch i % 4 {
		case 1: // replicas leave the endpoints before they are removed
			d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
			err = unstructured.SetNestedField(a.Object, int64(1), "spec", "drain", "maxSeconds")
		case 2:
			err = unstructured.SetNestedField(a.Object, string(v1alpha1.ActuationHPA), "spec", "actuation")
		}
		if err != nil {
			t.Fatal(err)
		}
		create(t, d, a)
	}
	create(t, object("MetricQuery", space, "depth", `{"query": {"promql": "load{w=\"w00\"}"}}`), object("GPUExporter", "", space, `{"nodeSelector": {"sweep": "none"}}`))
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), object("GPUExporter", "", space, "{}")) })
	rig.proxy.onCrash = func() {
		rig.CrashController()
		select {
		case s.crashes <- struct{}{}:
		default:
		}
	}
	s.watch()
	return s
}

// watch records the replicas of the Deployments.
func (s *scenario) watch() {
	w, err := rig.Client.Watch(s.t.Context(), &appsv1.DeploymentList{}, client.InNamespace(space))
	if err != nil {
		s.t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type != watch.Deleted {
				s.note(d.Name, *d.Spec.Replicas)
			}
		}
	})
	s.t.Cleanup(func() { w.Stop(); done.Wait() })
}

func (s *scenario) note(name string, replicas int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.all[name]
	if len(w.seen) == 0 || w.seen[len(w.seen)-1] != replicas {
		w.seen = append(w.seen, replicas)
	}
}

// phase gives all workloads a load and waits until each has the replicas that it needs.
func (s *scenario) phase(need int32, plans []*plan) {
	s.mu.Lock()
	for _, w := range s.all {
		w.seen = w.seen[max(0, len(w.seen)-1):]
	}
	s.mu.Unlock()
	for name := range s.all {
		rig.loads.set(name, float64(need)*10)
	}
	began := time.Now()
	err := stack.Await(s.t.Context(), stack.Patience, func() error {
		s.restart()
		return s.reached(need, began, plans)
	})
	if err != nil {
		s.violate(plans, "%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.all {
		ordered := slices.IsSorted(w.seen)
		if need == low {
			ordered = slices.IsSortedFunc(w.seen, func(a, b int32) int { return int(b - a) })
		}
		if !ordered || slices.Min(w.seen) < low || slices.Max(w.seen) > high {
			s.faults = append(s.faults, fmt.Sprintf("%s went %v on its way to %d, under %v", w.name, w.seen, need, concerning(plans, w.name)))
		}
	}
}

// reached reports which workloads lack replicas, and notes those that are late.
func (s *scenario) reached(need int32, began time.Time, plans []*plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		w := s.all[name]
		if len(w.seen) > 0 && w.seen[len(w.seen)-1] == need {
			continue
		}
		missing = append(missing, fmt.Sprintf("%s has %v under %v", name, w.seen, concerning(plans, name)))
		since := began
		if s.fault.After(since) {
			since = s.fault
		}
		if last := rig.proxy.lastFault(plans, name); last.After(since) {
			since = last
		}
		late := time.Since(since)
		s.slowest = max(s.slowest, late)
		if *within > 0 && late > *within && len(s.faults) < 50 {
			s.faults = append(s.faults, fmt.Sprintf("%v after the last disturbance, %s", late.Round(time.Millisecond), missing[len(missing)-1]))
			return nil // once is enough
		}
	}
	if len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	return nil
}

// concerning are the plans that concern a workload and were carried out.
func concerning(plans []*plan, name string) (out []*plan) {
	for _, p := range plans {
		if p.about == "" || p.about == name {
			out = append(out, p)
		}
	}
	return out
}

func (s *scenario) violate(plans []*plan, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf(format, args...)+fmt.Sprintf(" (disturbed: %v)", plans))
}

// restart starts a controller that was killed, as the kubelet does, and gives its lease
// free, for which another replica would have waited.
func (s *scenario) restart() {
	select {
	case <-s.crashes:
	default:
		return
	}
	s.start()
}

func (s *scenario) start() {
	for range 10 {
		rig.KillController()
		_ = rig.Client.Delete(s.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-controller"}})
		rig.proxy.released()
		err := rig.StartController(s.t.Context())
		s.mu.Lock()
		s.fault = time.Now()
		s.mu.Unlock()
		if err == nil {
			return
		}
		s.t.Logf("the controller starts again: %v", err)
	}
	s.t.Fatal("the controller does not start")
}

// edit changes the specs of the GPUExporter and of the MetricQuery, and who sets the
// replicas of some workloads.
func (s *scenario) edit() {
	s.edits++
	for _, x := range []struct{ kind, name, spec string }{
		{"GPUExporter", space, fmt.Sprintf(`{"podAnnotations":{"test.gpupilot.dev/edit":"%d"},"discovery":%q}`, s.edits, []string{"Labels", "Probe"}[s.edits%2])},
		{"MetricQuery", "depth", fmt.Sprintf(`{"metricName":"depth_%d"}`, s.edits)},
		{"GPUAutoscaler", editedWorkloads[0], fmt.Sprintf(`{"actuation":%q}`, actuations[s.edits%2])},
		{"GPUAutoscaler", editedWorkloads[1], fmt.Sprintf(`{"actuation":%q}`, actuations[(s.edits+1)%2])},
	} {
		u := object(x.kind, "", x.name, "{}")
		if x.kind != "GPUExporter" {
			u.SetNamespace(space)
		}
		if err := rig.Client.Patch(s.t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+x.spec+`}`))); err != nil {
			s.t.Fatal(err)
		}
	}
}

// edited waits until the last edit is in effect.
func (s *scenario) edited(plans []*plan) {
	// Calls without an answer follow one another: the GPUExporter's objects are written one by one.
	err := stack.Await(s.t.Context(), 3*stack.Patience, func() error {
		s.restart()
		ds := &appsv1.DaemonSet{}
		if err := rig.Client.Get(s.t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-agent-" + space}, ds); err != nil {
			return err
		}
		if got := ds.Spec.Template.Annotations["test.gpupilot.dev/edit"]; got != fmt.Sprint(s.edits) {
			return fmt.Errorf("the DaemonSet has edit %s, not %d", got, s.edits)
		}
		for _, x := range []struct{ kind, namespace, name string }{{"GPUExporter", "", space}, {"MetricQuery", space, "depth"}} {
			u := object(x.kind, x.namespace, x.name, "{}")
			if err := rig.Client.Get(s.t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
				return err
			}
			if seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); seen != u.GetGeneration() {
				return fmt.Errorf("the status of %s %s is about generation %d, not %d", x.kind, x.name, seen, u.GetGeneration())
			}
		}
		for i, name := range editedWorkloads {
			h := &autoscalingv2.HorizontalPodAutoscaler{}
			err := client.IgnoreNotFound(rig.Client.Get(s.t.Context(), client.ObjectKey{Namespace: space, Name: target.HPAName(name)}, h))
			if want := actuations[(s.edits+int64(i))%2] == v1alpha1.ActuationHPA; err != nil || (h.UID != "") != want {
				return fmt.Errorf("the HorizontalPodAutoscaler of %s exists: %v, want %v (%v)", name, h.UID != "", want, err)
			}
		}
		probe := &appsv1.DaemonSet{}
		err := client.IgnoreNotFound(rig.Client.Get(s.t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-probe-" + space}, probe))
		if exists := probe.UID != "" && probe.DeletionTimestamp == nil; err == nil && exists != (s.edits%2 == 1) {
			return fmt.Errorf("the probe's DaemonSet exists: %v", exists)
		}
		return err
	})
	if err != nil {
		s.violate(plans, "%v", err)
	}
}

// round runs the scenario once with these disturbances. With start, the controller starts
// in it, and its first calls are disturbed.
func (s *scenario) round(what string, plans []*plan, start bool) {
	began := time.Now()
	if start {
		list := &appsv1.DeploymentList{}
		if err := rig.Client.List(s.t.Context(), list, client.InNamespace(space)); err != nil {
			s.t.Fatal(err)
		}
		rig.proxy.remember(list.ResourceVersion)
		s.phase(high, nil) // what a stale API server does not know yet
	}
	rig.proxy.arm(plans)
	if start {
		s.start()
	}
	s.edit()
	s.phase(high, plans)
	s.phase(low, plans)
	s.edited(plans)
	rig.proxy.arm(nil)
	for { // a controller that was killed by the last call
		select {
		case <-s.crashes:
			s.start()
			continue
		default:
		}
		break
	}
	for _, x := range rig.proxy.wrongWrites() {
		s.violate(plans, "%s", x)
	}
	fired := 0
	for _, p := range plans {
		fired += p.fired
	}
	s.t.Logf("%s: %d calls disturbed by %d plans, %v", what, fired, len(plans), time.Since(began).Round(time.Millisecond))
}

// TestCalls disturbs the controller's calls. Which kinds of calls there are is recorded
// in a run without a disturbance.
func TestCalls(t *testing.T) {
	bystander := newBystander(t)
	s := newScenario(t)
	s.round("recording", nil, true)
	if *rounds == 0 { // a probe goes with a second edit
		s.round("recording", nil, false)
	}
	kinds := rig.proxy.kinds()
	t.Logf("%d kinds of calls: %s", len(kinds), strings.Join(kinds, ", "))
	if len(s.faults) > 0 {
		t.Fatalf("undisturbed: %s", strings.Join(s.faults, "\n"))
	}
	made, disturbed := map[string]int{}, 0
	all := roundsOf(kinds)
	r := random("calls")
	r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	if *rounds > 0 { // rounds in which many calls in a row have no answer take minutes
		slices.SortStableFunc(all, func(a, b disturbedRound) int { return a.slow() - b.slow() })
	}
	for i, x := range all {
		if *rounds > 0 && i >= *rounds || t.Context().Err() != nil {
			break
		}
		stop := func() {}
		if x.standby {
			standby, err := rig.StartStandby(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			stop = standby.Stop
		}
		s.round(fmt.Sprintf("round %d of %d", i+1, len(all)), x.plans, x.start)
		stop()
		for _, p := range x.plans {
			if p.fired > 0 {
				made[p.kind+":"+string(p.do)]++
				disturbed += p.fired
			}
		}
	}
	t.Logf("%d calls were disturbed, %d kinds and disturbances; the slowest workload was right %v after the last of them", disturbed, len(made), s.slowest.Round(time.Millisecond))
	for _, f := range s.faults {
		t.Error(f)
	}
	bystander(t)
	checkLog(t)
	if *rounds == 0 && *only == "" {
		for _, k := range kinds {
			for _, d := range disturbances {
				if d.fits(k) && made[k+":"+string(d)] == 0 {
					t.Logf("never made: %s:%s", k, d)
				}
			}
		}
	}
}

// disturbedRound is a round: its plans, whether the controller starts in it, and whether
// a standby waits for the lease.
type disturbedRound struct {
	plans          []*plan
	start, standby bool
}

// slow is 1 for a round with several plans of three calls in a row.
func (r disturbedRound) slow() int {
	if r.start && len(r.plans) > 1 && r.plans[0].times > 1 {
		return 1
	}
	return 0
}

// ofWorkloads are the kinds of calls about one workload, which each workload has.
var ofWorkloads = []string{
	"get gpuautoscalers.gpupilot.dev", "patch gpuautoscalers.gpupilot.dev/status", "update deployments.apps/scale", "get deployments.apps/scale", "patch pods",
}

// roundsOf puts every disturbance of every kind of call into a round, once and three times
// in a row, and those of the lease beside a standby. Calls about one workload are disturbed each in another workload. Of the others,
// each has another disturbance in a round. What kills the controller is in a round alone.
func roundsOf(kinds []string) (out []disturbedRound) {
	var each []*plan
	var others []string
	for _, k := range kinds {
		if !slices.Contains(ofWorkloads, k) {
			others = append(others, k)
		}
		for _, times := range []int{1, 3} {
			if rig.match.MatchString(k + ":" + string(crash)) {
				out = append(out, disturbedRound{plans: []*plan{{kind: k, do: crash, times: times}}, start: !slices.Contains(ofWorkloads, k)})
			}
			for _, d := range disturbances {
				if strings.Contains(k, " leases.") && d != crash && d.fits(k) && rig.match.MatchString(k+":"+string(d)) {
					// 20 in a row are longer than the lease lasts.
					out = append(out, disturbedRound{plans: []*plan{{kind: k, do: d, times: 1 + 19*(times/3)}}, standby: true})
				}
				if slices.Contains(ofWorkloads, k) && d != crash && d.fits(k) && rig.match.MatchString(k+":"+string(d)) {
					each = append(each, &plan{kind: k, do: d, times: times})
				}
			}
		}
	}
	for part := range slices.Chunk(each, workloads) {
		for i, p := range part {
			p.about = workloadName(i)
			if p.kind == "get deployments.apps/scale" { // it follows a conflict
				part = append(part, &plan{kind: "update deployments.apps/scale", do: conflict, times: p.times, about: p.about})
			}
		}
		out = append(out, disturbedRound{plans: part})
	}
	for n := range 2 * (len(disturbances) - 1) {
		var plans []*plan
		for i, k := range others {
			d := disturbances[(n/2+i)%(len(disturbances)-1)] // the last one is crash
			if d.fits(k) && rig.match.MatchString(k+":"+string(d)) {
				plans = append(plans, &plan{kind: k, do: d, times: 1 + 2*(n%2)})
			}
		}
		if len(plans) > 0 {
			out = append(out, disturbedRound{plans: plans, start: true})
		}
	}
	return out
}
