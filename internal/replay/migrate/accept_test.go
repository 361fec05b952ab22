// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"golang.org/x/tools/txtar"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/resource"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// apiServer validates GPUAutoscalers as the API server does, by the CRD.
type apiServer struct {
	schema *structural.Structural
	shape  validation.SchemaValidator
	rules  *cel.Validator
}

func newAPIServer(t testing.TB) *apiServer {
	b, err := os.ReadFile("../../../deploy/crds/gpupilot.dev_gpuautoscalers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(b, &crd); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	out := &apiServer{}
	if out.schema, err = structural.NewStructural(&props); err != nil {
		t.Fatal(err)
	}
	if out.shape, _, err = validation.NewSchemaValidator(&props); err != nil {
		t.Fatal(err)
	}
	out.rules = cel.NewValidator(out.schema, true, celconfig.PerCallLimit)
	return out
}

// refuses returns why an object is refused; empty: it is accepted.
func (a *apiServer) refuses(t testing.TB, text string) string {
	var object map[string]any
	b, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return err.Error()
	}
	if err := json.Unmarshal(b, &object); err != nil {
		return err.Error()
	}
	toInts(object)
	defaulting.Default(object, a.schema)
	errs := validation.ValidateCustomResource(nil, object, a.shape)
	bad, _ := a.rules.Validate(t.Context(), nil, a.schema, object, nil, celconfig.RuntimeCELCostBudget)
	if errs = append(errs, bad...); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return ""
}

// toInts makes whole numbers int64, as the API server decodes them.
func toInts(x any) any {
	switch x := x.(type) {
	case map[string]any:
		for k, v := range x {
			x[k] = toInts(v)
		}
	case []any:
		for i, v := range x {
			x[i] = toInts(v)
		}
	case float64:
		if x == float64(int64(x)) {
			return int64(x)
		}
	}
	return x
}

// checkAccepted checks what a translation without an error promises: the API server and the controller accept what is
// printed, and the controller's tenants' limit and parser take each query.
func (a *apiServer) checkAccepted(t testing.TB, r *Result) {
	t.Helper()
	text, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policy.Parse("x", []byte(text)); err != nil {
		t.Errorf("the controller refuses it: %v\n%s", err, text)
	}
	if why := a.refuses(t, text); why != "" {
		t.Errorf("the API server refuses it: %s\n%s", why, text)
	}
	limit, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	namespace := r.Object.Namespace
	if namespace == "" {
		namespace = "default"
	}
	for _, s := range r.Object.Spec.Signals {
		if s.Query == nil {
			continue
		}
		limited, _, err := limit.Limit(namespace, s.Query.PromQL)
		if err != nil {
			t.Errorf("%s is refused in %s: %v", s.Query.PromQL, namespace, err)
			continue
		}
		expr, err := queryParser.ParseExpr(limited)
		if err != nil || expr.Type() != parser.ValueTypeVector && expr.Type() != parser.ValueTypeScalar {
			t.Errorf("%s is no number: %v", s.Query.PromQL, err)
		} else if !isOneNumber(expr) {
			t.Errorf("%s may be several series", s.Query.PromQL)
		}
	}
}

// checkNothingIsLost checks that each value of the source is in the object or in a note.
func checkNothingIsLost(t testing.TB, r *Result, source any) (lost []string) {
	t.Helper()
	object, err := json.Marshal(r.Object)
	if err != nil {
		t.Fatal(err)
	}
	var kept any
	if err := json.Unmarshal(object, &kept); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	leaves("", kept, func(_, v string) { fmt.Fprintln(&all, v) })
	for _, n := range r.Notes {
		fmt.Fprintln(&all, n.Field, n.Text)
	}
	leaves("", source, func(path, value string) {
		if value == "" || strings.HasPrefix(path, ".apiVersion") || strings.HasPrefix(path, ".kind") || strings.HasPrefix(path, ".status") || strings.HasSuffix(path, ".type") || path == ".metadata.creationTimestamp" || path == ".metadata.uid" || strings.HasSuffix(path, "].uid") {
			return
		}
		if !strings.Contains(all.String(), value) && !strings.Contains(all.String(), canonical(value)) {
			lost = append(lost, fmt.Sprintf("%s: %q", path, value))
		}
	})
	return lost
}

// canonical is a query or a quantity as it is printed; else the value.
func canonical(value string) string {
	if q, err := resource.ParseQuantity(value); err == nil {
		return q.String()
	}
	if expr, err := queryParser.ParseExpr(value); err == nil {
		return expr.String()
	}
	return strings.Join(strings.Fields(value), " ")
}

