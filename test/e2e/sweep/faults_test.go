// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/child"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// clockError is how wrong clocks are.
const clockError = 10 * time.Minute

// unseen is how long a decision may be made on values that are not the last ones: a query is asked every second, and
// requests are answered late.
const unseen = 3 * time.Second

// trial is one test of features under faults.
type trial struct {
	*testing.T
	*auditor
	r       *rand.Rand
	clocks  bool          // they can be set
	wrong   time.Duration // the controller's clock
	casts   int
	made    map[string]int // pairs of features, and features under faults
	slowest map[string]time.Duration
	found   []string
}

// fault is something that fails for a while. begin returns what ends it.
type fault struct {
	name  string
	begin func(*trial) (end func())
}

func (x *trial) faults() []fault {
	all := []fault{
		{"node lost", (*trial).loseNode},
		{"agents hang", (*trial).hangAgents},
		{"backend hangs", (*trial).hangBackend},
		{"restored", (*trial).restore},
		{"writes disturbed", (*trial).disturbWrites},
		{"API server hangs", (*trial).hangAPIServer},
		{"two replicas", (*trial).twoReplicas},
		{"controller down", (*trial).crash},
	}
	if x.clocks {
		all = append(all, fault{"clock wrong", (*trial).setClock})
	}
	return slices.DeleteFunc(all, func(f fault) bool { return !rig.match.MatchString(f.name) })
}

// Workloads with pairs of features get new loads, overrides, schedules, budgets and versions while one or two things
// fail. Their replicas stay within what the loads and the objects ask for, and are as these ask for when all works again.
func TestFaults(t *testing.T) {
	bystander := newBystander(t)
	x := &trial{T: t, r: random("faults"), made: map[string]int{}, slowest: map[string]time.Duration{}}
	createNamespace(t, faultSpace)
	stack.Must(t, rig.AwaitNamespace(t.Context(), faultSpace))
	err := child.SetClock(rig.ControllerPID(), 0)
	if x.clocks = err == nil; err != nil {
		t.Log("no clock is wrong:", err)
	}
	stack.Must(t, rig.DeployAgents(t.Context()))
	t.Cleanup(func() {
		_ = rig.Client.Delete(context.Background(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent"}})
	})
	x.auditor = newAuditor(t)
	var queue []fault
	for n := 0; n < *episodes && t.Context().Err() == nil && len(x.found) < 60; n++ {
		if n%3 == 0 || len(x.found) > 0 && n > 0 && x.broken() {
			x.newCast()
		}
		if len(queue) == 0 {
			queue = x.faults()
			x.r.Shuffle(len(queue), func(a, b int) { queue[a], queue[b] = queue[b], queue[a] })
		}
		now := queue[:1]
		if queue = queue[1:]; len(queue) > 0 && x.r.IntN(2) == 0 {
			now = append(slices.Clone(now), queue[x.r.IntN(len(queue))])
		}
		x.episode(n+1, now)
	}
	x.removeCast()
	for _, k := range slices.Sorted(maps.Keys(x.made)) {
		t.Logf("%3d × %s", x.made[k], k)
	}
	t.Logf("%d changes of replicas; as asked for after the last fault at most: %v", x.events, x.slowest)
	for _, f := range x.found {
		t.Error(f)
	}
	bystander(t)
	checkLog(t)
}

func (x *trial) broken() bool { return x.settled(x.Context()) != nil }

// newCast replaces the subjects.
func (x *trial) newCast() {
	x.removeCast()
	x.casts++
	n := 0
	add := func(a, b feature, partner *subject) *subject {
		s := &subject{name: fmt.Sprintf("c%d%c", x.casts, 'a'+n), has: []feature{a, b}, usesGPU: a == budgets || b == budgets || x.r.IntN(2) == 0, partner: partner}
		n++
		if s.both = x.r.IntN(3) == 0; s.both {
			s.usesGPU = true
			x.made["both signals"]++
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if partner != nil {
			s.first, s.ratio = true, []ratio{{0.5, 2}, {1, 1}, {0.25, 1}}[x.r.IntN(3)]
			partner.partner, partner.ratio = s, s.ratio
		}
		s.now.need = 1 + x.r.Int32N(4)
		if s.can(budgets) {
			s.now.budget = 3
		}
		x.subjects[s.name] = s
		return s
	}
	for n < 5 {
		at := x.r.Perm(len(features))[:2]
		a, b := features[min(at[0], at[1])], features[max(at[0], at[1])]
		x.made[fmt.Sprintf("%s and %s", a, b)]++
		if a != pairs && b != pairs {
			add(a, b, nil)
			continue
		}
		add(a, b, add(pairs, features[x.r.IntN(5)], nil))
	}
	x.expect()
	for _, s := range x.sorted() {
		x.create(s)
	}
	x.converge("created", time.Now(), nil)
	x.expect()
}

func (x *trial) create(s *subject) {
	x.mu.Lock()
	w, n := s.now, s.target(time.Now())
	s.replicas = n
	x.mu.Unlock()
	x.offer(s, w.need)
	d := stack.Deployment(faultSpace, s.name, n, 500*time.Millisecond)
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))}
	if !s.usesGPU {
		d.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	}
	if s.can(drains) {
		d.Spec.Template.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
	}
	a := stack.Autoscaler(s.name)
	a.Namespace, a.Spec.MinReplicas, a.Spec.MaxReplicas = faultSpace, new(int32(least)), most
	a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = new(int32(0))
	query := v1alpha1.Signal{Query: &v1alpha1.QuerySignal{PromQL: fmt.Sprintf("load{w=%q}", s.name)}, Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("10")}}
	switch {
	case s.both:
		a.Spec.Signals = append(a.Spec.Signals, query)
	case !s.usesGPU:
		a.Spec.Signals = []v1alpha1.Signal{query}
	}
	if s.can(drains) {
		a.Spec.Drain = &v1alpha1.Drain{MaxSeconds: 1}
	}
	if s.can(steps) {
		a.Spec.Behavior.ScaleUp = &v1alpha1.ScalingRules{Policies: []v1alpha1.ScalingPolicy{{Type: "Pods", Value: 1, PeriodSeconds: 1}}}
	}
	if w.budget > 0 {
		a.Spec.Budget = &v1alpha1.Budget{MaxGPUs: &w.budget}
	}
	if s.first {
		low, high := resource.MustParse(fmt.Sprint(s.ratio.min)), resource.MustParse(fmt.Sprint(s.ratio.max))
		a.Spec.Pair = &v1alpha1.Pair{With: s.partner.name, Ratio: v1alpha1.PairRatio{Min: &low, Max: &high}}
	}
	create(x.T, d, a)
}

