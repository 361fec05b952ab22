// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
)

// controllerHistory reads what the controller has recorded of a workload.
type controllerHistory struct {
	where      remote.Cluster
	object     string        // [NAMESPACE/]NAME of a GPUAutoscaler
	length     time.Duration // how far back
	controller remote.Controller
}

// recordedWorkload is a workload of a cluster with its history.
type recordedWorkload struct {
	namespace string
	object    []byte        // the GPUAutoscaler as YAML, without its status
	startup   time.Duration // given or learned; 0: unknown
	history   backtest.History
}

// read reads the object from the API server, and its history from the controller.
func (h *controllerHistory) read(ctx context.Context) (*recordedWorkload, error) {
	out, err := h.workload(ctx)
	if err != nil {
		return nil, err
	}
	if err := out.history.Read(h.get(ctx), out.namespace, out.history.Name, h.length); err != nil {
		return nil, fmt.Errorf("ask the controller (--controller %s) for the history of %s/%s: %w", h.controller.Address, out.namespace, out.history.Name, err)
	}
	return out, nil
}

// workload reads the object from the API server.
func (h *controllerHistory) workload(ctx context.Context) (*recordedWorkload, error) {
	namespace, name, err := h.where.Object([]string{h.object})
	if err != nil {
		return nil, err
	}
	c, err := h.where.API()
	if err != nil {
		return nil, err
	}
	all, err := c.Autoscalers(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if err := all[0].BadSpec; err != nil {
		return nil, fmt.Errorf("GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	a := all[0].Object
	out := &recordedWorkload{namespace: namespace, startup: policy.StartupOf(a), history: backtest.History{Name: a.Name}}
	if out.history.Policy, err = policy.Compile(a); err != nil {
		return nil, fmt.Errorf("GPUAutoscaler %s/%s: %w", namespace, name, err)
	}
	out.object, err = yaml.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "GPUAutoscaler", "metadata": map[string]string{"namespace": a.Namespace, "name": a.Name}, "spec": a.Spec,
	})
	return out, err
}

// get returns how a path of the controller's API is read.
func (h *controllerHistory) get(ctx context.Context) func(path string, query url.Values, into any) error {
	h.controller.Cluster = &h.where
	return func(path string, query url.Values, into any) error {
		err := h.controller.Get(ctx, path, query, into)
		if errors.Is(err, remote.ErrNotFound) {
			err = fmt.Errorf("%w: %w", backtest.ErrNoPath, err)
		}
		return err
	}
}
