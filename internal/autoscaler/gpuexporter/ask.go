// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
)

const (
	// askEvery is the time between two rounds. An agent with healthy GPUs is asked
	// again after askWell, any other agent in each round.
	askEvery = 5 * time.Second
	askWell  = 5 * time.Minute
	// maxConcurrent is the limit of concurrent requests to agents, and askTimeout the
	// time limit of each.
	maxConcurrent = 16
	askTimeout    = 5 * time.Second
)

// asked is the last answer of an agent.
type asked struct {
	at     time.Time
	report *Report
	err    error
}

func (a *asked) well() bool { return a.err == nil && a.report.Error == "" && a.report.Down == 0 }

// lacks are the lines of the collectors file that only DCGM may give.
func (a *asked) lacks() []string {
	if a.report == nil {
		return nil
	}
	return a.report.Lacks
}

// askLoop asks the agents until ctx is done.
func (k *Keeper) askLoop(ctx context.Context) {
	every := time.NewTicker(askEvery)
	defer every.Stop()
	for {
		if k.askAll(ctx, time.Now()) {
			k.Wake()
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// askAll asks the agents that are due, and reports whether an answer has changed.
func (k *Keeper) askAll(ctx context.Context, now time.Time) (changed bool) {
	if !k.active.Load() {
		return false
	}
	agents := k.deps.Agents()
	k.forget(agents)
	k.mu.Lock()
	agents = slices.DeleteFunc(slices.Clone(agents), func(a Agent) bool {
		last := k.reports[a.Pod]
		return last != nil && last.well() && now.Sub(last.at) < askWell
	})
	k.mu.Unlock()
	// The rest is left out if ctx is done.
	_ = fair.Together(maxConcurrent).Each(ctx, fair.Request{Payer: fair.Operator("reports of agents")}, len(agents), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		report, err := k.deps.Ask(ctx, agents[i].URL)
		k.mu.Lock()
		defer k.mu.Unlock()
		last, answer := k.reports[agents[i].Pod], &asked{now, report, err}
		if last == nil || last.well() != answer.well() || !slices.Equal(last.lacks(), answer.lacks()) {
			changed = true
		}
		k.reports[agents[i].Pod] = answer
	})
	return changed
}

// forget drops the answers of agents that are gone.
func (k *Keeper) forget(agents []Agent) {
	running := make(map[string]bool, len(agents))
	for i := range agents {
		running[agents[i].Pod] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for pod := range k.reports {
		if !running[pod] {
			delete(k.reports, pod)
		}
	}
}

// probing reports whether nodes have not answered the exporter's probe yet. It ends
// startGrace after the probe's creation: an image that cannot be pulled never answers.
func (k *Keeper) probing(ctx context.Context, e *v1alpha1.GPUExporter, now time.Time) (bool, error) {
	var ds appsv1.DaemonSet
	err := k.deps.Live.Get(ctx, client.ObjectKey{Namespace: k.settings.Namespace, Name: probeObjectName(e)}, &ds)
	if err != nil || !owns(e, &ds) || now.Sub(ds.CreationTimestamp.Time) > startGrace {
		return false, client.IgnoreNotFound(err)
	}
	answers := len(k.probeResults(ctx, map[string]bool{e.Name: true}))
	return ds.Status.ObservedGeneration < ds.Generation || answers < int(ds.Status.DesiredNumberScheduled), nil
}

// probeResults returns the label's value from each finished probe, by node.
func (k *Keeper) probeResults(ctx context.Context, exporters map[string]bool) map[string]string {
	out := map[string]string{}
	selector := labels.SelectorFromSet(labels.Set{LabelName: probeName})
	for _, cached := range k.deps.Pods(selector) {
		if !exporters[cached.Labels[LabelExporter]] || cached.DeletionTimestamp != nil || cached.Spec.NodeName == "" {
			continue
		}
		var pod corev1.Pod // the cache does not keep the termination state of containers
		if k.deps.Live.Get(ctx, client.ObjectKeyFromObject(cached), &pod) != nil {
			continue
		}
		if n, ok := probed(&pod); ok {
			out[pod.Spec.NodeName] = map[bool]string{true: "true", false: "false"}[n > 0]
		}
	}
	return out
}
