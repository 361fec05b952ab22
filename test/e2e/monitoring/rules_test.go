// SPDX-License-Identifier: Apache-2.0

//go:build !e2e

package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpupilot/gpupilot/test/promtest"
)

// promtool accepts the rules, and their unit tests hold.
func TestRules(t *testing.T) {
	promtool := promtest.Program(t, "promtool")
	run := func(command, pattern string) {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			cmd := exec.Command(promtool, command, "rules", filepath.Base(file))
			cmd.Dir = filepath.Dir(file) // rule_files are relative to the test
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("promtool %s rules %s: %v\n%s", command, file, err, out)
			}
		}
	}
	run("check", filepath.Join(chart, "rules", "*.yaml"))
	run("test", "testdata/*.test.yaml")
}

// Every alert has a unit test in which it fires, and one in which it does not.
func TestEveryAlertHasATest(t *testing.T) {
	type result struct{ fires, silent bool }
	tested := map[string]result{}
	files, err := filepath.Glob("testdata/*.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var content struct {
			Tests []struct {
				Alerts []struct {
					Name string `yaml:"alertname"`
					Want []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		if err := yaml.Unmarshal(b, &content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, test := range content.Tests {
			for _, a := range test.Alerts {
				r := tested[a.Name]
				r.fires, r.silent = r.fires || len(a.Want) > 0, r.silent || len(a.Want) == 0
				tested[a.Name] = r
			}
		}
	}
	rules, err := ruleFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, all := range rules {
		for _, r := range all {
			if got := tested[r.Alert]; !got.fires || !got.silent {
				t.Errorf("%s: a test in which it fires: %v, in which it is silent: %v", r.Alert, got.fires, got.silent)
			}
		}
	}
}
