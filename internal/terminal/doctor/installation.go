// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
)

type pod struct {
	object
	Spec struct {
		NodeName   string      `json:"nodeName"`
		Account    string      `json:"serviceAccountName"`
		Containers []container `json:"containers"`
	} `json:"spec"`
	Status corev1.PodStatus `json:"status"`

	runs program
}

// program is what a pod of the installation runs.
type program int

const (
	runsController program = iota + 1
	runsAgent
	runsDCGM // a dcgm-exporter, or AMD's device-metrics-exporter
)

func (p *pod) isController() bool { return p.runs == runsController }

func (p *pod) isAgent() bool { return p.runs == runsAgent }

func (p *pod) isDCGM() bool { return p.runs == runsDCGM }

// ready reports whether a pod is ready.
func (p *pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

type container struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Env     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
}

// flag returns the value of a flag of a program of ours: the last one on its command line, else that of the environment.
func (c *container) flag(name string) (value string) {
	variable := flags.Variable(name)
	for _, v := range c.Env {
		if v.Name == variable {
			value = v.Value
		}
	}
	line := slices.Concat(c.Command, c.Args)
	for i, arg := range line {
		if after, ok := strings.CutPrefix(arg, "--"+name); ok && strings.HasPrefix(after, "=") {
			value = after[1:]
		} else if ok && after == "" && i+1 < len(line) {
			value = line[i+1]
		}
	}
	return value
}

// pods reads the pods of the controller, and the pods that it takes for its agents and for dcgm-exporters. Pods of other
// namespaces prove nothing: their labels are those that a tenant has chosen.
func (w *Where) pods(ctx context.Context, f *Facts, read func(func())) {
	const controller = "app.kubernetes.io/name=gpupilot,app.kubernetes.io/component=controller"
	f.Pods = w.podsOf(ctx, runsController, w.Namespace, controller)
	flag := func(name, otherwise string) string {
		for i := range f.Pods.Items {
			for j := range f.Pods.Items[i].Spec.Containers {
				if v := f.Pods.Items[i].Spec.Containers[j].flag(name); v != "" && !strings.Contains(v, "$(") { // a variable, such as of its own namespace
					return v
				}
			}
		}
		return otherwise
	}
	agents, agentsIn := flag("agent-selector", discovery.DefaultAgents), flag("agent-namespace", w.Namespace)
	dcgm, dcgmIn := flag("dcgm-selector", discovery.DefaultDCGM), flag("dcgm-namespaces", strings.Join(discovery.DefaultDCGMNamespaces(w.Namespace), ","))
	var mu sync.Mutex
	add := func(runs program, namespace, selectors string) {
		read(func() {
			l := w.podsOf(ctx, runs, namespace, selectors)
			mu.Lock()
			defer mu.Unlock()
			f.Pods.Items, f.Pods.Err = append(f.Pods.Items, l.Items...), errors.Join(f.Pods.Err, l.Err)
		})
	}
	add(runsAgent, agentsIn, agents)
	for ns := range strings.SplitSeq(dcgmIn, ",") {
		add(runsDCGM, ns, dcgm)
	}
}

// podsOf reads the pods of a namespace that one of the selectors selects. The selectors are separated by semicolons.
func (w *Where) podsOf(ctx context.Context, runs program, namespace, selectors string) (out listed[pod]) {
	for s := range strings.SplitSeq(selectors, ";") {
		list(ctx, w.API, &out, url.Values{"labelSelector": {s}}, "api", "v1", "namespaces", namespace, "pods")
	}
	seen := map[string]bool{}
	out.Items = slices.DeleteFunc(out.Items, func(p pod) bool {
		again := seen[p.Metadata.Name]
		seen[p.Metadata.Name] = true
		return again
	})
	for i := range out.Items {
		out.Items[i].runs = runs
	}
	return out
}
