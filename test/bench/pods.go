// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/reviewtest"
)

// podCase is a number of pods, and the upper limit (bar) of the server's memory with
// that many pods.
type podCase struct {
	pods   int
	barRSS float64 // MB, of 10⁶ bytes
}

func podCases() []podCase { return []podCase{{1000, 200}, {5000, 250}} }

// The bars of the median time are ratios to that of the library's way.
const (
	barPods   = 0.4
	barObject = 0.2 // of the metric of a Deployment of these pods
)

// podWay is a way to ask for the metric. Way by way, in turns, what else the
// machine does falls on all of them.
type podWay struct {
	name, accept, query string
	bar                 float64 // 0: none
	// path is that of another metric, of one object; empty: of all pods.
	path string
}

// podWays are JSON, which kubectl and most clients ask for, protobuf, which the
// HorizontalPodAutoscaler's controller asks for, and what the library makes of a
// request that is not written directly: what the same list would cost.
func podWays() []podWay {
	const json = "application/json"
	return []podWay{
		{name: "JSON", accept: json, bar: barPods},
		{name: "protobuf", accept: "application/vnd.kubernetes.protobuf", bar: barPods},
		{name: "JSON by the library", accept: json, query: "&pretty=false"},
		{name: "of the Deployment", accept: json, path: deploymentMetrics + podMetric, bar: barObject},
		{name: "of the Deployment, p90", accept: json, path: deploymentMetrics + podMetric + ":p90"},
	}
}

// podTurn is how many requests are made in a row before it is the next way's turn.
const podTurn = 20

const podMetric = "DCGM_FI_DEV_GPU_UTIL"

// benchPods measures one request for a metric of all pods of a workload: from a
// client process, over TLS and HTTP/2, with a token that the API server's stand-in
// reviews, to a process that serves the metrics API as the controller does.
func benchPods(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, c := range podCases() {
		r, err := benchPodCase(ctx, cfg, c, out)
		if err != nil {
			return nil, fmt.Errorf("%d pods: %w", c.pods, err)
		}
		rows = append(rows, r...)
	}
	return rows, nil
}

func benchPodCase(ctx context.Context, cfg config, c podCase, out io.Writer) ([]Row, error) {
	dir, err := os.MkdirTemp("", "gpupilot-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stop, err := startReviewer(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	server, err := agentrig.Start(ctx, agentrig.Config{Binary: self, Args: []string{"-serve-pods", strconv.Itoa(c.pods), "-serve-pods-from", dir}})
	if err != nil {
		return nil, err
	}
	client, err := newPodClient(dir, server.URL, c.pods)
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	defer client.http.CloseIdleConnections()
	rows, err := client.rows(ctx, cfg, c, server, out)
	if err = errors.Join(err, server.Stop()); err != nil {
		return nil, fmt.Errorf("%w; the server said:\n%s", err, server.Log())
	}
	return rows, nil
}

// podClient asks for the metric over one kept-open connection.
type podClient struct {
	http *http.Client
	url  string // of the metric of all pods
	// object is the path of the namespace, before that of an object.
	object string
	pods   int
	body   bytes.Buffer
}

func newPodClient(dir, url string, pods int) (*podClient, error) {
	pem, err := os.ReadFile(filepath.Join(dir, certFile))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	base := "https" + url[len("http"):] + "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + podNamespace
	return &podClient{
		http: &http.Client{Transport: transport, Timeout: time.Minute}, pods: pods,
		url: base + "/pods/*/" + podMetric + "?labelSelector=app%3Dweb", object: base,
	}, nil
}

// get asks once and checks that all pods are there.
func (c *podClient) get(ctx context.Context, way podWay) error {
	url, want, found := c.url+way.query, c.pods, []byte("web-6d4cf56db6-")
	if way.path != "" {
		url, want, found = c.object+way.path, 1, []byte(`"kind":"Deployment"`)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+reviewtest.Token)
	request.Header.Set("Accept", way.accept)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	c.body.Reset()
	if _, err := c.body.ReadFrom(response.Body); err != nil {
		return err
	}
	if n := bytes.Count(c.body.Bytes(), found); response.StatusCode != http.StatusOK || n != want {
		return fmt.Errorf("status %s, %d of %d objects: %.300q", response.Status, n, want, c.body.Bytes())
	}
	return nil
}

func (c *podClient) rows(ctx context.Context, cfg config, pc podCase, server *agentrig.Agent, out io.Writer) ([]Row, error) {
	ways := podWays()
	costs, err := c.ask(ctx, cfg.podRequests, ways, server)
	if err != nil {
		return nil, err
	}
	rss, err := server.RSS()
	if err != nil {
		return nil, err
	}
	library := costs[slices.IndexFunc(ways, func(w podWay) bool { return w.query != "" })].p50
	var rows []Row
	for i, way := range ways {
		if err := c.get(ctx, way); err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "pods metric: %d pods, %s, %d bytes\n", pc.pods, way.name, c.body.Len())
		name := fmt.Sprintf("pods metric, %d pods, %s, p50", pc.pods, way.name)
		if way.bar > 0 {
			rows = append(rows, relative(name, costs[i].p50, "ms", "the library", library, way.bar))
		} else {
			rows = append(rows, figure(name, costs[i].p50, "ms"))
		}
		rows = append(rows, figure("  p99", costs[i].p99, "ms"), figure("  CPU of the server", costs[i].cpu, "ms"))
	}
	return append(rows, atMost(fmt.Sprintf("pods metric, %d pods, RSS of the server", pc.pods), float64(rss)/1e6, "MB", pc.barRSS)), nil
}

