// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/spf13/pflag"
	yamlv3 "go.yaml.in/yaml/v3"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Every example is valid, and some page names it.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "examples", "*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	named := namedExamples(t)
	for _, file := range files {
		name := filepath.Base(file)
		if name == "README.md" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if !named[name] {
				t.Error("no page of docs/ and not README.md names it")
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(name) == ".yaml" {
				if err := checkExample(file, b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for name := range named {
		if _, err := os.Stat(filepath.Join(root, "examples", name)); err != nil {
			t.Errorf("a page names examples/%s, which is not there", name)
		}
	}
}

var exampleName = regexp.MustCompile(`examples/([A-Za-z0-9_-]+(?:\.[a-z]+)+)`)

// namedExamples are the files under examples/ that a page names, in text, links
// or commands.
func namedExamples(t *testing.T) map[string]bool {
	t.Helper()
	named := map[string]bool{}
	for _, p := range pages(t) {
		if strings.HasPrefix(p.path, "docs/") || p.path == "README.md" {
			b, err := os.ReadFile(filepath.Join(root, p.path))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range exampleName.FindAllSubmatch(b, -1) {
				named[string(m[1])] = true
			}
		}
	}
	return named
}

// checkExample reads a file as the program does that it is for.
func checkExample(file string, b []byte) error {
	switch {
	case strings.HasSuffix(file, "http-config.yaml"):
		_, _, err := config.LoadHTTPConfigFile(file)
		return err
	case bytes.Contains(b, []byte("scrape_configs:")):
		return checkScrapeConfigs(b)
	}
	if bytes.Contains(b, []byte("\nplugins:")) {
		return checkK9sPlugins(b)
	}
	checked, err := checkObjects(b)
	if err == nil && checked == 0 {
		err = errors.New("it has no object that this test knows: add its kind")
	}
	return err
}

// checkK9sPlugins checks the fields of k9s's plugins.yaml.
func checkK9sPlugins(b []byte) error {
	var c struct {
		Plugins map[string]struct {
			ShortCut, Description string
			Scopes                []string
			Command               string
			Background            bool
			Args                  []string
		}
	}
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return err
	}
	for name, p := range c.Plugins {
		if p.ShortCut == "" || p.Description == "" || len(p.Scopes) == 0 || !strings.Contains(p.Command+" "+strings.Join(p.Args, " "), "gpupilot") && p.Command != "gpupilot" {
			return fmt.Errorf("the plugin %s lacks a key, a description, a scope or a command", name)
		}
	}
	return nil
}

// checkScrapeConfigs checks that the first scrape config keeps agents' pods at
// their port and names their node, and drops others.
func checkScrapeConfigs(b []byte) error {
	var c struct {
		ScrapeConfigs []struct {
			JobName string            `yaml:"job_name"`
			Relabel []*relabel.Config `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	if err := yamlv3.Unmarshal(b, &c); err != nil {
		return err
	}
	rules := c.ScrapeConfigs[0].Relabel
	for _, r := range rules {
		if err := r.Validate(model.UTF8Validation); err != nil {
			return err
		}
	}
	node := func(app, port string) string {
		found := labels.NewBuilder(labels.FromStrings("__meta_kubernetes_pod_label_app_kubernetes_io_name", app,
			"__meta_kubernetes_pod_container_port_name", port, "__meta_kubernetes_pod_node_name", "n1"))
		if !relabel.ProcessBuilder(found, rules...) {
			return ""
		}
		return found.Get("node")
	}
	if got := node("gpupilot-agent", "metrics"); got != "n1" {
		return fmt.Errorf("an agent's node is %q, want n1", got)
	}
	if node("gpupilot-agent", "other") != "" || node("other", "metrics") != "" {
		return errors.New("it scrapes more than the agents' metrics")
	}
	return nil
}

// checkObjects checks the objects of a YAML stream whose kind is known, and
// returns how many these are.
func checkObjects(b []byte) (checked int, err error) {
	dec := yamlv3.NewDecoder(bytes.NewReader(b))
	for {
		var value any
		if err := dec.Decode(&value); errors.Is(err, io.EOF) {
			return checked, nil
		} else if err != nil {
			return checked, err
		}
		doc, ok := value.(map[string]any)
		if !ok {
			continue // a list, such as some scrape configs
		}
		object, err := yamlv3.Marshal(doc)
		if err != nil {
			return checked, err
		}
		switch doc["kind"] {
		case "GPUAutoscaler":
			err = checkAutoscaler(object)
		case "GPUExporter":
			err = checkExporter(object)
		case "HorizontalPodAutoscaler":
			err = checkHPA(object)
		case "Job":
			var j batchv1.Job
			if err = yaml.UnmarshalStrict(object, &j); err == nil {
				err = checkLoad(j.Spec.Template.Spec)
			}
		case "Pod":
			var p corev1.Pod
			if err = yaml.UnmarshalStrict(object, &p); err == nil {
				err = checkLoad(p.Spec)
			}
		default:
			continue
		}
		if err != nil {
			return checked, err
		}
		checked++
	}
}

func checkExporter(object []byte) error {
	var e v1alpha1.GPUExporter
	if err := yaml.UnmarshalStrict(object, &e); err != nil {
		return err
	}
	if got, want := e.APIVersion, v1alpha1.GroupVersion.String(); got != want {
		return fmt.Errorf("apiVersion: %q, want %q", got, want)
	}
	_, err := gpuexporter.Render(&e, gpuexporter.Inputs{Installed: func(string) bool { return true }})
	return err
}

func checkAutoscaler(object []byte) error {
	var a v1alpha1.GPUAutoscaler
	if err := yaml.UnmarshalStrict(object, &a); err != nil {
		return err
	}
	if got, want := a.APIVersion, v1alpha1.GroupVersion.String(); got != want {
		return fmt.Errorf("apiVersion: %q, want %q", got, want)
	}
	if ref := a.Spec.ScaleTargetRef; a.Name == "" || ref.Kind == "" || ref.Name == "" {
		return errors.New("it lacks metadata.name or spec.scaleTargetRef")
	}
	_, err := policy.Compile(&a)
	return err
}

// checkLoad checks that a pod of gpupilot load gpu has one GPU, our image at the chart's tag, and arguments that the
// command takes.
func checkLoad(p corev1.PodSpec) error {
	c := p.Containers[0]
	if gpus := c.Resources.Limits["nvidia.com/gpu"]; gpus.Value() != 1 {
		return fmt.Errorf("it has %v GPUs, want 1", gpus.Value())
	}
	chart, err := os.ReadFile(filepath.Join(root, "deploy", "chart", "Chart.yaml"))
	if err != nil {
		return err
	}
	tag, ok := strings.CutPrefix(c.Image, "ghcr.io/gpupilot/gpupilot:")
	if !ok || !bytes.Contains(chart, []byte("\nappVersion: "+tag+" ")) {
		return fmt.Errorf("image %s: want the CLI's at the chart's appVersion", c.Image)
	}
	rest, ok := strings.CutPrefix(strings.Join(c.Args, "\n"), "load\ngpu\n")
	if !ok {
		return fmt.Errorf("arguments %q: want load gpu", c.Args)
	}
	var args load.Args
	set := pflag.NewFlagSet("load gpu", pflag.ContinueOnError)
	args.Define(set, nil)
	args.DefineForeign(set)
	if err := set.Parse(load.SplitArguments(strings.Split(rest, "\n"))); err != nil {
		return err
	}
	_, _, err = args.Sequences()
	return err
}

// checkHPA checks that an HPA has the API's fields, and that its Pods metrics
// are names that the controller knows.
func checkHPA(object []byte) error {
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := yaml.UnmarshalStrict(object, &h); err != nil {
		return err
	}
	for _, m := range h.Spec.Metrics {
		if m.Pods == nil {
			continue
		}
		if _, ok := names.Metric(m.Pods.Metric.Name); !ok {
			return fmt.Errorf("no profile has the metric %s", m.Pods.Metric.Name)
		}
	}
	return nil
}

// specField starts a YAML block that shows fields of a GPUAutoscaler's spec.
var specField = regexp.MustCompile(`(?m)^(signals|minReplicas|maxReplicas|behavior|startup|missingData|actuation|budget):`)

// The YAML of the pages is valid, and what is said to be an example's is it.
func TestYAMLBlocks(t *testing.T) {
	checked := 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			where := fmt.Sprintf("%s:%d", p.path, b.line)
			if file, ok := strings.CutPrefix(b.info, "examples/"); ok {
				text, err := os.ReadFile(filepath.Join(root, "examples", file))
				if err != nil || !strings.Contains(string(text), b.text) {
					t.Errorf("%s is not a part of examples/%s", where, file)
				}
			}
			if b.lang != "yaml" {
				continue
			}
			text := b.text
			if !strings.Contains(text, "kind:") && specField.MatchString(text) {
				text = complete(text)
			}
			n, err := checkObjects([]byte(text))
			if err != nil {
				t.Errorf("%s: %v", where, err)
			}
			checked += n
		}
	}
	if checked < 5 {
		t.Errorf("checked %d objects: are the pages still read?", checked)
	}
}

// complete makes a GPUAutoscaler of some fields of its spec.
func complete(fields string) string {
	var b strings.Builder
	b.WriteString("apiVersion: gpupilot.dev/v1alpha1\nkind: GPUAutoscaler\nmetadata: {name: x}\nspec:\n")
	b.WriteString("  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}\n")
	if !strings.Contains(fields, "maxReplicas:") {
		b.WriteString("  maxReplicas: 8\n")
	}
	if !strings.Contains(fields, "signals:") {
		b.WriteString("  signals: [{preset: vllm}]\n")
	}
	for line := range strings.Lines(fields) {
		b.WriteString("  " + line)
	}
	return b.String()
}

func TestWrongObjects(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, err := checkObjects([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f(complete("signals: [{preset: nosuch}]\n"), "preset")
	f(complete("signals: [{gpu: {metric: SMActive}, target: {value: \"60\"}}]\n"), "60")
	f(complete("actuation: Advice\n"), "Advice")
	f(complete("maxReplica: 3\n"), "maxReplica")
	f("kind: HorizontalPodAutoscaler\nspec: {metric: []}\n", "metric")
	f("kind: HorizontalPodAutoscaler\nspec: {metrics: [{type: Pods, pods: {metric: {name: DCGM_NO}}}]}\n", "DCGM_NO")
}
