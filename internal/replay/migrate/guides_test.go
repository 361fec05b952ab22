// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

var update = flag.Bool("update", false, "write the results of testdata/guides.txtar")

// What guides publish works on the series of a dcgm-exporter, or says why not.
func TestPublishedGuides(t *testing.T) {
	const file = "testdata/guides.txtar"
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []txtar.File
	var guide guideFiles
	name := ""
	finish := func() {
		if name == "" {
			return
		}
		got := newCluster(t).try(&guide)
		if d := cmp.Diff(guide["result"], got); d != "" && !*update {
			t.Errorf("%s: (-want +got)\n%s", name, d)
		}
		out = append(out, txtar.File{Name: name + "/result", Data: []byte(got + "\n")})
	}
	for _, f := range archive.Files {
		of, part, _ := strings.Cut(f.Name, "/")
		if of != name {
			finish()
			name, guide = of, guideFiles{}
		}
		if guide[part] = strings.TrimSuffix(string(f.Data), "\n"); part != "result" {
			out = append(out, f)
		}
		guide[part] = strings.TrimSpace(guide[part])
	}
	finish()
	if *update {
		archive.Files = out
		if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// guideFiles are the files of one guide by their names.
type guideFiles map[string]string

// cluster has the windows of a controller that scrapes one dcgm-exporter.
type cluster struct {
	*testing.T
	windows *series.Store
	engine  *engine.Engine
	now     time.Time
}

const exporterPage = `DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA L4",Hostname="n1",container="chat",namespace="ml",pod="chat-0"} 30
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-1",device="nvidia1",modelName="NVIDIA L4",Hostname="n1",container="chat",namespace="ml",pod="chat-1"} 50
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-2",device="nvidia2",modelName="NVIDIA L4",Hostname="n1",container="chat",namespace="other",pod="chat-0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-3",device="nvidia3",modelName="NVIDIA L4",Hostname="n1",container="",namespace="",pod=""} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA L4",Hostname="n1",container="chat",namespace="ml",pod="chat-0"} 1000
DCGM_FI_DEV_FB_USED{gpu="2",UUID="GPU-2",device="nvidia2",modelName="NVIDIA L4",Hostname="n1",container="chat",namespace="other",pod="chat-0"} 3000
`

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, windows: series.New(series.Config{}), now: time.Now()}
	pods := podMap{}
	pods.add("ml", "chat-0")
	pods.add("ml", "chat-1")
	pods.add("other", "chat-0")
	store := windows.New(windows.Config{Keep: windows.KeepAll}, windows.Deps{Windows: c.windows, Pods: pods})
	c.engine = engine.New(engine.Config{Lookback: windows.DefaultLookback}, store)
	of := series.TargetLabels{Node: "n1", Instance: "10.0.0.1:9400", Job: "dcgm-exporter"}
	target := c.windows.Target("n1", of)
	reader := page.NewExporter(page.Config{Target: target, Labels: of, Names: page.NewNames(true, nil, nil)})
	for i := range 3 {
		if err := reader.Read([]byte(exporterPage)); err != nil {
			t.Fatal(err)
		}
		at := c.now.Add(time.Duration(i-2) * time.Second)
		target.Expose(at, reader.Exposed())
		var b series.Batch
		reader.Fill(&b, time.Second)
		if _, err := target.Append(at, &b); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// podMap are the pods of the API server.
type podMap map[string]*corev1.Pod

func (m podMap) Get(namespace, name string) (*corev1.Pod, bool) {
	p, ok := m[namespace+"/"+name]
	return p, ok
}

func (m podMap) Select(string, kubelabels.Selector) (out []*corev1.Pod) {
	for _, p := range m {
		out = append(out, p)
	}
	return out
}

func (m podMap) add(namespace, name string) {
	limits := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	m[namespace+"/"+name] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", Labels: map[string]string{"app": "chat-of-" + namespace}, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if namespace == "ml" {
		m[namespace+"/"+name].Labels["app"] = "chat"
	}
}

// value evaluates a query for the namespace ml.
func (c *cluster) value(promql string) string {
	s, err := scope.New(scope.Config{})
	if err != nil {
		c.Fatal(err)
	}
	limited, _, err := s.Limit("ml", promql)
	if err != nil {
		return err.Error()
	}
	x, err := c.engine.Number(c.Context(), engine.Query{PromQL: limited, Namespaces: []string{"ml"}, Reserved: true}, c.now)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%g", x.Value)
}

// try does what a guide says, and returns the results.
func (c *cluster) try(guide *guideFiles) string {
	var b strings.Builder
	if text := (*guide)["rules.yaml"]; text != "" {
		c.record(&b, text)
	}
	var o Options
	if text := (*guide)["adapter.yaml"]; text != "" {
		o.Rules = c.adapt(&b, text)
	}
	for part, kind := range map[string]string{"hpa.yaml": KindHPA, "scaledobject.yaml": KindScaledObject} {
		if text := (*guide)[part]; text != "" {
			c.migrate(&b, Document{kind, []byte(text)}, o)
		}
	}
	for _, q := range strings.FieldsFunc((*guide)["queries"], func(r rune) bool { return r == '\n' }) {
		fmt.Fprintf(&b, "%s = %s\n", q, c.value(q))
	}
	return strings.TrimSpace(b.String())
}

// record evaluates recording rules, and adds their results to the windows.
func (c *cluster) record(b io.Writer, text string) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Record, Expr string
				Labels       map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		c.Fatal(err)
	}
	for _, r := range file.Groups[0].Rules {
		v, err := c.engine.Number(c.Context(), engine.Query{PromQL: r.Expr, Namespaces: []string{"ml"}, Reserved: true}, c.now)
		if err != nil {
			fmt.Fprintf(b, "record %s: %v\n", r.Record, err)
			continue
		}
		fmt.Fprintf(b, "record %s = %g\n", r.Record, v.Value)
		set := labels.NewBuilder(labels.FromMap(r.Labels)).Set("__name__", r.Record).Labels()
		target := c.windows.Target("rules", series.TargetLabels{Namespace: "ml", Pod: "rules"})
		ref, _ := target.Ref(series.Key{Line: string(set.Bytes(nil))})
		target.Expose(c.now, []series.Exposed{{Labels: set, Ref: ref, Scale: 1}})
		var batch series.Batch
		batch.Add(ref, v.Value)
		if _, err := target.Append(c.now, &batch); err != nil {
			c.Fatal(err)
		}
	}
}