func (x *trial) removeCast() {
	ctx := context.WithoutCancel(x.Context())
	for _, s := range x.sorted() {
		for _, o := range []client.Object{&v1alpha1.GPUAutoscaler{}, &appsv1.Deployment{}} {
			o.SetNamespace(faultSpace)
			o.SetName(s.name)
			_ = rig.Client.Delete(ctx, o)
		}
		x.mu.Lock()
		delete(x.subjects, s.name)
		x.mu.Unlock()
	}
	stack.Eventually(x, func() error {
		var pods corev1.PodList
		if err := rig.Client.List(ctx, &pods, client.InNamespace(faultSpace)); err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left: %w", len(pods.Items), err)
		}
		return nil
	})
}

func (x *trial) offer(s *subject, need int32) {
	share, total := offered(need)
	if s.both {
		share, _ = offered(max(1, need-1))
	}
	rig.Offer(s.name, share)
	rig.loads.set(s.name, total)
}

// episode changes what subjects ask for before, while and after things fail.
func (x *trial) episode(n int, failing []fault) {
	var names []string
	x.mu.Lock()
	x.slack, x.lossy = 0, false
	for _, f := range failing {
		names = append(names, f.name)
		switch f.name {
		case "clock wrong":
			x.slack = clockError + time.Minute
		case "node lost", "restored":
			x.lossy = true
		}
	}
	x.mu.Unlock()
	what := fmt.Sprintf("episode %d, %s", n, strings.Join(names, " and "))
	for _, s := range x.sorted() {
		for _, f := range s.has {
			for _, name := range names {
				x.made[fmt.Sprintf("%s under %s", f, name)]++
			}
		}
		x.act(s)
	}
	var ends []func()
	for _, f := range failing {
		ends = append(ends, f.begin(x))
	}
	for range 2 + x.r.IntN(3) {
		x.pause(200*time.Millisecond, 2*time.Second)
		all := x.sorted()
		x.act(all[x.r.IntN(len(all))])
	}
	for _, end := range slices.Backward(ends) {
		end()
	}
	ended := time.Now()
	if x.r.IntN(2) == 0 {
		all := x.sorted()
		x.act(all[x.r.IntN(len(all))])
	}
	x.converge(what, ended, names)
}

