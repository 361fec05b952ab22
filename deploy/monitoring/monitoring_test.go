// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"go.yaml.in/yaml/v3"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The files of the repository are what this code writes, and there are no others.
func TestFilesAreCurrent(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the code says (%v): cd deploy/monitoring && go run .", name, err)
		}
	}
	for _, folder := range []string{"deploy/chart/dashboards", "deploy/chart/rules"} {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if _, ok := files[folder+"/"+e.Name()]; !ok {
				t.Errorf("nothing writes %s/%s", folder, e.Name())
			}
		}
	}
}

// Grafana's own types read every dashboard without a field that they do not know, and
// what an import and a provisioned dashboard need is there.
func TestDashboardsAreGrafanas(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for _, b := range dashboards() {
		content, err := b.export()
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(content, &fields); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(fields["__inputs"]), inputName) || fields["__requires"] == nil {
			t.Errorf("%s lacks __inputs or __requires", b.name)
		}
		delete(fields, "__inputs")
		delete(fields, "__requires")
		fields["annotations"] = json.RawMessage("{}") // Grafana's types lack what Prometheus's annotations have
		rest, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard.Dashboard
		if err := d.UnmarshalJSONStrict(rest); err != nil {
			t.Errorf("%s: %v", b.name, err)
		}
		checkPanels(t, b.name, &d)
	}
}

// What has a good and a bad end shows it by a colour, and links lead to dashboards, variables and pages that exist.
func TestLevelsAndLinks(t *testing.T) {
	judged := regexp.MustCompile(`(?i)temperature|memory used, share|^memory used$|xid error|remap|budget|burn|^age of|alerts|throttled (by|gpus)|not answer`)
	variables := map[string]string{}
	for _, b := range dashboards() {
		content, err := b.export()
		if err != nil {
			t.Fatal(err)
		}
		variables[b.name] = string(content)
	}
	addresses := regexp.MustCompile(`^/d/gpupilot-(\w+)\?((?:&?var-\w+=[^&]+)*)&`)
	found := 0
	follow := func(where string, l link) {
		if l.url == "" {
			return
		}
		found++
		if page, ok := strings.CutPrefix(l.url, documentation); ok {
			file, anchor, _ := strings.Cut(page, "#")
			text, err := os.ReadFile(filepath.Join(root, "docs", file))
			if err != nil || anchor != "" && !strings.Contains(strings.ToLower(string(text)), "\n## "+strings.ReplaceAll(anchor, "-", " ")) {
				t.Errorf("%s: %s leads nowhere (%v)", where, l.url, err)
			}
			return
		}
		m := addresses.FindStringSubmatch(l.url)
		if m == nil || variables[m[1]] == "" {
			t.Errorf("%s: %s is no dashboard", where, l.url)
			return
		}
		for _, v := range strings.Split(m[2], "&") {
			name, _, _ := strings.Cut(strings.TrimPrefix(v, "var-"), "=")
			if !strings.Contains(variables[m[1]], `"name": "`+name+`"`) {
				t.Errorf("%s: the dashboard %s has no variable %s", where, m[1], name)
			}
		}
	}
	for _, b := range dashboards() {
		if len(b.marks) < 2 {
			t.Errorf("%s does not mark changes and overrides", b.name)
		}
		for _, r := range b.rows {
			for _, p := range r.panels {
				where := b.name + ": " + p.title
				if judged.MatchString(p.title) && p.kind != rows && len(p.levels) == 0 && p.unit != bytes_ {
					t.Errorf("%s has no levels", where)
				}
				follow(where, p.link)
				for _, c := range p.columns {
					follow(where, c.link)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("%d links", found)
	}
}

// checkPanels looks for what would make a panel useless: no title, a query without its
// data source, and panels that overlap.
func checkPanels(t *testing.T, name string, d *dashboard.Dashboard) {
	t.Helper()
	taken := map[[2]uint32]string{}
	ids := map[uint32]bool{}
	each(d, func(p *dashboard.Panel) {
		title := *p.Title
		if title == "" || ids[*p.Id] || len(p.Targets) == 0 {
			t.Errorf("%s: panel %d %q has no title, another one's id, or no query", name, *p.Id, title)
		}
		ids[*p.Id] = true
		if p.Datasource == nil || *p.Datasource.Uid != "${datasource}" {
			t.Errorf("%s: %s does not ask the variable's data source", name, title)
		}
		g := p.GridPos
		if g.X+g.W > 24 {
			t.Errorf("%s: %s is wider than the dashboard", name, title)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]uint32{x, y}]; ok {
					t.Fatalf("%s: %s is over %s", name, title, other)
				}
				taken[[2]uint32{x, y}] = title
			}
		}
	})
}

// Every panel of the dashboard that is known as 12239 is there.
func TestNodeHasThePanelsOf12239(t *testing.T) {
	var titles []string
	for _, r := range node().rows {
		for _, p := range r.panels {
			titles = append(titles, strings.ToLower(p.title))
		}
	}
	for _, want := range []string{"gpu temperature", "gpu power usage", "gpu sm clocks", "gpu utilisation", "tensor core utilisation", "framebuffer memory used"} {
		if !slices.Contains(titles, want) {
			t.Errorf("no panel %q among %q", want, titles)
		}
	}
}

