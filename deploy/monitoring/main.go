// SPDX-License-Identifier: Apache-2.0

// Command monitoring writes the Grafana dashboards and the Prometheus rules of
// deploy/chart, and the rules of GPUExporters with the policy that allows them:
//
//	cd deploy/monitoring && go run .
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// root is the repository, from this folder.
const root = "../.."

func main() {
	if err := run(root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes all files below the repository.
func run(repository string) error {
	files, err := generate(repository)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(repository, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The rules of GPUExporters: the controller's file, and the policy that lets it write them.
const (
	exporterRules  = "internal/autoscaler/gpuexporter/alerts.json"
	exporterPolicy = "deploy/admission/exporter.yaml"
)

// generate returns the content of each file, by its path from the repository.
func generate(repository string) (map[string][]byte, error) {
	policy, err := os.ReadFile(filepath.Join(repository, exporterPolicy))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	if files[exporterRules], err = rulesJSON(exporterAlerts()); err != nil {
		return nil, err
	}
	if files[exporterPolicy], err = withRules(policy, exporterAlerts()); err != nil {
		return nil, fmt.Errorf("%s: %w", exporterPolicy, err)
	}
	for _, d := range dashboards() {
		content, err := d.export()
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", d.name, err)
		}
		files["deploy/chart/dashboards/"+d.name+".json"] = content
	}
	for _, f := range ruleFiles() {
		content, err := f.render()
		if err != nil {
			return nil, fmt.Errorf("rules %s: %w", f.name, err)
		}
		files["deploy/chart/rules/"+f.name+".yaml"] = content
	}
	return files, nil
}
