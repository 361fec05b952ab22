// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// fleetWriters is how many requests to the API server are on their way at once.
const fleetWriters = 16

// benchFleetController measures the controller itself: a real control plane has
// a Node and an agent's pod for each of the targets.
func benchFleetController(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	sizes, err := fleetSizes(cfg.targets)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, n := range sizes {
		fmt.Fprintf(out, "fleet-controller: %d nodes, window of %v, load average %s\n", n, cfg.window, loadAverage())
		l, err := measureController(ctx, cfg, n, out)
		if err != nil {
			return nil, err
		}
		rows = append(rows, l.rows(fmt.Sprintf("controller, %d nodes", n), n)...)
	}
	return rows, nil
}

func measureController(ctx context.Context, cfg config, n int, out io.Writer) (*load, error) {
	server, err := startFleet(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Stop() }()
	args := []string{"--window", cfg.window.String(), "--window-memory", strconv.Itoa(fleetMemory)}
	s, err := stack.Start(ctx, stack.Config{
		NoNodes: true, NoController: true, ControllerArgs: args,
		ClusterArgs: map[string][]string{
			// The kubelets are ours: nobody else may give nodes or their pods up.
			cluster.ControllerManager: {"--controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller,-taint-eviction-controller"},
		},
	})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := joinNodes(ctx, s, server, n); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "fleet-controller: %d nodes have joined\n", n)
	if err := s.StartController(ctx); err != nil {
		return nil, err
	}
	if err := wait(ctx, cfg.window+30*time.Second); err != nil {
		return nil, err
	}
	pid := s.ControllerPID()
	l, err := observe(ctx, func() (count, error) { return controllerCount(ctx, s, pid) }, pid)
	if err != nil {
		return nil, err
	}
	l.Expected = float64(n) * fleetMeasured.Seconds()
	return l, controllerState(ctx, s, l, out)
}

// controllerCount is what the controller has counted.
func controllerCount(ctx context.Context, s *stack.Stack, pid int) (count, error) {
	cpu, err := agentrig.CPU(pid)
	if err != nil {
		return count{}, err
	}
	m, err := meters(ctx, s.ControllerURL)
	c := count{asked: m["gpupilot_scrapes_total"], cpu: cpu}
	for name, v := range m {
		if strings.HasPrefix(name, "gpupilot_scrape_failures_total{") {
			c.failed += v
		}
	}
	// The fields that the controller has a use for are fewer than the page's.
	if perPage := m["gpupilot_window_series"] / m["gpupilot_scrape_targets"]; perPage > 0 {
		c.stored = m["gpupilot_scrape_samples_total"] / perPage
	}
	return c, err
}

// controllerState completes what was measured.
func controllerState(ctx context.Context, s *stack.Stack, l *load, out io.Writer) error {
	m, err := meters(ctx, s.ControllerURL)
	if err != nil {
		return err
	}
	l.Short = int(m["gpupilot_window_short_targets"])
	l.Memory = m["gpupilot_window_memory_bytes"] / (1 << 20)
	fmt.Fprintf(out, "fleet-controller: %.0f targets, %.0f series, %.0f goroutines; MiB:", m["gpupilot_scrape_targets"], m["gpupilot_window_series"], m["go_goroutines"])
	for _, part := range []string{"heap_alloc", "heap_inuse", "heap_idle", "heap_released", "stack_inuse", "mspan_inuse", "gc_sys", "next_gc"} {
		fmt.Fprintf(out, " %s %.0f", part, m["go_memstats_"+part+"_bytes"]/(1<<20))
	}
	fmt.Fprintln(out)
	return nil
}

// meters reads the controller's metrics, by their names with labels.
func meters(ctx context.Context, address string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	out := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				out[name] = v
			}
		}
	}
	return out, lines.Err()
}

// joinNodes registers nodes and their agents' pods, as running.
func joinNodes(ctx context.Context, s *stack.Stack, server *agentrig.Agent, n int) error {
	u, err := url.Parse(server.URL)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return err
	}
	k, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return err
	}
	err = stack.Await(ctx, time.Minute, func() error {
		return s.Client.Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: "default"}, &corev1.ServiceAccount{})
	})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make(chan error, fleetWriters)
	for w := range fleetWriters {
		all.Go(func() {
			for i := w; i < n; i += fleetWriters {
				if err := joinNode(ctx, k, i, int32(port)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

func joinNode(ctx context.Context, k kubernetes.Interface, i int, port int32) error {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110"),
		simnode.GPUResource: *resource.NewQuantity(fleetGPUs, resource.DecimalSI),
	}
	_, err := k.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fleetNode(i)},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod, err := k.CoreV1().Pods(stack.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + strconv.Itoa(i), Labels: map[string]string{"app.kubernetes.io/name": "gpupilot-agent"}},
		Spec: corev1.PodSpec{NodeName: fleetNode(i), Containers: []corev1.Container{{
			Name: "agent", Image: "agent", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: port}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now, ip := metav1.Now(), agentAddress(i).String()
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &now,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
	}})
	if err != nil {
		return err
	}
	_, err = k.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
