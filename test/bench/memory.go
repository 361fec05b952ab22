// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	barRSS       = 22  // MiB
	barRSSLabels = 28  // MiB, with the labels of labelledPods pods
	barGrowth    = 0.5 // MiB in the second half: flat

	labelledPods = 110 // the kubelet's default limit of a node
	// sampleEvery is the time between two looks at the memory.
	sampleEvery = time.Second
)

// benchMemory measures the resident memory of an agent with 8 GPUs and pods on
// the fake NVML that is scraped 10 times a second, as Prometheus does, and of
// one that follows the node's pods for their labels, both at once.
func benchMemory(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	fmt.Fprintf(out, "memory: two agents, %v at 10 scrapes a second\n", cfg.soak)
	dir, err := os.MkdirTemp("", "gpupilot-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	api, err := agentrig.StartAPIServer(dir)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	s := shapes()[0]
	labelPods(api, s)
	plain, err := startNode(ctx, cfg, s, agentrig.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = plain.stop() }()
	labelled, err := startNode(ctx, cfg, s, agentrig.Config{Args: append(api.Args(), "--kubernetes-enable-pod-labels"), Env: api.Env()})
	if err != nil {
		return nil, err
	}
	defer func() { _ = labelled.stop() }()

	var m [2]memory
	errs := make(chan error, len(m))
	for i, n := range []*node{plain, labelled} {
		go func() {
			var err error
			m[i], err = n.soak(ctx, cfg.soak)
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("RSS after %v at 10 scrapes a second", cfg.soak)
	return []Row{
		atMost(name, m[0].last, "MiB", barRSS),
		atMost("  growth in the second half", m[0].growth, "MiB", barGrowth),
		atMost(fmt.Sprintf("%s, labels of %d pods", name, labelledPods), m[1].last, "MiB", barRSSLabels),
		atMost("  growth in the second half", m[1].growth, "MiB", barGrowth),
	}, nil
}

// labelPods makes a full node's pods, the GPUs' among them, with the labels that
// pods of a Deployment have.
func labelPods(api *agentrig.APIServer, s shape) {
	names := []agentrig.Grant{}
	names = append(names, s.grants()...)
	for i := len(names); i < labelledPods; i++ {
		names = append(names, agentrig.Grant{Namespace: "other", Pod: "web-" + strconv.Itoa(i)})
	}
	for _, p := range names {
		api.SetPod(p.Namespace, p.Pod, map[string]string{
			"app.kubernetes.io/name": "inference-server", "app.kubernetes.io/instance": p.Pod, "app.kubernetes.io/part-of": "platform",
			"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "inference-server-1.2.3", "pod-template-hash": "7d9c8b6f5", "team": "ml",
		})
	}
}

// memory is resident memory in MiB.
type memory struct {
	last   float64
	growth float64 // of its peak, from the first half to the second
}

// soak scrapes 10 times a second as Prometheus does and watches the memory.
func (n *node) soak(ctx context.Context, length time.Duration) (memory, error) {
	scraper, err := agentrig.NewScraper(n.URL, "Accept-Encoding", "gzip",
		"Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1")
	if err != nil {
		return memory{}, err
	}
	defer scraper.Close()
	scrape, look := time.NewTicker(paceEvery), time.NewTicker(sampleEvery)
	defer scrape.Stop()
	defer look.Stop()
	begin := time.Now()
	var m memory
	var peak [2]float64 // of each half
	for time.Since(begin) < length {
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-scrape.C:
			if _, err := scraper.Scrape(); err != nil {
				return m, err
			}
		case <-look.C:
			rss, err := n.RSS()
			if err != nil {
				return m, err
			}
			m.last = float64(rss) / (1 << 20)
			half := &peak[min(1, 2*time.Since(begin)/length)]
			*half = max(*half, m.last)
		}
	}
	m.growth = peak[1] - peak[0]
	return m, nil
}
