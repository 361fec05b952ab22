// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/usage"
)

func TestDesiredReplicas(t *testing.T) {
	r := newRig(t, deployment("vllm", 1))
	a := autoscaler("vllm")
	if _, err := r.DesiredReplicas("ns", "vllm"); !errors.Is(err, usage.ErrUnknownWorkload) {
		t.Errorf("without a GPUAutoscaler: %v", err)
	}
	w := r.add(a)
	if _, err := r.DesiredReplicas("ns", "vllm"); !errors.Is(err, usage.ErrNoValue) {
		t.Errorf("before a decision: %v", err)
	}
	since := r.now.Add(-time.Hour)
	r.pods.Pods = []*corev1.Pod{pod("vllm", "p", since, ready(since))}
	r.utilization(r.now, 100, r.pods.Pods...)
	w.pass(r.now)
	if d, err := r.DesiredReplicas("ns", "vllm"); err != nil || d.Replicas != 2 || !d.At.Equal(r.now) {
		t.Errorf("%+v, %v", d, err)
	}
}