// leaves calls f with each value below x.
func leaves(path string, x any, f func(path, value string)) {
	switch x := x.(type) {
	case map[string]any:
		for k, v := range x {
			leaves(path+"."+k, v, f)
		}
	case []any:
		for i, v := range x {
			leaves(fmt.Sprintf("%s[%d]", path, i), v, f)
		}
	case string:
		f(path, x)
	case float64:
		f(path, strconv.FormatFloat(x, 'f', -1, 64))
	case bool:
		if x {
			f(path, "true")
		}
	case int, int64, int32:
		f(path, fmt.Sprint(x))
	}
}

// maker makes random objects by the schemas of the HorizontalPodAutoscaler, of KEDA's ScaledObject and of
// prometheus-adapter's file, with values that are right, odd or hostile.
type maker struct {
	*rand.Rand
	n int
}

func (m *maker) pick(from ...any) any { return from[m.IntN(len(from))] }

// mostly is the first of some values, and in one of 16 cases another one.
func (m *maker) mostly(from ...any) any {
	if m.chance(94) {
		return from[0]
	}
	return m.pick(from...)
}

func (m *maker) chance(percent int) bool { return m.IntN(100) < percent }

// number is a number that appears once.
func (m *maker) number() int { m.n++; return 10_000 + 7*m.n }

func (m *maker) text(prefix string) string { return fmt.Sprintf("%s%d", prefix, m.number()) }

// some keeps each field with a chance.
func (m *maker) some(fields map[string]any) map[string]any {
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if m.chance(35) {
			delete(fields, k)
		}
	}
	return fields
}

func (m *maker) quantity() any {
	return m.mostly(m.pick(fmt.Sprint(m.number()), fmt.Sprintf("%dm", m.number()), fmt.Sprintf("%dMi", m.number()), fmt.Sprintf("%dk", m.number())), "0", "-3")
}

func (m *maker) query() string {
	name := m.text("series_")
	if m.chance(50) {
		return m.pick("sum("+name+")", name, "max by (pod) ("+name+"{pod=~\"chat-.*\"})", "sum(rate("+name+"_sum[1m])) / sum(rate("+name+"_count[1m]))").(string)
	}
	return m.pick(
		"sum("+name+")", name, "sum by (pod) (rate("+name+"[1m]))", "sum(rate("+name+"_sum[1m])) / sum(rate("+name+"_count[1m]))",
		"histogram_quantile(0.95, sum by (le) (rate("+name+"_bucket[5m])))", "sum("+name+") or vector(0)", "sum("+name+"{namespace=\"ml\"})",
		"sum("+name+") default 0", "sum(rate("+name+"[1m])", "sum("+name+"{namespace=\"gateway-system\"})", "sum("+name+"{namespace=~\"ml|x\"})",
		"sum("+name+"{namespace=\"{{ .Release.Namespace }}\"})", "sum("+name+"{model=\"{{ .Values.model }}\"})", name+"[5m]", "\""+name+"\"", "scalar("+name+")", "-"+name, "info("+name+")",
		"sum("+name+") # a comment", "topk(1, "+name+")", "avg("+name+"{exported_namespace=\"ml\"})", "WITH (x = "+name+") sum(x)", "max_over_time("+name+"[5m] smoothed)", "sum("+name+") * 1e300",
		"absent("+name+")", "sum("+name+"{pod=~\"a{1000}\"})", "label_replace("+name+", \"a\", \"b\", \"c\", \".*\")", "count_values(\"v\", "+name+")", "sum("+name+")\n/\n2", "avg("+name+" / "+name+"_of)",
	).(string)
}

func (m *maker) labels() map[string]any {
	return m.some(map[string]any{"app": m.text("v"), "app.kubernetes.io/name": m.text("v"), "topic": m.text("v")})
}

