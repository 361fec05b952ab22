// SPDX-License-Identifier: Apache-2.0

// Command monitoring writes the Grafana dashboards and the Prometheus rules of
// deploy/chart, and the table of XID errors of their runbook:
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
	files, err := generate()
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

// generate returns the content of each file, by its path from the repository.
func generate() (map[string][]byte, error) {
	files := map[string][]byte{}
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
