// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// barFreshness is the bar in seconds for the time from a value being readable through
// the GPU library to custom.metrics.k8s.io serving it.
const barFreshness = 1.2

// freshnessPoll is the interval of the requests that wait for a value.
const freshnessPoll = 10 * time.Millisecond

// benchFreshness changes the utilisation of GPUs in the fake NVML, at random phase, and
// asks the API server for the metric of their Deployments until it has the new value.
func benchFreshness(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	r, err := startReaction(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	fmt.Fprintf(out, "freshness: %d changes of a GPU's utilisation, read as the metric of a Deployment\n", cfg.changes)
	client, err := kubernetes.NewForConfig(r.REST)
	if err != nil {
		return nil, err
	}
	times, errs := make([][]float64, gpus), make([]error, gpus)
	var workers sync.WaitGroup
	for i := range gpus {
		workers.Go(func() { times[i], errs[i] = r.watchMetric(ctx, client.RESTClient(), workload(i), cfg.changes/gpus) })
	}
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	return []Row{
		figure("freshness, GPU library to custom.metrics of a Deployment, p50", quantile(all, 0.50), "s"),
		atMost("freshness, GPU library to custom.metrics of a Deployment, p99", quantile(all, 0.99), "s", barFreshness),
		figure("freshness, GPU library to custom.metrics of a Deployment, max", quantile(all, 1), "s"),
	}, nil
}

// watchMetric changes the utilisation of one workload's GPU n times, and returns the
// seconds until the metric of its Deployment followed, without those of the first two
// changes.
func (r *reaction) watchMetric(ctx context.Context, client rest.Interface, name string, n int) ([]float64, error) {
	var times []float64
	last := idle
	for i := range n + 2 {
		util := 1 + rand.IntN(99)
		if util == last {
			util = 1 + util%99
		}
		last = util
		if err := pause(ctx, time.Second+time.Duration(rand.Int64N(int64(time.Second)))); err != nil {
			return nil, err
		}
		changed, err := r.nvml.set(r.gpuOf[name], util)
		if err != nil {
			return nil, err
		}
		if err := awaitMetric(ctx, client, name, fmt.Sprint(util)); err != nil {
			return nil, err
		}
		if i >= 2 {
			times = append(times, time.Since(changed).Seconds())
		}
	}
	return times, nil
}

// awaitMetric asks for the metric of a Deployment until it has a value.
func awaitMetric(ctx context.Context, client rest.Interface, name, want string) error {
	path := "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + benchNamespace + "/deployments.apps/" + name + "/" + podMetric
	deadline := time.Now().Add(changeTimeout)
	for {
		body, err := client.Get().RequestURI(path).DoRaw(ctx)
		var list struct{ Items []struct{ Value string } }
		if err == nil && json.Unmarshal(body, &list) == nil && len(list.Items) == 1 && list.Items[0].Value == want {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%s has no value %s within %v: %.300s", name, want, changeTimeout, body), err)
		}
		if err := pause(ctx, freshnessPoll); err != nil {
			return err
		}
	}
}