// pause waits for a while between two times.
func (x *trial) pause(least, most time.Duration) {
	select {
	case <-x.Context().Done():
	case <-time.After(least + time.Duration(x.r.Int64N(int64(most-least)))):
	}
}

// converge waits until each subject is as its wishes ask for, and looks for a while whether it stays so.
func (x *trial) converge(what string, since time.Time, names []string) {
	took := time.Duration(0)
	var looked time.Time // when it was as asked for first, and ever since
	err := stack.Await(x.Context(), stack.Patience, func() error {
		if err := x.settled(x.Context()); err != nil {
			looked = time.Time{}
			return err
		}
		if looked.IsZero() {
			looked = time.Now()
			took = looked.Sub(since).Round(100 * time.Millisecond)
		}
		if time.Since(looked) < unseen { // what was asked for in between may be on its way
			return errors.New("as asked for, and not yet for long")
		}
		return nil
	})
	if err != nil {
		x.found = append(x.found, fmt.Sprintf("%s: it stays wrong: %v", what, err))
		x.Log(x.found[len(x.found)-1])
		for _, s := range x.sorted() {
			x.mu.Lock()
			x.Logf("  %s: %s", s, strings.Join(s.did, "; "))
			x.mu.Unlock()
		}
	}
	for _, name := range names {
		x.slowest[name] = max(x.slowest[name], took)
	}
	for _, v := range x.violations() {
		x.found = append(x.found, what+": "+v)
		x.Log(x.found[len(x.found)-1])
	}
	x.Logf("%s: as asked for after %v, %d violations so far", what, took, len(x.found))
	if err == nil {
		x.expect()
	}
}

// act changes one thing that a subject asks for.
func (x *trial) act(s *subject) {
	f := s.has[x.r.IntN(len(s.has))]
	if x.r.IntN(2) == 0 {
		f = ""
	}
	switch f {
	case overrides:
		var o *v1alpha1.Override
		if s.now.override == nil || x.r.IntN(3) > 0 {
			all := holds(time.Now().Add([]time.Duration{6 * time.Minute, time.Hour}[x.r.IntN(2)]))
			o = &all[x.r.IntN(len(all))]
		}
		x.edit(s, fmt.Sprintf("override %s", short(o)), func(w *wish) { w.override = o })
	case schedules:
		var w *v1alpha1.Schedule
		if s.now.schedule == nil || x.r.IntN(3) > 0 {
			all := windows(time.Now())
			w = &all[x.r.IntN(len(all))]
			if x.r.IntN(2) == 0 {
				w.MinReplicas = new(int32(3))
			} else {
				w.MaxReplicas = new(x.r.Int32N(3))
			}
		}
		x.edit(s, fmt.Sprintf("schedule %s", short(w)), func(to *wish) { to.schedule = w })
	case budgets:
		b := 1 + x.r.Int32N(4)
		x.edit(s, fmt.Sprintf("budget %d", b), func(w *wish) { w.budget = b })
	case rollouts:
		s.version++
		x.change(s, "rollout", func(*wish) {})
		patch := fmt.Appendf(nil, `{"spec": {"template": {"metadata": {"annotations": {"version": "%d", %q: "%dms"}}}}}`, s.version, simnode.StartupAnnotation, 500+x.r.IntN(1000))
		x.must(func() error {
			return rig.Client.Patch(x.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: faultSpace, Name: s.name}}, client.RawPatch(types.MergePatchType, patch))
		})
	default:
		need := 1 + x.r.Int32N(most+1)
		x.change(s, fmt.Sprintf("load for %d", need), func(w *wish) { w.need = need })
		x.offer(s, need)
	}
}

func short(v any) string {
	switch v := v.(type) {
	case *v1alpha1.Override:
		if v != nil {
			return fmt.Sprintf("%s %s %s until %s", deref(v.Replicas), deref(v.MinReplicas), deref(v.MaxReplicas), v.Until.UTC().Format("15:04:05"))
		}
	case *v1alpha1.Schedule:
		if v != nil {
			return fmt.Sprintf("%s-%s %s to %s", v.Start, v.End, deref(v.MinReplicas), deref(v.MaxReplicas))
		}
	}
	return "none"
}

func deref(n *int32) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// must repeats a request until it succeeds.
func (x *trial) must(f func() error) {
	x.Helper()
	stack.Eventually(x, f)
}