func (m *maker) metadata(kind string) map[string]any {
	out := map[string]any{
		"name":        m.mostly("chat", "chat.v2", "{{ .Release.Name }}-hpa", "Chat", strings.Repeat("x", 300)),
		"namespace":   m.mostly("ml", "{{ .Release.Namespace }}", "ML"),
		"labels":      m.labels(),
		"annotations": m.some(map[string]any{"note": m.text("v"), "autoscaling.keda.sh/paused-replicas": fmt.Sprint(m.number()), "autoscaling.keda.sh/paused-scale-in": "true"}),
		"finalizers":  []any{m.text("finalizer-")}, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
	}
	if kind == KindHPA && m.chance(5) {
		out["ownerReferences"] = []any{map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": m.pick("ScaledObject", "InferenceService"), "name": m.text("owner-"), "uid": "u"}}
	}
	if m.chance(60) {
		delete(out, "labels")
		delete(out, "finalizers")
	}
	if m.chance(20) {
		delete(out, "namespace")
	}
	if kind == KindHPA || m.chance(60) {
		delete(out, "annotations")
	}
	return out
}

func (m *maker) target() map[string]any {
	if m.chance(60) {
		return map[string]any{"type": "AverageValue", "averageValue": m.quantity()}
	}
	return m.pick(map[string]any{"type": "Value", "value": m.quantity()},
		map[string]any{"type": "Utilization", "averageUtilization": m.number()}, map[string]any{}, map[string]any{"averageValue": m.quantity(), "value": m.quantity()}).(map[string]any)
}

func (m *maker) metric() map[string]any {
	out := map[string]any{"name": m.pick(m.text("m"), m.text("m"), "vllm:num_requests_waiting", "DCGM_FI_DEV_GPU_UTIL", "s0-prometheus", "sqs-queue-length", "inference-queue.depth", "vllm_num_requests_waiting",
		"kubernetes.io|container|accelerator|duty_cycle", "gpu_util_by_pod", "nöt", "a b", "{{ .Values.metric }}", "made_"+m.text("m"), "a\"} or vector(1) #")}
	if m.chance(30) {
		out["selector"] = map[string]any{"matchLabels": m.labels()}
	}
	return out
}

func (m *maker) behavior() map[string]any {
	rules := func() any {
		return m.some(map[string]any{
			"stabilizationWindowSeconds": m.pick(0, 1+m.number()%3600, m.number(), -1), "selectPolicy": m.pick("Max", "Min", "Disabled", "Dance"), "tolerance": m.pick("0.1", "0.05", "-1", 0),
			"policies": []any{map[string]any{"type": m.pick("Pods", "Percent", "Cores"), "value": m.pick(m.number(), 0), "periodSeconds": m.pick(60, 1+m.number()%1800, 0, 3600)}},
		})
	}
	return m.some(map[string]any{"scaleUp": rules(), "scaleDown": rules()})
}

func (m *maker) hpa() map[string]any {
	var metrics []any
	for range 1 + m.IntN(3) {
		kind := m.pick("Pods", "Object", "External", "Resource", "ContainerResource").(string)
		source := map[string]any{"metric": m.metric(), "target": m.target()}
		switch kind {
		case "Object":
			source["describedObject"] = map[string]any{"apiVersion": m.text("v"), "kind": m.pick("Namespace", "Service", "Deployment", "Gateway"), "name": m.pick("ml", "chat", m.text("object-"))}
			delete(source["describedObject"].(map[string]any), "apiVersion")
		case "Resource":
			source = map[string]any{"name": m.pick("cpu", "memory", "nvidia.com/gpu"), "target": m.target()}
		case "ContainerResource":
			source = map[string]any{"name": m.pick("cpu", "memory"), "container": m.text("container-"), "target": m.target()}
		}
		x := map[string]any{"type": kind, strings.ToLower(kind[:1]) + kind[1:]: source}
		if m.chance(5) {
			x["unknown"] = m.text("field-")
		}
		metrics = append(metrics, x)
	}
	spec := map[string]any{
		"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": m.pick("Deployment", "StatefulSet"), "name": m.mostly("chat", "Chat!")},
		"maxReplicas":    m.number(), "metrics": metrics,
	}
	if m.chance(50) {
		spec["minReplicas"] = m.mostly(m.IntN(3), -1, m.number())
	}
	if m.chance(50) {
		spec["behavior"] = m.behavior()
	}
	if m.chance(10) {
		spec["newInKubernetes"] = map[string]any{"x": m.text("field-")}
	}
	return map[string]any{"apiVersion": "autoscaling/v2", "kind": KindHPA, "metadata": m.metadata(KindHPA), "spec": spec, "status": map[string]any{"currentReplicas": 3}}
}

