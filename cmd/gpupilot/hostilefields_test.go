// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/terminal/top"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var hostileValues = flag.Int("hostile", 1, "how many hostile values of each field to try, each with one command; 0: all")

// cluster is an API server and a controller that has one object of each kind, and nothing else.
type cluster struct {
	*httptest.Server
	config string
	bodies atomic.Pointer[map[string][]byte] // by the plural of the kind; "view": the controller's
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	c.config = writeFile(t, "config", fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c, namespace: llm}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", c.URL))
	return c
}

// ServeHTTP implements http.Handler.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := parts[len(parts)-1]
	for plural, body := range *c.bodies.Load() {
		switch {
		case plural == last:
			fmt.Fprintf(w, `{"apiVersion":"gpupilot.dev/v1alpha1","kind":"List","items":[%s]}`, body)
		case len(parts) > 1 && plural == parts[len(parts)-2], plural == "view" && strings.HasSuffix(r.URL.Path, "/api/v1/view"):
			_, _ = w.Write(body)
		default:
			continue
		}
		return
	}
	if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api") {
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"List","items":[]}`)
		return
	}
	w.WriteHeader(http.StatusNotFound)
	fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
}

// run returns what a command writes, and its error as main writes it.
func (c *cluster) run(t *testing.T, args []string) (out, problem string) {
	var text, errs strings.Builder
	if err := run(t.Context(), append(args[:len(args):len(args)], "--kubeconfig", c.config), &text); err != nil {
		_, _ = fmt.Fprint(termtext.NewWriter(&errs), err)
	}
	return text.String(), errs.String()
}

// shape is a kind of objects, and the commands that read it.
type shape struct {
	plural   string
	commands [][]string
	harmless []byte // the JSON of one
	mutants  []mutant
}

// mutant is an object with one hostile value.
type mutant struct {
	field string
	make  func() (what string, body []byte) // body is nil if it has no JSON
}

func shapeOf[T any](t *testing.T, r *rand.Rand, plural string, base *T, commands [][]string) shape {
	harmless, err := json.Marshal(base)
	if err != nil {
		t.Fatalf("%s: %v", plural, err)
	}
	s := shape{plural: plural, commands: commands, harmless: harmless}
	for _, m := range weighttest.Sample(weighttest.Mutants[T](), *hostileValues, r) {
		if strings.HasPrefix(m.Field, "ObjectMeta") || strings.HasPrefix(m.Field, "TypeMeta") { // the API server's
			continue
		}
		s.mutants = append(s.mutants, mutant{m.Field, func() (string, []byte) {
			var x T
			if err := json.Unmarshal(harmless, &x); err != nil {
				t.Fatal(err)
			}
			what := m.Set(&x)
			body, _ := json.Marshal(&x) // there is none of the year -1
			return what, body
		}})
	}
	return s
}

const autoscalerSpec = `{"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "minReplicas": 1, "maxReplicas": 8,
	"signals": [{"name": "queue", "pods": {"metric": "queue", "port": 8000, "path": "/metrics"}, "target": {"value": "8"}, "fallback": "Hold"},
		{"name": "load", "query": {"promql": "sum(load)"}, "target": {"type": "Value", "value": "10"}}],
	"formula": "queue.replicas + 0.5 * load.replicas", "missingData": "Hold", "actuation": "Scale", "budget": {"maxGPUs": 8}, "drain": {"maxSeconds": 5}, "idle": {"after": "1h", "to": 0},
	"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]}},
	"schedules": [{"name": "day", "timezone": "Europe/Berlin", "days": ["Mon"], "start": "08:00", "end": "18:00", "minReplicas": 1, "maxReplicas": 4, "leadTime": "Auto"},
		{"name": "night", "cron": "0 22 * * *", "duration": "8h", "minReplicas": 1}],
	"override": {"replicas": 2, "until": "2099-01-01T00:00:00Z", "reason": "incident"}, "pair": {"with": "other", "ratio": {"min": "0.5", "max": "2"}}}`

func parse[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// shapes are all kinds that commands read.
func shapes(t *testing.T, r *rand.Rand, url string) []shape {
	meta := metav1.ObjectMeta{Namespace: "llm", Name: "chat"}
	a := &v1alpha1.GPUAutoscaler{TypeMeta: metav1.TypeMeta{APIVersion: "gpupilot.dev/v1alpha1", Kind: "GPUAutoscaler"}, ObjectMeta: meta}
	a.Spec = parse[v1alpha1.GPUAutoscalerSpec](t, autoscalerSpec)
	weighttest.Fill(&a.Status)
	a.Status.Memory.State.Raw = []byte(`{"since":"2025-12-31T00:00:00Z","replicas":5,"serving":5,"wants":[{"at":"2026-01-01T00:00:10Z","low":5,"high":5}]}`)
	e := &v1alpha1.GPUExporter{TypeMeta: metav1.TypeMeta{APIVersion: "gpupilot.dev/v1alpha1", Kind: "GPUExporter"}, ObjectMeta: metav1.ObjectMeta{Name: "chat"}}
	weighttest.Fill(&e.Status)
	v := &view.View{}
	weighttest.Fill(v)
	v.Omitted, v.Namespaces = view.Omitted{}, nil
	gets := [][]string{{"doctor", "--controller", url}, {"doctor", "--controller", url, "-o", "json"}}
	for _, name := range top.Names {
		for _, format := range top.Formats {
			gets = append(gets, []string{"get", string(name), "--controller", url, "-o", format, "--gpu-price", "2"})
		}
	}
	return []shape{
		shapeOf(t, r, "gpuautoscalers", a, [][]string{
			{"explain"},
			{"explain", "chat"},
			{"hold", "chat", "--freeze", "down", "--for", "1h", "--reason", "x"},
			{"hold", "chat", "--min-replicas", "2", "--for", "1h", "--reason", "x"},
			{"resume", "chat"},
			{"release", "chat", "--dry-run"},
			{"migrate", "hpa", "chat"},
			{"doctor"},
			{"doctor", "-o", "json"},
		}),
		shapeOf(t, r, "gpuexporters", e, [][]string{{"doctor"}, {"doctor", "-o", "json"}}),
		shapeOf(t, r, "view", v, gets),
	}
}

// Each field of what commands read has each hostile value in turn. No command writes a control of a terminal, of a
// spreadsheet, or what is no JSON, and none costs far more than with a harmless object, beyond reading what there is.
func TestHostileFields(t *testing.T) {
	c := newCluster(t)
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range shapes(t, r, c.URL) {
		c.bodies.Store(&map[string][]byte{s.plural: s.harmless})
		var harmless []weighttest.Cost
		var sizes []int
		for _, args := range s.commands {
			out, _ := c.run(t, args)
			sizes = append(sizes, len(out))
			harmless = append(harmless, weighttest.Measure(func() { c.run(t, args) }))
		}
		runs, fields := 0, map[string]bool{}
		check := func(what string, body []byte, i int) {
			c.bodies.Store(&map[string][]byte{s.plural: body})
			args, out, problem := s.commands[i], "", ""
			name := fmt.Sprintf("%s %s, %v", s.plural, what, args)
			weighttest.Compare(t, name, harmless[i], len(body), func() { out, problem = c.run(t, args) })
			if most := 8*sizes[i] + 6*len(body) + 64<<10; len(out) > most {
				t.Errorf("%s: writes %d bytes for an object of %d", name, len(out), len(body))
			}
			checkClean(t, name, args, out, problem)
			runs++
		}
		for _, m := range s.mutants {
			fields[m.field] = true
			if what, body := m.make(); body != nil {
				check(what, body, r.IntN(len(s.commands)))
			}
		}
		t.Logf("%s: %d fields, %d values, %d commands, %d runs", s.plural, len(fields), len(s.mutants), len(s.commands), runs)
		if len(fields) < 20 {
			t.Errorf("%s: only %d fields", s.plural, len(fields))
		}
	}
}

// checkClean fails for what a terminal, a spreadsheet or a program could take for something else than text.
func checkClean(t *testing.T, name string, args []string, out, problem string) {
	t.Helper()
	clean := func(out string) {
		if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && r != '\t' && (r < ' ' || termtext.IsUnsafe(r)) }); i >= 0 {
			t.Errorf("%s: a control at %d: %q", name, i, out[max(0, i-60):min(len(out), i+60)])
		}
	}
	clean(out)
	clean(problem)
	for i, a := range args {
		if a != "-o" || out == "" {
			continue
		}
		var into any
		switch args[i+1] {
		case "json":
			if err := json.Unmarshal([]byte(out), &into); err != nil {
				t.Errorf("%s: no JSON: %v: %.300q", name, err, out)
			}
		case "yaml":
			if err := yaml.Unmarshal([]byte(out), &into); err != nil {
				t.Errorf("%s: no YAML: %v: %.300q", name, err, out)
			}
		case "csv":
			rows, err := csv.NewReader(bytes.NewReader([]byte(out))).ReadAll()
			if err != nil {
				t.Errorf("%s: no CSV: %v", name, err)
			}
			for _, row := range rows {
				for _, cell := range row {
					if _, err := strconv.ParseFloat(cell, 64); err != nil && strings.IndexAny(cell, "=+-@\t\r＝＋－＠") == 0 {
						t.Errorf("%s: a spreadsheet evaluates %.80q", name, cell)
					}
				}
			}
		}
	}
}