// edit changes a subject's GPUAutoscaler.
func (x *trial) edit(s *subject, what string, set func(*wish)) {
	w := x.change(s, what, set)
	x.must(func() error {
		var a v1alpha1.GPUAutoscaler
		if err := rig.Client.Get(x.Context(), types.NamespacedName{Namespace: faultSpace, Name: s.name}, &a); err != nil {
			return err
		}
		a.Spec.Override, a.Spec.Schedules, a.Spec.Budget = w.override, nil, nil
		if w.schedule != nil {
			a.Spec.Schedules = []v1alpha1.Schedule{*w.schedule}
		}
		if w.budget > 0 {
			a.Spec.Budget = &v1alpha1.Budget{MaxGPUs: &w.budget}
		}
		return rig.Client.Update(x.Context(), &a)
	})
}

// loseNode cuts the power of a node. Its objects and those of its pods are deleted, as a cluster does.
func (x *trial) loseNode() func() {
	all := rig.Nodes.NodeNames()
	node := all[x.r.IntN(len(all))]
	stack.Must(x, rig.Nodes.PowerOff(node))
	x.must(func() error {
		return client.IgnoreNotFound(rig.Client.Delete(x.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	})
	x.forget(node)
	return func() {
		x.forget(node) // what the scheduler has put there since
		x.must(func() error {
			if err := rig.Nodes.PowerOn(x.Context(), node); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
		stack.Must(x, rig.AwaitAgents(x.Context(), len(all)))
	}
}

// forget deletes the pods of a node.
func (x *trial) forget(node string) {
	var pods corev1.PodList
	x.must(func() error { return rig.Client.List(x.Context(), &pods) })
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName == node {
			x.must(func() error {
				return client.IgnoreNotFound(rig.Client.Delete(x.Context(), p, client.GracePeriodSeconds(0)))
			})
		}
	}
}

// hangAgents stops the processes of one agent or of all.
func (x *trial) hangAgents() func() {
	var pods corev1.PodList
	x.must(func() error {
		return rig.Client.List(x.Context(), &pods, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"})
	})
	hung := pods.Items
	if len(hung) > 1 && x.r.IntN(2) == 0 {
		hung = hung[:1]
	}
	for i := range hung {
		_ = rig.Nodes.Hang(hung[i].Namespace, hung[i].Name) // it may have gone with its node
	}
	return func() {
		x.long(70 * time.Second) // longer than values count
		for i := range hung {
			_ = rig.Nodes.Resume(hung[i].Namespace, hung[i].Name)
		}
	}
}

// long waits in one of six cases, but never in a short run.
func (x *trial) long(d time.Duration) {
	if x.r.IntN(6) == 0 && *episodes > 10 {
		x.pause(d, d+time.Second)
	}
}

// hangBackend has the PromQL backend answer nothing.
func (x *trial) hangBackend() func() {
	rig.loads.hung.Store(true)
	return func() {
		x.long(70 * time.Second)
		rig.loads.hung.Store(false)
	}
}

// setClock has the controller's clock wrong, from its start or from a moment on, until a moment or its next start.
func (x *trial) setClock() func() {
	x.wrong = []time.Duration{clockError, -clockError}[x.r.IntN(2)]
	restarts := x.r.IntN(4)
	set := func() {
		if pid := rig.ControllerPID(); pid != 0 {
			stack.Must(x, child.SetClock(pid, x.wrong))
		}
	}
	if restarts&1 != 0 {
		x.restart()
	} else {
		set()
	}
	return func() {
		x.long(30 * time.Second)
		x.wrong = 0
		if restarts&2 != 0 {
			x.restart()
		} else {
			set()
		}
	}
}

// restart kills the controller and starts it, and does not wait for the end of the lease.
func (x *trial) restart() {
	rig.KillController()
	x.release()
	x.start()
}

// start starts the controller, with the clock that it is to have.
func (x *trial) start() {
	set, by := make(chan error, 1), x.wrong
	go func() {
		if by == 0 {
			set <- nil
			return
		}
		pid := 0
		for pid == 0 && x.Context().Err() == nil {
			time.Sleep(time.Millisecond)
			pid = rig.ControllerPID()
		}
		set <- child.SetClock(pid, by)
	}()
	stack.Must(x, errors.Join(rig.StartController(x.Context()), <-set))
}

// release deletes the lease, as its end would.
func (x *trial) release() {
	x.must(func() error {
		return client.IgnoreNotFound(rig.Client.Delete(x.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-controller"}}))
	})
	rig.proxy.released()
}

// crash kills the controller for a while.
func (x *trial) crash() func() {
	rig.KillController()
	return func() {
		x.release()
		x.start()
	}
}

// restore puts the objects back to what they are now, status included, with the controller running or restarted.
func (x *trial) restore() func() {
	var old v1alpha1.GPUAutoscalerList
	var loads appsv1.DeploymentList
	wishes := map[string]wish{}
	x.mu.Lock()
	for _, s := range x.subjects {
		wishes[s.name] = s.now
	}
	x.mu.Unlock()
	x.must(func() error { return rig.Client.List(x.Context(), &old, client.InNamespace(faultSpace)) })
	x.must(func() error { return rig.Client.List(x.Context(), &loads, client.InNamespace(faultSpace)) })
	restarts := x.r.IntN(2) == 0
	return func() {
		if restarts {
			rig.KillController()
		}
		for i := range old.Items {
			o := &old.Items[i]
			s := x.subjects[o.Name]
			was := wishes[o.Name]
			x.change(s, "restored", func(w *wish) { was.need = w.need; *w = was })
			x.must(func() error {
				var a v1alpha1.GPUAutoscaler
				if err := rig.Client.Get(x.Context(), client.ObjectKeyFromObject(o), &a); err != nil {
					return err
				}
				a.Spec = *o.Spec.DeepCopy()
				if err := rig.Client.Update(x.Context(), &a); err != nil {
					return err
				}
				a.Status = *o.Status.DeepCopy()
				return rig.Client.Status().Update(x.Context(), &a)
			})
		}
		for i := range loads.Items {
			x.must(func() error {
				var d appsv1.Deployment
				if err := rig.Client.Get(x.Context(), client.ObjectKeyFromObject(&loads.Items[i]), &d); err != nil {
					return err
				}
				d.Spec = *loads.Items[i].Spec.DeepCopy()
				return rig.Client.Update(x.Context(), &d, client.FieldOwner(restorer))
			})
		}
		if restarts {
			x.release()
			x.start()
		}
	}
}

// writeKinds are the controller's writes about workloads.
var writeKinds = []string{"update deployments.apps/scale", "patch gpuautoscalers.gpupilot.dev/status", "patch pods", "patch pods/status"}

// disturbWrites has writes time out, or fail otherwise, mostly after they were applied.
func (x *trial) disturbWrites() func() {
	var plans []*plan
	for _, s := range x.sorted() {
		for _, kind := range writeKinds {
			do := []disturbance{lost, lost, unanswered, conflict, cutAfter, broken}[x.r.IntN(6)]
			if x.r.IntN(2) == 0 {
				plans = append(plans, &plan{kind: kind, do: do, times: 1 + x.r.IntN(3), about: s.name})
			}
		}
	}
	rig.proxy.arm(plans)
	return func() { rig.proxy.arm(nil) }
}

// hangAPIServer has the API server answer nothing for a while: requests wait.
func (x *trial) hangAPIServer() func() {
	d := []time.Duration{2 * time.Second, 13 * time.Second}[x.r.IntN(2)]
	stack.Must(x, rig.Cluster.PauseAPIServer())
	resumed := make(chan struct{})
	go func() {
		defer close(resumed)
		time.Sleep(d)
		_ = rig.Cluster.ResumeAPIServer()
	}()
	return func() { <-resumed }
}

// twoReplicas has a second replica take the lease from the first one, which hangs, runs on or has ended.
func (x *trial) twoReplicas() func() {
	standby, err := rig.StartStandby(x.Context())
	stack.Must(x, err)
	pid, how := rig.ControllerPID(), x.r.IntN(3)
	switch {
	case pid == 0:
	case how == 0:
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	case how == 1:
		rig.KillController()
	}
	x.release()
	return func() {
		if how == 0 && pid != 0 && pid == rig.ControllerPID() { // another fault may have restarted it
			stack.Leads(x.T, standby.URL, true)
			x.pause(time.Second, 2*time.Second)
			_ = syscall.Kill(pid, syscall.SIGCONT) // it believes that it leads
			x.pause(time.Second, 3*time.Second)
		}
		if rig.ControllerPID() == 0 {
			x.start()
		}
		if x.r.IntN(2) == 0 {
			standby.Stop()
		} else {
			standby.Kill()
			x.release()
		}
	}
}
