// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Every metric about an object names it by the labels namespace and name, and
// every metric of ours begins with gpupilot_.
func TestLabelsOfMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parse(t, nil, "--kubeconfig", file, "--roles", "scrape,decide")
	if err != nil {
		t.Fatal(err)
	}
	p, err := assemble(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	described := make(chan *prometheus.Desc)
	go func() { // ends when the registry has described everything
		defer close(described)
		p.registry.Describe(described)
	}()
	form := regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{(.*)\}\}$`)
	seen := 0
	for d := range described {
		parts := form.FindStringSubmatch(d.String())
		if parts == nil {
			t.Errorf("a description in another form: %s", d)
			continue
		}
		name, labels := parts[1], strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' || r == ' ' })
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_") {
			continue
		}
		seen++
		if !strings.HasPrefix(name, "gpupilot_") {
			t.Errorf("%s does not begin with gpupilot_", name)
		}
		for _, other := range []string{"gpuautoscaler", "gpuautoscalers", "autoscaler", "object", "workload", "exported_namespace"} {
			if slices.Contains(labels, other) {
				t.Errorf("%s names an object by the label %s; use namespace and name", name, other)
			}
		}
		if strings.HasPrefix(name, "gpupilot_autoscaler_") && !(slices.Contains(labels, "namespace") && slices.Contains(labels, "name")) {
			t.Errorf("%s has the labels %v; use namespace and name", name, labels)
		}
	}
	if seen < 10 {
		t.Errorf("only %d metrics of ours are registered: the test sees none", seen)
	}
}
