// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The bars are the product's promise: a standby decides within 2 s of the leader's shutdown and within 10 s of its crash,
// and replicas rise to at most one and a half of what the load needs, also while the requests wait that came before new
// replicas served.
const (
	barTermination = 2
	barCrash       = 10
	barPeak        = 1.5
)

// takeovers is how many leaders are ended in each way.
const takeovers = 5

// benchTakeover raises a load at the moment at which the leader ends, and waits for the first write of the standby.
func benchTakeover(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	load := &stack.Load{}
	s, err := stack.Start(ctx, stack.Config{Nodes: 4, Workloads: []simnode.Workload{{
		Name: "chat", Model: simnode.Model{Capacity: stack.Capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At,
	}}})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	load.Set(0.3 * stack.Capacity)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stack.WorkloadNamespace}},
		stack.Deployment(stack.WorkloadNamespace, "chat", 1, 3*time.Second), stack.Autoscaler("chat"),
	} {
		if err := s.Client.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	r := &takeover{Stack: s, load: load}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.watch(watching); err != nil {
		return nil, err
	}
	fmt.Fprintln(out, "takeover: a load rises to 3.4 times what a replica serves, and its requests wait")
	peak, err := r.rise(ctx)
	if err != nil {
		return nil, err
	}
	rows := []Row{relative("peak of the replicas while a load rises, with a queue", peak, "replicas", "what the load needs", float64(stack.Need(3.4)), barPeak)}
	for _, x := range []struct {
		how string
		end func()
		bar float64
	}{{"termination", s.StopController, barTermination}, {"crash", s.KillController, barCrash}} {
		fmt.Fprintf(out, "takeover: %d leaders end by a %s\n", takeovers, x.how)
		var times []float64
		for range takeovers {
			took, err := r.takeOver(ctx, x.end)
			if err != nil {
				return nil, err
			}
			times = append(times, took.Seconds())
		}
		slices.Sort(times)
		rows = append(rows, figure("takeover after a "+x.how+", load to /scale, p50", quantile(times, 0.5), "s"),
			atMost("takeover after a "+x.how+", load to /scale, max", quantile(times, 1), "s", x.bar))
	}
	return rows, nil
}

// takeover is a workload and its replicas.
type takeover struct {
	*stack.Stack
	load          *stack.Load
	replicas, top atomic.Int32
	raised        atomic.Int64 // when they were last raised, in ns since 1970
}

// watch follows the replicas until ctx ends.
func (r *takeover) watch(ctx context.Context) error {
	w, err := r.Client.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(stack.WorkloadNamespace))
	if err != nil {
		return err
	}
	go func() { // ends with ctx
		defer w.Stop()
		for e := range w.ResultChan() {
			d, ok := e.Object.(*appsv1.Deployment)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			if n := *d.Spec.Replicas; n > r.replicas.Swap(n) {
				r.raised.Store(time.Now().UnixNano())
				r.top.Store(max(r.top.Load(), n))
			}
		}
	}()
	return nil
}

// await waits until the workload has replicas, and all of them serve.
func (r *takeover) await(ctx context.Context, ok func(int32) bool) error {
	return stack.Await(ctx, stack.Patience, func() error {
		ready, err := r.ReadyPods(ctx, stack.WorkloadNamespace)
		if n := r.replicas.Load(); err == nil && (!ok(n) || len(ready) != int(n)) {
			err = fmt.Errorf("%d replicas, %d serve", n, len(ready))
		}
		return err
	})
}

func one(n int32) bool { return n == 1 }

// rise returns the most replicas while a load rises that needs more than one.
func (r *takeover) rise(ctx context.Context) (float64, error) {
	if err := r.await(ctx, one); err != nil {
		return 0, err
	}
	r.top.Store(1)
	r.load.Set(3.4 * stack.Capacity)
	if err := r.await(ctx, func(n int32) bool { return n >= stack.Need(3.4) }); err != nil {
		return 0, err
	}
	if err := pause(ctx, 10*time.Second); err != nil { // until what waits is served
		return 0, err
	}
	r.load.Set(0.3 * stack.Capacity)
	return float64(r.top.Load()), r.await(ctx, one)
}

// takeOver ends the leader, and returns the time until a standby has raised the replicas.
func (r *takeover) takeOver(ctx context.Context, end func()) (time.Duration, error) {
	standby, err := r.StartStandby(ctx)
	if err != nil {
		return 0, err
	}
	defer standby.Stop()
	if err := r.leads(ctx, r.ControllerURL); err != nil {
		return 0, err
	}
	began := time.Now()
	r.load.Set(1.6 * stack.Capacity)
	end()
	if err := r.await(ctx, func(n int32) bool { return n > 1 }); err != nil {
		return 0, err
	}
	took := time.Unix(0, r.raised.Load()).Sub(began)
	r.load.Set(0.3 * stack.Capacity)
	if err := r.await(ctx, one); err != nil {
		return 0, err
	}
	if err := r.StartController(ctx); err != nil {
		return 0, err
	}
	standby.Stop()
	return took, r.leads(ctx, r.ControllerURL)
}

// leads waits until a replica leads.
func (r *takeover) leads(ctx context.Context, url string) error {
	return stack.Await(ctx, stack.Patience, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(body), "\ngpupilot_leader 1\n") {
			err = fmt.Errorf("%s does not lead", url)
		}
		return err
	})
}
