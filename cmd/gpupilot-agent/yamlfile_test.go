// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeFile writes a file and gives its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const version1 = `version: 1
metrics:
  file: /etc/dcgm-exporter/default-counters.csv
collection:
  interval: 30s
  retention: {maxAge: 5m}
  watchGroups:
    - name: fast
      interval: 5s
      fields: [DCGM_FI_DEV_GPU_TEMP]
    - name: slow
      interval: 5m
      fields: ["DCGM_FI_DEV_NVLINK_*"]
server:
  maxConcurrentScrapes: 4
`

const version2 = `version: 2
metrics:
  enableExporterMetrics: true
  fields:
    - name: DCGM_FI_DEV_GPU_TEMP
      prometheusType: gauge
      help: Warm, "very" warm.
    - {name: DCGM_FI_DRIVER_VERSION, prometheusType: label, help: Driver.}
collections:
  - name: scrape
    every: 2s
    metrics: {include: ["*"]}
    sources: {dcgm: {watch: {maxKeepSamples: 1}}}
sources:
  dcgm:
    watch: {maxKeepAge: 10m}
    detectBindUnbind: {enabled: true, pollInterval: 250ms}
`

func TestYAMLSettings(t *testing.T) {
	f := func(text string, want map[string]string) {
		t.Helper()
		y, err := parseYAML([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, y.settings()); diff != "" {
			t.Errorf("settings (-want +got):\n%s", diff)
		}
	}
	f(version1, map[string]string{"collect-interval": "5000", "collectors": "/etc/dcgm-exporter/default-counters.csv", "max-concurrent-scrapes": "4"})
	f(version2, map[string]string{
		"collect-interval": "2000", "enable-exporter-metrics": "true", "enable-gpu-bind-unbind-watch": "true",
		"gpu-bind-unbind-poll-interval": "250ms", "watch-max-keep-age": "10m",
	})
	y, _ := parseYAML([]byte(version2))
	if want, got := "DCGM_FI_DEV_GPU_TEMP,gauge,\"Warm, \"\"very\"\" warm.\"\nDCGM_FI_DRIVER_VERSION,label,Driver.\n", y.collectors(); got != want {
		t.Errorf("collectors %q, want %q", got, want)
	}
}

// Flags and variables go before the file, and that before the defaults.
func TestYAMLPrecedence(t *testing.T) {
	one, two := writeFile(t, "1.yaml", version1), writeFile(t, "2.yaml", version2)
	c, err := parse("--config-file " + one)
	if err != nil || c.intervalMillis != 5000 || c.maxScrapes != 4 || c.inline || c.collectors == "" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = parse("-c 100 --config-file "+one, "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", "9"); err != nil || c.intervalMillis != 100 || c.maxScrapes != 9 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = parse("", "DCGM_EXPORTER_CONFIG_FILE", two); err != nil || !c.inline || !c.exporterMetrics {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = parse("-f mine.csv --config-file " + two); err != nil || c.inline || c.collectors != "mine.csv" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestYAMLErrors(t *testing.T) {
	for text, want := range map[string]string{
		"version: 3\n":                           "want 1 or 2",
		"{}":                                     "want 1 or 2",
		"version: 1\ncollections: [{name: a}]\n": "version: 2",
		"version: 2\ncollection: {interval: 1s}\n":                                              "key of version 1",
		"version: 2\nsurprise: 1\n":                                                             "surprise",
		"version: 1\ncollection: {interval: 1}\n":                                               "whole milliseconds",
		"version: 1\nserver: {maxConcurrentScrapes: -1}\n":                                      "from 0",
		"version: 1\nmetrics: {file: a, fields: [{name: b, prometheusType: gauge, help: c}]}\n": "one of them",
		"version: 1\nmetrics: {fields: [{name: b, prometheusType: gauge}]}\n":                   "metrics.fields[0]",
		"version: 1\nversion: 1\n":                                                              "already defined",
	} {
		if _, err := parse("--config-file " + writeFile(t, "c.yaml", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := parse("--config-file /no/such/file"); err == nil {
		t.Error("a file that is not there")
	}
}

// Collectors in the file are shown, and followed.
func TestYAMLCollectors(t *testing.T) {
	file := writeFile(t, "c.yaml", version2)
	url, _, _ := start(t, "--backend", "sim", "--config-file", file, "-c", "50")
	shows := func(want, not string) {
		t.Helper()
		until(t, func() bool {
			_, body := get(t, url+"/metrics")
			return strings.Contains(body, want+"{") && !strings.Contains(body, not+"{")
		})
	}
	shows("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL")
	if err := os.WriteFile(file+".new", []byte(strings.Replace(version2, "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_UTIL", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	shows("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP")
}

func FuzzParseYAML(f *testing.F) {
	f.Add(version1)
	f.Add(version2)
	f.Add("version: 1\ncollection: {interval: -1s}")
	f.Fuzz(func(t *testing.T, text string) {
		y, err := parseYAML([]byte(text))
		if err != nil {
			return
		}
		if d, err := y.interval(); err != nil || d < 0 {
			t.Errorf("%q: interval %v, %v", text, d, err)
		}
	})
}

// Without Kubernetes, Docker says which container holds a GPU.
func TestContainerLabels(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{
		"/containers/json":   `[{"Id":"a"},{"Id":"b"}]`,
		"/containers/a/json": `{"Name":"/train","HostConfig":{"DeviceRequests":[{"Driver":"nvidia","DeviceIDs":["0","1"]}]}}`,
		"/containers/b/json": `{"Name":"/serve","Config":{"Env":["NVIDIA_VISIBLE_DEVICES=1"]}}`,
	}
	docker := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(answers[r.URL.Path]))
	})}
	go func() { _ = docker.Serve(l) }()
	defer func() { _ = docker.Close() }()
	url, _, _ := start(t, "--backend", "sim", "--sim-gpus", "2", "-c", "50", "-n", "--container-labels", "--container-runtime-socket", socket)
	until(t, func() bool {
		_, body := get(t, url+"/metrics")
		return strings.Contains(body, `container="train"} `) && strings.Contains(body, `namespace="",pod="",container="serve"`) &&
			strings.Count(body, "\nDCGM_FI_DEV_GPU_UTIL{") == 2 && !strings.Contains(body, `UTIL{gpu="1",container`)
	})
}