// A field is one selector for each unit that the profiles have.
func TestFieldsInAllProfiles(t *testing.T) {
	f := func(id gpu.FieldID, want string) {
		t.Helper()
		if got := fieldOf(id).query(`gpu="0"`, nil); got != want {
			t.Errorf("field %d is\n%s\nwant\n%s", id, got, want)
		}
	}
	f(gpu.GPUTemp, `{__name__=~"DCGM_FI_DEV_GPU_TEMP|DCGM_FI_DEV_GPU_TEMP_CELSIUS|dcgm_gpu_temp",gpu="0"}`)
	f(gpu.GPUUtil, "{__name__=~\"DCGM_FI_DEV_GPU_UTIL|dcgm_gpu_utilization\",gpu=\"0\"} * 0.01\nor\nDCGM_FI_DEV_GPU_UTIL_RATIO{gpu=\"0\"}")
	f(gpu.SMClock, "{__name__=~\"DCGM_FI_DEV_SM_CLOCK|dcgm_sm_clock\",gpu=\"0\"} * 1e6\nor\nDCGM_FI_DEV_SM_CLOCK_HERTZ{gpu=\"0\"}")
	f(gpu.ThermalViolation, "{__name__=~\"DCGM_FI_DEV_THERMAL_VIOLATION|dcgm_thermal_violation\",gpu=\"0\"} * 1e-9\nor\nDCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL{gpu=\"0\"}")
	f(gpu.FBUsed, "{__name__=~\"DCGM_FI_DEV_FB_USED|dcgm_fb_used\",gpu=\"0\"} * 1048576\nor\nDCGM_FI_DEV_FB_USED_BYTES{gpu=\"0\"}")
	f(gpu.RowRemapPending, `DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="0"}`)
}

// Every alert has what the person on call needs.
func TestAlertsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range ruleFiles() {
		for _, g := range f.groups {
			for _, a := range g.alerts {
				if seen[a.name] || a.summary == "" || a.severity == "" {
					t.Errorf("%s: twice, or without a summary or a severity", a.name)
				}
				seen[a.name] = true
				if !strings.Contains(a.description, "$value") && !strings.Contains(a.description, "$labels.xid") && !strings.ContainsAny(a.description, "0123456789") {
					t.Errorf("%s: its description has no number: %s", a.name, a.description)
				}
				if !strings.Contains(runbookSection(t, a.runbook), "`"+a.name+"`") {
					t.Errorf("docs/runbooks/%s does not name %s", a.runbook, a.name)
				}
			}
		}
	}
}

// Each alert matches exactly one route of the example on the page, with its severity.
func TestRoutesOfThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\nroute:")
	text, _, _ = strings.Cut("route:"+text, "```")
	var example struct {
		Route struct {
			Routes []struct {
				Matchers []string `yaml:"matchers"`
			} `yaml:"routes"`
		} `yaml:"route"`
	}
	if err := yaml.Unmarshal([]byte(text), &example); err != nil {
		t.Fatal(err)
	}
	matcher := regexp.MustCompile(`^(\w+)(=~?)"(.*)"$`)
	for _, f := range ruleFiles() {
		for _, g := range f.groups {
			for _, a := range g.alerts {
				labels, routes := map[string]string{"alertname": a.name, "severity": string(a.severity)}, 0
				for _, r := range example.Route.Routes {
					if !slices.ContainsFunc(r.Matchers, func(text string) bool {
						m := matcher.FindStringSubmatch(text)
						return m == nil || !regexp.MustCompile("^(?:"+m[3]+")$").MatchString(labels[m[1]])
					}) {
						routes++
					}
				}
				if routes != 1 {
					t.Errorf("%s, %s: %d routes of docs/monitoring.md", a.name, a.severity, routes)
				}
			}
		}
	}
}

// runbookSection is the text below a heading, which is named as page.md#anchor.
func runbookSection(t *testing.T, name string) string {
	t.Helper()
	file, anchor, _ := strings.Cut(name, "#")
	page, err := os.ReadFile(filepath.Join(root, "docs/runbooks", file))
	if err != nil {
		t.Error(err)
	}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		if strings.ReplaceAll(strings.ToLower(heading), " ", "-") == anchor {
			return text
		}
	}
	return ""
}

// The runbook has the codes of the XID table.
func TestRunbookHasTheXIDs(t *testing.T) {
	const name = "gpu.md#an-xid-error"
	section := runbookSection(t, name)
	fatal, impaired := xidCodes()
	for alert, codes := range map[string][]string{"GPUXIDCritical": fatal, "GPUXIDWarning": impaired} {
		if line := "| `" + alert + "` | " + strings.Join(codes, ", ") + " |"; !strings.Contains(section, line) {
			t.Errorf("docs/runbooks/%s lacks the line\n%s", name, line)
		}
	}
}
