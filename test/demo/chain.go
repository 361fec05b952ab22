// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	externalv1beta1 "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The usual chain: an exporter that reads every 30 s (dcgm-exporter's default), a Prometheus that scrapes and evaluates
// every 30 s, and an adapter for the HorizontalPodAutoscaler.
const (
	chainNamespace = "monitoring"
	chainEvery     = 30 * time.Second
	chainMetric    = "classic_gpu_utilization" // of the recording rule
)

// chain is what runs between the GPUs and the HorizontalPodAutoscaler of classic. Prometheus and the autoscaler are the real
// ones. The exporter is the agent, under dcgm-exporter's names. Both are processes of pods. The adapter answers as
// prometheus-adapter's externalRules do.
type chain struct {
	dir     string // of Prometheus
	url     string // of Prometheus
	adapter *httptest.Server
}

// findPrometheus returns the program, of the PATH or of the cache of .ci/run; "": there is none.
func findPrometheus() string {
	cache := os.Getenv("GPUPILOT_CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "gpupilot")
	}
	for _, p := range []string{"prometheus", filepath.Join(cache, "prometheus/usr/bin/prometheus")} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	return ""
}

// startChain starts the chain, with this Prometheus. It is to be closed after the stack, also after an error.
func startChain(ctx context.Context, s *stack.Stack, program string) (*chain, error) {
	c := &chain{}
	targets, err := startExporters(ctx, s)
	if err == nil {
		err = c.startPrometheus(ctx, s, program, targets)
	}
	if err == nil {
		err = c.startAdapter(ctx, s)
	}
	if err != nil {
		return c, fmt.Errorf("start the usual chain: %w", err)
	}
	return c, nil
}

// startExporters runs an exporter on each node and returns their addresses.
func startExporters(ctx context.Context, s *stack.Stack) ([]string, error) {
	program, err := filepath.Abs("bin/gpupilot-agent")
	if err != nil {
		return nil, err
	}
	argv, err := json.Marshal([]string{
		program, "--backend", "sim", "--sim-state", "$(SIM_STATE)", "--sim-gpus", fmt.Sprint(gpusPerNode), "-k",
		"--pod-resources-kubelet-socket", "$(POD_RESOURCES_SOCKET)", "-a", "$(POD_IP):9400", "--node-name", "$(NODE_NAME)",
		"-c", fmt.Sprint(chainEvery.Milliseconds()),
	})
	if err != nil {
		return nil, err
	}
	if err := s.Apply(ctx, fmt.Appendf(nil, exporters, chainNamespace, simnode.ExecAnnotation, string(argv))); err != nil {
		return nil, err
	}
	return addresses(ctx, s, "dcgm-exporter", nodes, "9400")
}

// addresses waits for so many pods of an app, and returns where they serve.
func addresses(ctx context.Context, s *stack.Stack, app string, n int, port string) (out []string, err error) {
	err = stack.Await(ctx, firstTimeout, func() error {
		var pods corev1.PodList
		if err := s.Client.List(ctx, &pods, client.InNamespace(chainNamespace), client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		out = nil
		for i := range pods.Items {
			if ip := pods.Items[i].Status.PodIP; ip != "" {
				out = append(out, net.JoinHostPort(ip, port))
			}
		}
		if len(out) < n {
			return fmt.Errorf("%d of %d pods of %s run", len(out), n, app)
		}
		return nil
	})
	return out, err
}

const exporters = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: dcgm-exporter, namespace: %s}
spec:
  selector: {matchLabels: {app: dcgm-exporter}}
  template:
    metadata:
      labels: {app: dcgm-exporter}
      annotations: {%s: '%s'}
    spec:
      containers: [{name: exporter, image: exporter}]
`

const prometheusPod = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: prometheus, namespace: %s}
spec:
  selector: {matchLabels: {app: prometheus}}
  template:
    metadata:
      labels: {app: prometheus}
      annotations: {%s: '%s'}
    spec:
      containers: [{name: prometheus, image: prometheus}]
`

const prometheusConfig = `
global: {scrape_interval: %[1]s, evaluation_interval: %[1]s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dcgm-exporter
  honor_labels: true
  static_configs: [{targets: [%[2]s]}]
`

