// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The bars are the product's promise: from a value being readable through the
// GPU library to the scale accepted by the API server, default flags, no
// stabilisation; through an HPA its sync period (1 s here) more.
const (
	barReaction    = 1.5
	barReactionHPA = 2.5
)

const (
	benchNamespace = "bench"
	// busy and idle are utilisations that want 2 replicas and 1 at a target of 60 %.
	busy, idle = 90, 30
	// changeTimeout is for a change that never arrives: it fails the benchmark.
	changeTimeout = 30 * time.Second
)

// benchReaction changes the utilisation of GPUs in the fake NVML, at random
// phase, and waits for the replicas of their workloads to follow.
func benchReaction(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	r, err := startReaction(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	fmt.Fprintf(out, "reaction: %d changes of a GPU's utilisation through a GPUAutoscaler\n", cfg.changes)
	direct, err := r.measure(ctx, cfg.changes, r.autoscaler)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "reaction: %d changes through the HorizontalPodAutoscaler, sync period 1 s\n", cfg.changes)
	hpa, err := r.measure(ctx, cfg.changes, r.hpa)
	if err != nil {
		return nil, err
	}
	return []Row{
		figure("reaction, GPU library to /scale, p50", quantile(direct, 0.50), "s"),
		atMost("reaction, GPU library to /scale, p99", quantile(direct, 0.99), "s", barReaction),
		figure("reaction, GPU library to /scale, max", quantile(direct, 1), "s"),
		figure("reaction through the HPA at 1 s, p50", quantile(hpa, 0.50), "s"),
		atMost("reaction through the HPA at 1 s, p99", quantile(hpa, 0.99), "s", barReactionHPA),
	}, nil
}

// reaction is one node with 8 GPUs on the fake NVML and a workload on each.
type reaction struct {
	*stack.Stack
	dir   string
	nvml  *fakeNVML
	gpuOf map[string]int // by workload

	mu      sync.Mutex
	waiting map[string]waiter // by workload
}

// waiter waits for a workload to be given a number of replicas.
type waiter struct {
	replicas int32
	at       chan time.Time
}

func startReaction(ctx context.Context, cfg config) (*reaction, error) {
	dir, err := os.MkdirTemp("", "gpupilot-bench-")
	if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs(cfg.bin)
	if err != nil {
		return nil, err
	}
	library := agentrig.NVML(bin, dir)
	r := &reaction{dir: dir, nvml: &fakeNVML{library: library}, waiting: map[string]waiter{}}
	if _, err := r.nvml.set(0, idle); err != nil {
		return nil, err
	}
	argv := append(append([]string{"/usr/bin/env"}, library.Env()...), filepath.Join(bin, "gpupilot-agent"))
	r.Stack, err = stack.Start(ctx, stack.Config{
		Nodes: 1, GPUs: gpus, HPASyncPeriod: time.Second,
		AgentArgv: append(append(argv, library.Args()...),
			"-k", "--pod-resources-kubelet-socket", "$(POD_RESOURCES_SOCKET)", "-a", "$(POD_IP):9400", "--node-name", "$(NODE_NAME)"),
		DeviceID: func(_ string, i int) string { return "nvidia" + strconv.Itoa(i) },
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if err := r.deploy(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *reaction) close() {
	r.Close()
	_ = os.RemoveAll(r.dir) // in the temporary folder anyway
}

func workload(i int) string { return "w" + strconv.Itoa(i) }

// deploy puts a workload on each GPU and finds out which it got.
func (r *reaction) deploy(ctx context.Context) error {
	if err := r.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchNamespace}}); err != nil {
		return err
	}
	for i := range gpus {
		d := stack.Deployment(benchNamespace, workload(i), 1, 0)
		delete(d.Spec.Template.Annotations, simnode.WorkloadAnnotation)
		if err := r.Client.Create(ctx, d); err != nil {
			return err
		}
	}
	return stack.Await(ctx, time.Minute, func() error {
		ready, err := r.ReadyPods(ctx, benchNamespace)
		if err != nil {
			return err
		}
		if len(ready) != gpus {
			return fmt.Errorf("%d of %d pods are ready", len(ready), gpus)
		}
		return r.findGPUs(ctx)
	})
}