// ask asks n times in each way and says what that cost, in the ways' order. What
// the server's second costs without requests is taken off its CPU time.
func (c *podClient) ask(ctx context.Context, n int, ways []podWay, server *agentrig.Agent) ([]cost, error) {
	for range 20 { // the connection, the review of the token, the pools
		for _, way := range ways {
			if err := c.get(ctx, way); err != nil {
				return nil, err
			}
		}
	}
	idle, err := cpuPerSecond(ctx, server)
	if err != nil {
		return nil, err
	}
	times, cpu := make([][]float64, len(ways)), make([][]float64, len(ways))
	for len(times[0]) < n {
		for i, way := range ways {
			took, used, err := c.turn(ctx, way, idle, server)
			if err != nil {
				return nil, err
			}
			times[i], cpu[i] = append(times[i], took...), append(cpu[i], used)
		}
	}
	costs := make([]cost, len(ways))
	for i := range ways {
		costs[i] = costOf(times[i], cpu[i])
	}
	return costs, nil
}

// turn asks podTurn times, with a pause after each request as long as the
// request took: an API server's requests do not follow upon one another.
func (c *podClient) turn(ctx context.Context, way podWay, idle float64, server *agentrig.Agent) (times []float64, cpu float64, err error) {
	before, err := server.CPU()
	if err != nil {
		return nil, 0, err
	}
	began := time.Now()
	for range podTurn {
		start := time.Now()
		if err := c.get(ctx, way); err != nil {
			return nil, 0, err
		}
		took := time.Since(start)
		times = append(times, ms(took))
		if err := pause(ctx, took); err != nil {
			return nil, 0, err
		}
	}
	after, err := server.CPU()
	return times, max(0, ms(after-before)-idle*time.Since(began).Seconds()) / podTurn, err
}

// cpuPerSecond is what the server uses without requests, in ms a second.
func cpuPerSecond(ctx context.Context, server *agentrig.Agent) (float64, error) {
	const length = 3 * time.Second
	before, err := server.CPU()
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, length); err != nil {
		return 0, err
	}
	after, err := server.CPU()
	return ms(after-before) / length.Seconds(), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
