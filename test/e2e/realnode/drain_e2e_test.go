// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package realnode

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

var (
	drains  = flag.Int("drains", 3, "number of scale-downs of TestDrainNode")
	longest = flag.Duration("longest", 8*time.Second, "duration of the longest `requests` of TestDrainNode; the shortest take 1s")
)

const (
	drainNamespace = "llm"
	drainReplicas  = 3 // of each workload
	// betweenRequests is the time between two requests to a workload: each replica has several in flight.
	betweenRequests = 300 * time.Millisecond
	// drainMargin is what a scale-down may take beyond the longest request, with -bars: the kubelet and the endpoints follow
	// the gate, the server has no request for two seconds, and the controller sees that.
	drainMargin = 20 * time.Second
	// drainDeadline is what maxSeconds of drain has beyond the longest request. No scale-down reaches it.
	drainDeadline = stack.Patience
	// endpointsLag is how old the endpoints may be by which a client sends a request. The controller waits for two seconds
	// until all of them follow a gate: a client that is later may meet a server that is gone.
	endpointsLag = 1500 * time.Millisecond
)

// TestDrainNode scales servers of a real kubelet down while they have requests: none is cut.
func TestDrainNode(t *testing.T) {
	skipIfUnavailable(t, CheckPodNetwork())
	rounds := *drains / len(drainWorkloads())
	runNestedFor(t, "TestDrainOnNode", timeout+time.Duration(rounds)*(2**longest+time.Minute), fmt.Sprint("-drains=", *drains), fmt.Sprint("-longest=", *longest), fmt.Sprint("-bars=", *bars))
}

// drainWorkloads are the kinds of the workloads that drain beside each other: one for 16 scale-downs, from 3 to 12.
func drainWorkloads() []string {
	kinds := []string{"Deployment", "StatefulSet", "Deployment"}
	for len(kinds) < min(*drains/16, 12) {
		kinds = append(kinds, kinds[len(kinds)-3])
	}
	return kinds
}

// TestDrainOnNode is the test stage, in the node's namespaces.
func TestDrainOnNode(t *testing.T) {
	if CurrentStage() != StageTest {
		t.Skip("TestDrainNode runs it on a node")
	}
	s := newServers(t)
	var all sync.WaitGroup
	kinds, began := drainWorkloads(), time.Now()
	results := make([]error, len(kinds)+1)
	for i, kind := range kinds {
		n := *drains / len(kinds)
		if i < *drains%len(kinds) {
			n++
		}
		w := s.create(t, kind, fmt.Sprintf("chat-%d", i), true)
		all.Go(func() { results[i] = w.scale(n, i) })
	}
	ungated := s.create(t, "Deployment", "ungated", false)
	all.Go(func() { results[len(kinds)] = ungated.scale(1, 1) })
	all.Wait()
	must(t, errors.Join(results...))
	s.stop()

	delays, removed, sent, cut := []time.Duration(nil), 0, int64(0), int64(0)
	for _, w := range s.workloads {
		t.Logf("%s %s: %d scale-downs, %d requests, %d cut, %d refused, %d lost by old endpoints", w.kind, w.name, len(w.delays), w.sent.Load(), w.cut.Load(), w.refused.Load(), w.late.Load())
		if w == ungated {
			continue
		}
		delays, removed, sent, cut = append(delays, w.delays...), removed+w.removed, sent+w.sent.Load(), cut+w.cut.Load()+w.refused.Load()
		if got := w.sent.Load() - w.done.Load() - w.cut.Load() - w.refused.Load() - w.late.Load(); got != 0 {
			t.Errorf("%s: %d requests neither ended nor were cut", w.name, got)
		}
	}
	slices.Sort(delays)
	t.Logf("%d scale-downs of %d replicas in %.0f s under %d requests of 1 s to %v: %d cut; a scale-down took %.1f s at the median, %.1f s at most",
		len(delays), removed, time.Since(began).Seconds(), sent, *longest, cut, delays[len(delays)/2].Seconds(), delays[len(delays)-1].Seconds())
	if len(delays) != *drains || cut != 0 || sent < int64(10**drains) {
		t.Errorf("%d scale-downs, %d of %d requests cut; want %d, and none cut", len(delays), cut, sent, *drains)
	}
	if most := *longest + drainMargin; *bars && delays[len(delays)-1] > most {
		t.Errorf("a scale-down took %v, want %v at most", delays[len(delays)-1], most)
	}
	if ungated.cut.Load() == 0 {
		t.Error("no request was cut without the readiness gate: this test cannot fail")
	}
}