// findGPUs asks the node's pod-resources API which pod holds which GPU.
func (r *reaction) findGPUs(ctx context.Context) error {
	conn, err := grpc.NewClient("unix://"+r.Nodes.Socket(r.Nodes.NodeNames()[0]), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	r.gpuOf = map[string]int{}
	for _, p := range list.PodResources {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				i, err := strconv.Atoi(strings.TrimPrefix(d.DeviceIds[0], "nvidia"))
				if err != nil {
					return err
				}
				name, _, _ := strings.Cut(p.Name, "-") // a pod's name begins with its Deployment's
				r.gpuOf[name] = i
			}
		}
	}
	if len(r.gpuOf) != gpus {
		return fmt.Errorf("%d of %d workloads have a GPU", len(r.gpuOf), gpus)
	}
	return nil
}

// measure lets scaler scale every workload, makes the changes, and returns the
// sorted reaction times in seconds.
func (r *reaction) measure(ctx context.Context, changes int, scaler func(name string) client.Object) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := r.Client.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(benchNamespace))
	if err != nil {
		return nil, err
	}
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				r.arrived(d.Name, *d.Spec.Replicas, time.Now())
			}
		}
	})
	defer watcher.Wait()
	defer w.Stop()

	times, errs := make([][]float64, gpus), make([]error, gpus)
	var workers sync.WaitGroup
	for i := range gpus {
		name := workload(i)
		s := scaler(name)
		if err := r.Client.Create(ctx, s); err != nil {
			return nil, err
		}
		workers.Go(func() {
			times[i], errs[i] = r.toggle(ctx, name, changes/gpus)
			if err := r.Client.Delete(ctx, s); err != nil && errs[i] == nil {
				errs[i] = err
			}
		})
	}
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	return all, nil
}

// toggle changes the utilisation of one workload's GPU n times, and waits after each
// change until the workload's replicas follow. It returns the delays in seconds
// without those of the first two changes, which warm everything up.
func (r *reaction) toggle(ctx context.Context, name string, n int) ([]float64, error) {
	var times []float64
	for i := range n + 2 {
		util, want := busy, int32(2)
		if i%2 == 1 {
			util, want = idle, 1
		}
		if err := pause(ctx, time.Second+time.Duration(rand.Int64N(int64(2*time.Second)))); err != nil {
			return nil, err
		}
		at := r.expect(name, want)
		changed, err := r.nvml.set(r.gpuOf[name], util)
		if err != nil {
			return nil, err
		}
		select {
		case arrived := <-at:
			if i >= 2 {
				times = append(times, arrived.Sub(changed).Seconds())
			}
		case <-time.After(changeTimeout):
			return nil, fmt.Errorf("%s: %d %% did not become %d replicas within %v", name, util, want, changeTimeout)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return times, nil
}

func (r *reaction) expect(name string, replicas int32) <-chan time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := waiter{replicas, make(chan time.Time, 1)}
	r.waiting[name] = w
	return w.at
}

func (r *reaction) arrived(name string, replicas int32, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.waiting[name]; ok && w.replicas == replicas {
		delete(r.waiting, name)
		w.at <- at
	}
}

func (r *reaction) autoscaler(name string) client.Object {
	a := stack.Autoscaler(name)
	a.Namespace, a.Spec.MaxReplicas, a.Spec.Signals[0].GPU.Metric = benchNamespace, 2, "DCGM_FI_DEV_GPU_UTIL"
	*a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = 0
	return a
}

func (r *reaction) hpa(name string) client.Object {
	one, none := int32(1), int32(0)
	target := resource.MustParse("60")
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace, Name: name},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &one, MaxReplicas: 2,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &target},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &none},
			},
		},
	}
}

// fakeNVML is what drives the fake library.
type fakeNVML struct {
	library *agentrig.Library
	mu      sync.Mutex
	util    [gpus]int
}

// set changes the utilisation of GPU i and says when.
func (f *fakeNVML) set(i, util int) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.util[i] = util
	var b strings.Builder
	fmt.Fprintf(&b, "gpus %d\n", gpus)
	for k, u := range f.util {
		fmt.Fprintf(&b, "gpu %d util %d\n", k, u)
	}
	if err := f.library.Set(b.String()); err != nil {
		return time.Time{}, err
	}
	return time.Now(), nil
}
