// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Sentences on pages, each with the code that makes it true. A test fails if the sentence is gone, and if the code says
// something else.
func TestFacts(t *testing.T) {
	flags, repo := allFlags(t), readRepository(t)
	hasFlag := func(names ...string) func() error {
		return func() error {
			for _, name := range names {
				if !flags[name] {
					return fmt.Errorf("there is no flag --%s", name)
				}
			}
			return nil
		}
	}
	for _, fact := range []struct {
		page, says string
		holds      func() error
	}{
		{"docs/custom-metrics.md", "The controller serves `custom.metrics.k8s.io` v1beta2", hasFlag("register-apis", "external-metrics")},
		{"docs/evidence.md", "(on by default from Kubernetes 1.37)", func() error { return onByDefault(t, "HPAScaleToZero", "1.37") }},
		{"docs/hpa.md", "on by default from Kubernetes 1.37", func() error { return onByDefault(t, "HPAScaleToZero", "1.37") }},
		{"docs/history.md", "for 14 days", equal(int(history.Retention.Hours()/24), 14)},
		{"docs/design/0010-dependencies.md", "its PromQL engine, which runs over the windows and the history", func() error {
			if !repo.imports["github.com/prometheus/prometheus/promql"] {
				return fmt.Errorf("no package imports the engine")
			}
			return nil
		}},
		{"docs/operate.md", "at most 16,384 series, and 1,024 devices", equal([2]int{series.MaxSeries, series.MaxDevices}, [2]int{16384, 1024})},
		{"docs/operate.md", "at most 4,096 pairs of a device and a container", equal(series.MaxOwners, 4096)},
		{"docs/promql.md", "A query has at most 4096 bytes", equal(scope.MaxLength, 4096)},
		{"docs/sources.md", "Of one pod at most 8 pairs of a port and a path are read", equal(discovery.MaxPerPod, 8)},
		{"docs/gpuautoscaler.md", "`Advise`", equal(v1alpha1.ActuationAdvise, "Advise")},
	} {
		if !strings.Contains(flat(string(read(t, fact.page))), fact.says) {
			t.Errorf("%s does not say %q: correct its row here", fact.page, fact.says)
		}
		if err := fact.holds(); err != nil {
			t.Errorf("%s says %q: %v", fact.page, fact.says, err)
		}
	}
}

// flat has one blank for each line break and its indentation.
func flat(text string) string { return regexp.MustCompile(`\s+`).ReplaceAllString(text, " ") }

func equal[T comparable](got, want T) func() error {
	return func() error {
		if got != want {
			return fmt.Errorf("the code has %v, not %v", got, want)
		}
		return nil
	}
}

// onByDefault says whether a feature gate of the Kubernetes that test/kube builds is on from that version.
func onByDefault(t *testing.T, gate, version string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = filepath.Join(root, "test", "kube")
	dir, err := cmd.Output()
	if err != nil || len(strings.TrimSpace(string(dir))) == 0 {
		t.Logf("the source of Kubernetes is not here, so the gate %s is not checked: %v", gate, err)
		return nil
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg", "features", "kube_features.go"))
	if err != nil {
		return err
	}
	if !regexp.MustCompile(`\b` + gate + `: \{[^}]*(?:\},[^}]*)*?MustParse\("` + regexp.QuoteMeta(version) + `"\), Default: true`).Match(b) {
		return fmt.Errorf("the gate %s is not on by default from %s", gate, version)
	}
	return nil
}

// Each bullet of the README's list of what is not there has a row here, so that it does not outlive the day on which it
// is there.
func TestNotThereYet(t *testing.T) {
	api := string(read(t, "docs/api.md")) // it is made from the types
	evidence := string(read(t, "docs/evidence.md"))
	missing := map[string]func(bullet string) error{
		"No release": func(string) error { return absent(string(read(t, "CHANGELOG.md")), `(?m)^## v?\d[^,\s]*$`) },
		"Of real GPUs, the agent has met one H200": func(string) error {
			if !strings.Contains(string(read(t, "test/hardware/RESULTS.md")), "on NVIDIA H200 (") {
				return errors.New("test/hardware/RESULTS.md was measured on another GPU")
			}
			models, err := filepath.Glob("../../docs/calibration/*.json")
			if len(models) != 1 {
				return fmt.Errorf("docs/calibration has %q, %v", models, err)
			}
			return absent(string(read(t, "test/hardware/RESULTS.md")), "dcgm: exact|nvlink-tx")
		},
		"One GPU budget with priorities": func(string) error { return absent(api, "`(?:prefill|decode|priority)[a-z]*`") },
		"Well-chosen settings": func(bullet string) error {
			for _, figure := range regexp.MustCompile(`\b\d\.\d\d\b`).FindAllString(bullet, -1) {
				if !strings.Contains(evidence, figure) {
					return fmt.Errorf("docs/evidence.md has no %s", figure)
				}
			}
			return nil
		},
	}
	_, list, _ := strings.Cut(string(read(t, "README.md")), "## What is not there yet\n")
	list, _, _ = strings.Cut(list, "\n## ")
	bullets := strings.Split("\n"+strings.TrimSpace(list), "\n* ")[1:]
	if len(bullets) != len(missing) {
		t.Errorf("%d bullets, and %d rows here", len(bullets), len(missing))
	}
	for _, bullet := range bullets {
		bullet = flat(bullet)
		found := false
		for begin, check := range missing {
			if !strings.HasPrefix(bullet, begin) {
				continue
			}
			found = true
			if err := check(bullet); err != nil {
				t.Errorf("README.md: %s: %v", bullet, err)
			}
		}
		if !found {
			t.Errorf("README.md: %q is not there yet: add a row that says how a test would know", bullet)
		}
	}
}

func absent(text, form string) error {
	if found := regexp.MustCompile(form).FindString(text); found != "" {
		return fmt.Errorf("it is there: %s", found)
	}
	return nil
}