// servers are the workloads of a node and their clients.
type servers struct {
	*stack.Stack
	ctx       context.Context
	node      *Node
	http      *http.Client
	workloads []*drained
	stop      func() // ends the requests, and waits for those in flight

	clients sync.WaitGroup
	load    context.Context // until which requests are sent

	mu        sync.Mutex
	endpoints map[string][]string // addresses by Service
	listed    time.Time           // when the API server was asked for them
}

// newServers starts the control plane, the controller and a node whose pods have addresses.
func newServers(t *testing.T) *servers {
	t.Helper()
	parts, err := InheritParts()
	must(t, err)
	s := &servers{ctx: t.Context(), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, endpoints: map[string][]string{}}
	s.Stack, err = stack.Start(s.ctx, stack.Config{
		NoNodes: true, ControllerArgs: []string{"--pod-cidrs", "10.88.0.0/24"},
		ClusterArgs: map[string][]string{cluster.APIServer: {"--advertise-address=" + NodeAddress}}, // there is no default route
	})
	must(t, err)
	t.Cleanup(s.Close)
	t.Cleanup(func() { dumpLogs(t, parts.Logs, s.Cluster.Dir(), filepath.Dir(s.ControllerLog())) })
	kubeconfig, err := s.Cluster.KubeconfigFor("system:node:"+nodeName, "system:nodes")
	must(t, err)
	s.node, err = StartNode(s.ctx, NodeConfig{
		Name: nodeName, Kube: parts.Kube, Runtime: parts.Runtime, Payload: parts.Payload, Kubeconfig: kubeconfig, Cgroup: parts.Cgroup,
		Logs: parts.Logs, PodNetwork: true,
	})
	must(t, err)
	t.Cleanup(s.node.Stop)

	ctx, cancel := context.WithCancel(s.ctx)
	s.load = ctx
	var proxy sync.WaitGroup
	proxy.Go(func() { s.followEndpoints(ctx) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		proxy.Wait()
		s.clients.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

// followEndpoints keeps the addresses of the Services, as kube-proxy and gateways do.
func (s *servers) followEndpoints(ctx context.Context) {
	for wait(ctx, 100*time.Millisecond) {
		asked := time.Now()
		var slices discoveryv1.EndpointSliceList
		if s.Client.List(ctx, &slices, client.InNamespace(drainNamespace)) != nil {
			continue
		}
		endpoints := map[string][]string{}
		for i := range slices.Items {
			name := slices.Items[i].Labels[discoveryv1.LabelServiceName]
			for _, e := range slices.Items[i].Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					endpoints[name] = append(endpoints[name], e.Addresses...)
				}
			}
		}
		s.mu.Lock()
		s.endpoints, s.listed = endpoints, asked
		s.mu.Unlock()
	}
}

// addresses are the endpoints of a Service, and when the API server was asked for them.
func (s *servers) addresses(name string) (all []string, listed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoints[name], s.listed
}

// drained is one workload with its client.
type drained struct {
	*servers
	kind, name string
	shortest   time.Duration // request
	log        func(format string, args ...any)

	sent, done, cut, refused, late atomic.Int64
	inFlight                       sync.Map // by address: *atomic.Int64
	delays                         []time.Duration
	removed                        int
}

const drainManifests = `
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: llm}
spec: {selector: {app: NAME}, ports: [{port: 8000}]}
---
apiVersion: apps/v1
kind: KIND
metadata: {name: NAME, namespace: llm}
spec:
  replicas: 3
  selector: {matchLabels: {app: NAME}}
  MORE
  template:
    metadata: {labels: {app: NAME}}
    spec:
      GATE
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      enableServiceLinks: false
      containers:
      - name: vllm
        image: ` + PayloadImage + `
        imagePullPolicy: Never
        args: [vllm]
        ports: [{containerPort: 8000}]
        readinessProbe: {tcpSocket: {port: 8000}, periodSeconds: 1}
---
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: NAME, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: KIND, name: NAME}
  minReplicas: 3
  maxReplicas: 3
  signals: [{preset: vllm}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}}
  drain: {maxSeconds: MAX}
`

// create creates a workload with its GPUAutoscaler, and sends requests to it from now on.
func (s *servers) create(t *testing.T, kind, name string, gated bool) *drained {
	t.Helper()
	more, gate := "", ""
	if kind == "StatefulSet" {
		more = "podManagementPolicy: Parallel"
	}
	if gated {
		gate = "readinessGates: [{conditionType: " + string(v1alpha1.ReadinessGate) + "}]"
	}
	text := strings.NewReplacer("NAME", name, "KIND", kind, "MORE", more, "GATE", gate, "MAX", fmt.Sprintf("%.0f", (*longest+drainDeadline).Seconds())).Replace(drainManifests)
	must(t, s.Apply(s.ctx, []byte(text)))
	w := &drained{servers: s, kind: kind, name: name, shortest: time.Second, log: t.Logf}
	if !gated {
		w.shortest = *longest // each replica has some in flight when it is removed
	}
	s.workloads = append(s.workloads, w)
	s.clients.Go(w.send)
	return w
}

// send sends requests to one of the endpoints after another, until the load ends.
func (w *drained) send() {
	var all sync.WaitGroup
	defer all.Wait()
	for wait(w.load, betweenRequests) {
		if to, listed := w.addresses(w.name); len(to) > 0 && time.Since(listed) < endpointsLag {
			all.Go(func() { w.request(to[rand.IntN(len(to))], listed) })
		}
	}
}

// request sends one request by endpoints of a time, and counts how it ended.
func (w *drained) request(to string, listed time.Time) {
	takes := w.shortest + rand.N(*longest-w.shortest+1)
	counter, _ := w.inFlight.LoadOrStore(to, new(atomic.Int64))
	n := counter.(*atomic.Int64)
	n.Add(1)
	defer n.Add(-1)
	w.sent.Add(1)
	began := time.Now()
	var sent time.Time // the server has the request
	ctx := httptrace.WithClientTrace(w.ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent = time.Now() }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s:8000/v1/completions?takes=%v", to, takes), http.NoBody)
	if err != nil {
		w.log("%v", err)
		return
	}
	resp, err := w.http.Do(req)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	switch {
	case err == nil && string(body) == "done":
		w.done.Add(1)
	case sent.IsZero() && time.Since(listed) > endpointsLag, !sent.IsZero() && sent.Sub(listed) > endpointsLag:
		w.late.Add(1)
	case sent.IsZero() && strings.Contains(fmt.Sprint(err), "connect"):
		w.refused.Add(1)
		w.log("%s: %v: sent to a pod that is gone", w.name, err)
	default:
		w.cut.Add(1)
		w.log("%s: a request of %v was cut after %v: %q %v", w.name, takes, time.Since(began), body, err)
	}
}

// busy returns an error unless the workload has all its replicas in the endpoints, each with requests in flight.
func (w *drained) busy() error {
	to, _ := w.addresses(w.name)
	if len(to) != drainReplicas {
		return fmt.Errorf("%s has the endpoints %q", w.name, to)
	}
	for _, address := range to {
		if n, ok := w.inFlight.Load(address); !ok || n.(*atomic.Int64).Load() == 0 {
			return fmt.Errorf("%s has no request at %s", w.name, address)
		}
	}
	return w.node.Err()
}

// eventually calls check until it returns nil, seldom enough that a dozen workloads do not keep the API server busy.
func (w *drained) eventually(timeout time.Duration, check func() error) error {
	return stack.Await(w.ctx, timeout, check)
}

// scale scales the workload down by one and by two replicas in turn, n times, and up again.
func (w *drained) scale(n, from int) error {
	for i := range n {
		if err := w.eventually(stack.Patience, w.busy); err != nil {
			return err
		}
		less := 1 + (from+i)%2
		began := time.Now()
		if err := w.set(drainReplicas - less); err != nil {
			return err
		}
		w.delays, w.removed = append(w.delays, time.Since(began)), w.removed+less
		if err := w.set(drainReplicas); err != nil {
			return err
		}
	}
	return nil
}

// set sets the bounds of the GPUAutoscaler, and waits until /scale has the number.
func (w *drained) set(n int) error {
	a := &v1alpha1.GPUAutoscaler{}
	a.Namespace, a.Name = drainNamespace, w.name
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec": {"minReplicas": %d, "maxReplicas": %[1]d}}`, n))
	if err := w.Client.Patch(w.ctx, a, patch); err != nil {
		return err
	}
	return w.eventually(*longest+2*drainDeadline, func() error {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": w.kind}}
		if err := w.Client.Get(w.ctx, client.ObjectKey{Namespace: drainNamespace, Name: w.name}, u); err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); got != int64(n) {
			return fmt.Errorf("%s has %d replicas, want %d", w.name, got, n)
		}
		return nil
	})
}