const prometheusRules = `
groups:
- name: classic
  rules:
  - record: %s
    expr: avg by (namespace) (DCGM_FI_DEV_GPU_UTIL{pod=~"%s-.*"})
`

func (c *chain) startPrometheus(ctx context.Context, s *stack.Stack, program string, targets []string) error {
	var err error
	if c.dir, err = os.MkdirTemp("", "gpupilot-demo-"); err != nil {
		return err
	}
	config := filepath.Join(c.dir, "prometheus.yaml")
	for name, text := range map[string]string{
		config:                             fmt.Sprintf(prometheusConfig, chainEvery, `"`+strings.Join(targets, `", "`)+`"`),
		filepath.Join(c.dir, "rules.yaml"): fmt.Sprintf(prometheusRules, chainMetric, classic),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	argv, err := json.Marshal([]string{
		program, "--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(c.dir, "data"), "--web.listen-address=$(POD_IP):9090",
	})
	if err != nil {
		return err
	}
	if err := s.Apply(ctx, fmt.Appendf(nil, prometheusPod, chainNamespace, simnode.ExecAnnotation, string(argv))); err != nil {
		return err
	}
	address, err := addresses(ctx, s, "prometheus", 1, "9090")
	if err != nil {
		return err
	}
	c.url = "http://" + address[0]
	return stack.Await(ctx, firstTimeout, func() error {
		_, err := c.query(ctx)
		return err
	})
}

// query returns the newest value of the recording rule by namespace.
func (c *chain) query(ctx context.Context) (map[string]json.Number, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/api/v1/query?query="+url.QueryEscape(chainMetric), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var result struct {
		Status string
		Data   struct {
			Result []struct {
				Metric map[string]string
				Value  [2]json.Number
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&result); err != nil {
		return nil, err
	}
	if result.Status != "success" {
		return nil, fmt.Errorf("prometheus answers %s", resp.Status)
	}
	values := map[string]json.Number{}
	for _, r := range result.Data.Result {
		values[r.Metric["namespace"]] = r.Value[1]
	}
	return values, nil
}

const externalMetrics = "/apis/external.metrics.k8s.io/v1beta1"

// handler serves external.metrics.k8s.io.
func (c *chain) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+externalMetrics, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "external.metrics.k8s.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: chainMetric, Namespaced: true, Kind: "ExternalMetricValueList", Verbs: []string{"get"}}},
		})
	})
	mux.HandleFunc("GET "+externalMetrics+"/namespaces/{namespace}/"+chainMetric, func(w http.ResponseWriter, r *http.Request) {
		values, err := c.query(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		list := externalv1beta1.ExternalMetricValueList{
			TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: "external.metrics.k8s.io/v1beta1"},
			Items:    []externalv1beta1.ExternalMetricValue{},
		}
		if v, ok := values[r.PathValue("namespace")]; ok {
			q, err := resource.ParseQuantity(v.String())
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			list.Items = append(list.Items, externalv1beta1.ExternalMetricValue{MetricName: chainMetric, Timestamp: metav1.Now(), Value: q})
		}
		answer(w, list)
	})
	return mux
}

// startAdapter starts the adapter and registers it.
func (c *chain) startAdapter(ctx context.Context, s *stack.Stack) error {
	c.adapter = httptest.NewTLSServer(c.handler())
	_, port, err := net.SplitHostPort(c.adapter.Listener.Addr().String())
	if err != nil {
		return err
	}
	return s.Apply(ctx, fmt.Appendf(nil, adapterService, chainNamespace, port))
}

// adapterService makes the adapter an aggregated API. Its certificate is not checked: it listens on loopback.
const adapterService = `
apiVersion: v1
kind: Service
metadata: {name: prometheus-adapter, namespace: %[1]s}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: prometheus-adapter, namespace: %[1]s, port: %[2]s}
`

func answer(w http.ResponseWriter, x any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(x) // a client that went away is no error
}

// close ends the adapter and removes the files, once the stack has ended the pods.
func (c *chain) close() {
	if c.adapter != nil {
		c.adapter.CloseClientConnections()
		c.adapter.Close()
	}
	if c.dir != "" {
		_ = os.RemoveAll(c.dir) // a rest remains in the temporary folder
	}
}