func (m *maker) formula(names []string) string {
	if len(names) == 0 || m.chance(10) {
		return m.text("unknown_")
	}
	var expr func(depth int) string
	expr = func(depth int) string {
		if depth == 0 {
			return m.pick(names[m.IntN(len(names))], names[m.IntN(len(names))], fmt.Sprint(m.IntN(9)), "0.5").(string)
		}
		a, b, c := expr(depth-1), expr(depth-1), expr(depth-1)
		return m.pick(a+" + "+b, a+" / "+b, "("+a+" - "+b+")", "max("+a+", "+b+")", "max(["+a+","+b+","+c+"])", "min("+a+","+b+","+c+","+a+")", a+" > "+b+" ? "+c+" : 1", a+" > 2 and "+b+" < 3 ? 1 : 0",
			"sum(["+a+", "+b+"])", "mean(["+a+", "+b+"])", "count(["+a+","+b+"],{#>1})", "any(["+a+"], # > 1) ? 2 : 1", "abs("+a+")", "ceil("+a+")", a+" ** 2", "-"+a, "float("+a+")", a+" ?? 1", a+" % 2", "avg(["+a+"])",
		).(string)
	}
	return expr(m.IntN(4))
}

func (m *maker) scaledObject() map[string]any {
	var triggers []any
	var names []string
	for i := range 1 + m.IntN(4) {
		kind := m.pick("prometheus", "prometheus", "prometheus", "cron", "cpu", "memory", "external", "kafka", "metrics-api").(string)
		x := map[string]any{"type": kind}
		switch kind {
		case "prometheus":
			x["metadata"] = m.some(map[string]any{
				"activationThreshold": m.pick(fmt.Sprint(m.number()), "x", "-1"), "ignoreNullValues": m.pick("true", "false"), "serverAddress": "http://" + m.text("p") + ":9090",
				"authModes": "bearer", "timeout": fmt.Sprint(m.number()), "namespace": m.text("n"), "novel": m.text("v"),
			})
			x["metadata"].(map[string]any)["query"] = m.query()
			x["metadata"].(map[string]any)["threshold"] = m.mostly(fmt.Sprint(m.number()), "0", "x")
		case "cron":
			x["metadata"] = map[string]any{
				"timezone": m.pick("UTC", "Europe/Berlin", "Mars/Base", ""), "start": m.pick("0 8 * * 1-5", "0 20 * * 1-5", "0 0 * * 6", "*/5 * * * *", "@daily", "61 0 * * *"), "end": m.pick("0 18 * * 1-5", "0 8 * * 2-6", "0 0 * * 1", "0 6 1 * *"),
				"desiredReplicas": m.pick("0", "3", fmt.Sprint(m.number()), "many"),
			}
		case "cpu", "memory":
			x["metadata"] = map[string]any{"value": m.pick("50", fmt.Sprint(m.number())), "containerName": m.text("container-")}
			x["metricType"] = m.pick("Utilization", "AverageValue")
		default:
			x["metadata"] = map[string]any{"scalerAddress": m.text("host-"), "topic": m.text("topic-")}
		}
		if m.chance(70) {
			x["name"] = m.pick(fmt.Sprintf("t%d", i), fmt.Sprintf("t%d", i), "namespace", "Queue_Depth", "queue-depth", fmt.Sprintf("%dx", i), strings.Repeat("n", 80))
			names = append(names, x["name"].(string))
		}
		if kind == "prometheus" && m.chance(30) {
			x["metricType"] = m.pick("Value", "AverageValue", "Utilization")
		}
		if m.chance(20) {
			x["authenticationRef"] = map[string]any{"name": m.text("auth-"), "kind": "ClusterTriggerAuthentication"}
		}
		if m.chance(20) {
			x["useCachedMetrics"] = true
		}
		triggers = append(triggers, x)
	}
	spec := m.some(map[string]any{
		"pollingInterval": m.number(), "cooldownPeriod": m.pick(m.number(), 0, 100_000, -5), "initialCooldownPeriod": m.number(), "minReplicaCount": m.pick(0, 1, 3), "maxReplicaCount": m.mostly(m.number(), 3, 1, 0),
		"idleReplicaCount": m.pick(0, m.number()),
		"fallback":         map[string]any{"failureThreshold": m.number(), "replicas": m.pick(m.number(), -1), "behavior": m.pick("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower", "")},
		"advanced": m.some(map[string]any{
			"restoreToOriginalReplicaCount": true, "horizontalPodAutoscalerConfig": map[string]any{"name": m.text("hpa-"), "behavior": m.behavior()},
			"scalingModifiers": m.some(map[string]any{"formula": m.formula(names), "target": m.pick("5", "2.5", "x", "-1", "NaN"), "activationTarget": fmt.Sprint(m.number()), "metricType": m.pick("AverageValue", "Value")}),
		}),
		"novel": m.text("field-"),
	})
	spec["scaleTargetRef"], spec["triggers"] = m.some(map[string]any{"kind": "StatefulSet", "apiVersion": "apps/v1", "envSourceContainerName": m.text("container-")}), triggers
	spec["scaleTargetRef"].(map[string]any)["name"] = "chat"
	return map[string]any{"apiVersion": "keda.sh/v1alpha1", "kind": KindScaledObject, "metadata": m.metadata(KindScaledObject), "spec": spec}
}

