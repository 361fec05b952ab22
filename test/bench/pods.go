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
)

// podCase is a number of pods and the bars of the pods metric with them.
type podCase struct {
	pods   int
	barP50 float64 // ms
	barRSS float64 // MB, of 10⁶ bytes
}

func podCases() []podCase { return []podCase{{1000, 2.2, 200}, {5000, 7.5, 250}} }

// The media types that clients of the custom metrics API accept: kubectl and
// most others JSON, the HorizontalPodAutoscaler's controller protobuf.
var podAccepts = []struct{ name, accept string }{
	{"JSON", "application/json"}, {"protobuf", "application/vnd.kubernetes.protobuf"},
}

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
	url  string
	pods int
	body bytes.Buffer
}

func newPodClient(dir, url string, pods int) (*podClient, error) {
	pem, err := os.ReadFile(filepath.Join(dir, certFile))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	return &podClient{
		http: &http.Client{Transport: transport, Timeout: time.Minute}, pods: pods,
		url: "https" + url[len("http"):] + "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + podNamespace + "/pods/*/" + podMetric + "?labelSelector=app%3Dweb",
	}, nil
}

// get asks once and checks that all pods are there.
func (c *podClient) get(ctx context.Context, accept string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+goodToken)
	request.Header.Set("Accept", accept)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	c.body.Reset()
	if _, err := c.body.ReadFrom(response.Body); err != nil {
		return err
	}
	if n := bytes.Count(c.body.Bytes(), []byte("web-6d4cf56db6-")); response.StatusCode != http.StatusOK || n != c.pods {
		return fmt.Errorf("status %s, %d of %d pods: %.300q", response.Status, n, c.pods, c.body.Bytes())
	}
	return nil
}

func (c *podClient) rows(ctx context.Context, cfg config, pc podCase, server *agentrig.Agent, out io.Writer) ([]Row, error) {
	var rows []Row
	for _, a := range podAccepts {
		for range 20 { // the connection, the review of the token, the pools
			if err := c.get(ctx, a.accept); err != nil {
				return nil, err
			}
		}
		cost, err := c.ask(ctx, cfg.podRequests, a.accept, server)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(out, "pods metric: %d pods, %s, %d bytes\n", pc.pods, a.name, c.body.Len())
		name := fmt.Sprintf("pods metric, %d pods, %s", pc.pods, a.name)
		rows = append(rows, atMost(name+", p50", cost.p50, "ms", pc.barP50), figure("  p99", cost.p99, "ms"), figure("  CPU of the server", cost.cpu, "ms"))
	}
	rss, err := server.RSS()
	if err != nil {
		return nil, err
	}
	return append(rows, atMost(fmt.Sprintf("pods metric, %d pods, RSS of the server", pc.pods), float64(rss)/1e6, "MB", pc.barRSS)), nil
}

// ask asks n times, with a pause after each request as long as the request took:
// an API server's requests do not follow upon one another. What the server's
// second costs without requests is taken off its CPU time.
func (c *podClient) ask(ctx context.Context, n int, accept string, server *agentrig.Agent) (cost, error) {
	idle, err := cpuPerSecond(ctx, server)
	if err != nil {
		return cost{}, err
	}
	before, err := server.CPU()
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	times := make([]float64, 0, n)
	for range n {
		start := time.Now()
		if err := c.get(ctx, accept); err != nil {
			return cost{}, err
		}
		took := time.Since(start)
		times = append(times, ms(took))
		if err := pause(ctx, took); err != nil {
			return cost{}, err
		}
	}
	after, err := server.CPU()
	if err != nil {
		return cost{}, err
	}
	slices.Sort(times)
	used := ms(after-before) - idle*time.Since(began).Seconds()
	return cost{quantile(times, 0.5), quantile(times, 0.99), used / float64(n)}, nil
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