// adapt reports what the rules become, and the values that they have as they are.
func (c *cluster) adapt(b io.Writer, text string) *adapter.RuleSet {
	report, err := Adapter([]byte(text), Options{})
	if err != nil {
		c.Fatal(err)
	}
	for _, r := range report.Rules {
		fmt.Fprintf(b, "%s %s: %s\n", r.Rule, r.Metric, r.Becomes)
	}
	backend := (&adapter.Windows{Engine: c.engine, Timeout: time.Minute}).Backend()
	s := adapter.New(adapter.ServerConfig{}, adapter.Deps{Backend: backend, Log: slog.New(slog.DiscardHandler)})
	if err := s.Load([]byte(text)); err != nil {
		c.Fatal(err)
	}
	s.Discover(c.Context())
	for _, m := range s.Metrics() {
		if strings.HasPrefix(m.Name, "scrape_") || strings.HasPrefix(m.Name, "kube_") || m.Name == "up" {
			continue
		}
		fmt.Fprintf(b, "  %s%s\n", m.Metric, c.ask(s, m.Metric))
	}
	rules, err := adapter.Load([]byte(text), adapter.Builtin{})
	if err != nil {
		c.Fatal(err)
	}
	return rules
}

// ask returns the values of a metric in the namespace ml.
func (c *cluster) ask(s *adapter.Server, m adapter.Metric) string {
	names := map[schema.GroupResource][]string{
		{Resource: "pods"}:     {"chat-0", "chat-1"},
		{Resource: "services"}: {"chat"}, {Group: "apps", Resource: "deployments"}: {"chat"},
	}[m.Resource]
	if names == nil {
		return ""
	}
	values, err := s.Values(context.Background(), m.Name, &adapter.Objects{Resource: m.Resource, Namespace: "ml", Names: names, Selector: kubelabels.Everything()}, c.now)
	if err != nil {
		return ": " + err.Error()
	}
	out := ""
	for _, v := range values {
		out += fmt.Sprintf(" %s=%g", v.Name, v.Value)
	}
	return out
}

// migrate reports the signals of the equivalent, and the values of its queries.
func (c *cluster) migrate(b io.Writer, d Document, o Options) {
	r, err := Convert(d, o)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		fmt.Fprintln(b, err)
		return
	}
	for i, text := range signals(r) {
		if q := r.Object.Spec.Signals[i].Query; q != nil {
			text += "\n  now " + c.value(q.PromQL)
		}
		fmt.Fprintln(b, text)
	}
	for _, n := range r.Notes {
		if n.Lost || strings.HasPrefix(n.Field, "spec.metrics") || strings.HasSuffix(n.Field, "]") {
			fmt.Fprintf(b, "%s: %s\n", n.Field, n.Text)
		}
	}
}