const someRules = `
rules:
- seriesQuery: '{__name__=~"^vllm:num_requests_waiting$"}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {as: vllm_num_requests_waiting}
  metricsQuery: sum by (namespace) (vllm:num_requests_waiting)
- {seriesQuery: gpu_util_by_pod, resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}
- {seriesQuery: '{__name__=~"^made_.*"}', resources: {template: "<<.Resource>>"}, metricsQuery: "sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>)"}
externalRules:
- {seriesQuery: '{__name__=~"^made_.*"}', resources: {namespaced: false}, metricsQuery: "max(<<.Series>>{<<.LabelMatchers>>,namespace=\"other\"})"}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
spec: {groups: [{name: a, rules: [{record: gpu_util_by_pod, expr: "avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL)"}]}]}
`

// published are the objects of guides and of this package.
func published(t *testing.T) (out []map[string]any) {
	archive, err := txtar.ParseFile("testdata/guides.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var texts [][]byte
	for _, f := range archive.Files {
		texts = append(texts, f.Data)
	}
	for _, file := range []string{"testdata/hpa.yaml", "testdata/hpa-old.yaml", "testdata/scaledobject.yaml"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b)
	}
	for _, b := range texts {
		docs, err := Split("x", b)
		if err != nil {
			continue // a result, and no object
		}
		for _, d := range docs {
			var x map[string]any
			if (d.Kind == KindHPA || d.Kind == KindScaledObject) && yaml.Unmarshal(d.Text, &x) == nil {
				out = append(out, x)
			}
		}
	}
	return out
}

// mutate changes one value below x, at random.
func (m *maker) mutate(x any) any {
	switch x := x.(type) {
	case map[string]any:
		if len(x) == 0 {
			return x
		}
		keys := slices.Sorted(maps.Keys(x))
		k := keys[m.IntN(len(keys))]
		if m.chance(10) {
			delete(x, k)
			return x
		}
		x[k] = m.mutate(x[k])
		return x
	case []any:
		if len(x) == 0 {
			return x
		}
		i := m.IntN(len(x))
		if m.chance(10) {
			return append(x, x[i])
		}
		x[i] = m.mutate(x[i])
		return x
	case string:
		return m.pick(x, m.text("x"), x+"}", "{{ "+x+" }}", "", m.query(), strings.ToUpper(x))
	case float64:
		return m.pick(x, -x, 0, m.number())
	}
	return x
}

// Exit code 0 means: what is printed is accepted as it is, and nothing of the source was dropped in silence.
func TestWhatIsPrintedIsAccepted(t *testing.T) {
	server := newAPIServer(t)
	withRules, err := ReadOptions("rules.yaml", []byte(someRules))
	if err != nil {
		t.Fatal(err)
	}
	m := &maker{Rand: rand.New(rand.NewPCG(3, 5))}
	examples, counts := published(t), map[string]int{}
	for i := range 1500 {
		var object map[string]any
		kind := "made"
		switch i % 3 {
		case 0:
			object = m.hpa()
		case 1:
			object = m.scaledObject()
		default:
			kind = "mutated"
			b, err := json.Marshal(examples[m.IntN(len(examples))])
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &object); err != nil {
				t.Fatal(err)
			}
			for range m.IntN(4) {
				m.mutate(object)
			}
		}
		b, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{}
		if m.chance(40) {
			o = withRules
		}
		of, _ := object["kind"].(string)
		r, err := Convert(Document{of, b}, o)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			if counts[kind+" refused"]++; err.Error() == "" || strings.HasSuffix(err.Error(), ":\n  ") {
				t.Errorf("refused without a reason: %q\n%s", err, b)
			}
			continue
		}
		counts[kind+" printed"]++
		server.checkAccepted(t, r)
		if lost := checkNothingIsLost(t, r, object); kind == "made" && len(lost) > 0 {
			t.Errorf("in no field and in no note: %s", strings.Join(lost, ", "))
		}
		if t.Failed() {
			t.Fatalf("of\n%s", b)
		}
	}
	t.Log(counts)
	for _, what := range []string{"made printed", "made refused", "mutated printed", "mutated refused"} {
		if counts[what] < 50 {
			t.Errorf("%s: %d of 1500, which shows little", what, counts[what])
		}
	}
}
