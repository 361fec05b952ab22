// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

const podNamespace = "ml"

// podFleet are pods of one GPU each, eight to a node, whose values arrive each
// second.
type podFleet struct {
	pods    *index.Pods
	store   *series.Store
	targets []*series.Target
	refs    [][]series.Ref // of each target
	batch   series.Batch
}

// podFields are what the controller scrapes of every agent.
func podFields() []gpu.FieldID {
	return []gpu.FieldID{gpu.GPUUtil, gpu.MemCopyUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp}
}

func newPodFleet(pods int) (*podFleet, error) {
	f := &podFleet{pods: index.NewPods(), store: series.New(series.Config{Interval: time.Second})}
	now := time.Now()
	for first := 0; first < pods; first += gpus {
		node := fmt.Sprintf("node-%d", first/gpus)
		t := f.store.Target("agent/gpupilot-system/"+node, series.TargetLabels{Node: node})
		var owners []series.DeviceOwners
		var refs []series.Ref
		for i := first; i < min(first+gpus, pods); i++ {
			name := fmt.Sprintf("web-6d4cf56db6-%05d", i)
			f.pods.OnAdd(benchPod(name, node, now), false)
			device := fmt.Sprintf("GPU-%08x-%04d", i*2654435761%(1<<32), i)
			owners = append(owners, series.DeviceOwners{Device: device, Owners: []gpu.Owner{{Namespace: podNamespace, Pod: name, Container: "server"}}})
			for _, field := range podFields() {
				ref, ok := t.Ref(series.Key{Device: device, Field: field})
				if !ok {
					return nil, fmt.Errorf("no room for the series of %s", device)
				}
				refs = append(refs, ref)
			}
		}
		t.SetOwners(now.Add(-time.Minute), owners)
		f.targets, f.refs = append(f.targets, t), append(f.refs, refs)
	}
	return f, f.read(now)
}

func benchPod(name, node string, now time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: podNamespace, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			Labels:          map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6", "team": "inference"},
			OwnerReferences: controlledBy("ReplicaSet", benchReplicaSet, replicaSetUID),
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "server", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-50 * time.Minute))},
		}},
	}
}

// read stores one scrape of every node.
func (f *podFleet) read(at time.Time) error {
	for i, t := range f.targets {
		f.batch.Reset()
		for j, ref := range f.refs[i] {
			f.batch.Add(ref, float64((at.Second()*7+i+j)%101)+0.25*float64(j%4))
		}
		if _, err := t.Append(at, &f.batch); err != nil {
			return err
		}
	}
	return nil
}

// servePods is the server of benchPods: the metrics API as the controller makes
// it, over pods and values that this process makes up.
func servePods(ctx context.Context, cfg config, out io.Writer) error {
	fleet, err := newPodFleet(cfg.servePods)
	if err != nil {
		return err
	}
	objects := newBenchObjects()
	go objects.Run(ctx)
	fields := usage.NewFields()
	values := usage.NewReader(usage.Deps{
		Pods: fleet.pods, Store: fleet.store, Devices: trust.NewDevices(nil), Fields: fields, PodsOf: fleet.podsOf(objects),
	})
	dir := cfg.servePodsFrom
	server, err := metricsapi.New(metricsapi.Config{
		BindAddress: "127.0.0.1", CertFile: filepath.Join(dir, certFile), KeyFile: filepath.Join(dir, keyFile),
		Kubeconfig: filepath.Join(dir, kubeconfigFile), MaxAge: gpu.MaxAge(time.Second), Log: slog.New(slog.DiscardHandler),
	}, metricsapi.Deps{Pods: values, Statistics: values, Objects: objects, Names: fields.Names})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	fmt.Fprintf(out, "msg=serving address=%s\n", server.Addr())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case now := <-tick.C:
			if err := fleet.read(now); err != nil {
				return err
			}
		}
	}
}
