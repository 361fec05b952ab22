// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
)

var deploymentsResource = schema.GroupResource{Group: "apps", Resource: "deployments"}

// objectList is the objects of a test by resource and namespace, all with the label
// app=NAME.
type objectList map[schema.GroupResource]map[string][]string

func (l objectList) Kind(r schema.GroupResource) (schema.GroupVersionKind, bool, error) {
	if l[r] == nil {
		return schema.GroupVersionKind{}, false, notFound("%s have no metrics: the cluster does not serve this resource", r)
	}
	kind := strings.ToUpper(r.Resource[:1]) + strings.TrimSuffix(r.Resource[1:], "s")
	_, namespaced := l[r]["ml"]
	return schema.GroupVersionKind{Group: r.Group, Version: "v1", Kind: kind}, namespaced, nil
}

func (l objectList) Has(_ context.Context, r schema.GroupResource, namespace, name string) (bool, error) {
	return slices.Contains(l[r][namespace], name), nil
}

func (l objectList) Names(_ context.Context, r schema.GroupResource, namespace string, selector labels.Selector) (names []string, err error) {
	for _, name := range l[r][namespace] {
		if selector.Matches(labels.Set{"app": name}) {
			names = append(names, name)
		}
	}
	return names, nil
}

// ruleSource serves one metric of one resource; it answers with all of its values,
// whatever was asked.
type ruleSource struct {
	info   source.Metric
	values []source.Value
	err    error
	asked  []source.Query
}

func (s *ruleSource) Metrics() []source.Metric {
	return []source.Metric{s.info}
}

func (s *ruleSource) Values(_ context.Context, q source.Query) ([]source.Value, error) {
	s.asked = append(s.asked, q)
	if q.Metric != s.info.Metric || q.Resource != s.info.GroupResource {
		return nil, source.ErrUnknownMetric
	}
	return s.values, s.err
}

func ruleOf(r schema.GroupResource, metric string, values ...source.Value) *ruleSource {
	return &ruleSource{info: source.Metric{GroupResource: r, Namespaced: r != nodesResource, Metric: metric}, values: values}
}

func TestSourcesAreAskedInOrder(t *testing.T) {
	at := now.Add(-3 * time.Second)
	first := ruleOf(deploymentsResource, "cuda_test_gpu_avg",
		source.Value{Name: "web", Value: 62.5, At: at, Window: 90500 * time.Millisecond},
		source.Value{Name: "foreign", Value: 1, At: at}, source.Value{Name: "web", Value: 99, At: at},
		source.Value{Name: "api", Value: math.NaN(), At: at})
	second := ruleOf(deploymentsResource, "cuda_test_gpu_avg", source.Value{Name: "web", Value: 7, At: at})
	third := ruleOf(podsResource, "rule_of_pods", source.Value{Name: "web-b", Value: 3, At: at}, source.Value{Name: "web-loading", Value: 9, At: at})
	deps := fleet(t)
	deps.Objects = objectList{deploymentsResource: {"ml": {"api", "web"}}}
	deps.Sources = []Source{first, second, third}
	p := NewProvider(maxAge, 0, deps)
	info := provider.CustomMetricInfo{GroupResource: deploymentsResource, Namespaced: true, Metric: "cuda_test_gpu_avg"}

	list, err := p.GetMetricBySelector(t.Context(), "ml", labels.Everything(), info, selectorOf(t, "quantile=0.9"))
	if err != nil || said(list.Items) != "web=62500m" {
		t.Fatalf("%v %v", list, err)
	}
	v := &list.Items[0]
	if v.DescribedObject.Kind != "Deployment" || v.DescribedObject.APIVersion != "apps/v1" || !v.Timestamp.Time.Equal(at) ||
		*v.WindowSeconds != 91 || v.Metric.Selector.MatchLabels["quantile"] != "0.9" {
		t.Errorf("%+v", v)
	}
	if diff := cmp.Diff([]string{"api", "web"}, first.asked[0].Names); diff != "" || first.asked[0].Namespace != "ml" {
		t.Error(diff)
	}
	if len(second.asked) != 0 {
		t.Error("the second source was asked for a metric of the first")
	}
	one, err := p.GetMetricByName(t.Context(), types.NamespacedName{Namespace: "ml", Name: "web"}, info, nil)
	if err != nil || one.Value.String() != "62500m" {
		t.Errorf("%v %v", one, err)
	}
	// Only serving pods, and only those of the selector.
	list, err = p.GetMetricBySelector(t.Context(), "ml", selectorOf(t, "app=web"), podsMetric("rule_of_pods"), labels.Everything())
	if err != nil || said(list.Items) != "web-b=3" {
		t.Errorf("pods: %v %v", list, err)
	}
	// A built-in metric is never a source's.
	for _, s := range []*ruleSource{first, second, third} {
		s.asked = nil
	}
	if _, err := p.GetMetricBySelector(t.Context(), "ml", labels.Everything(), podsMetric("DCGM_FI_DEV_GPU_UTIL"), labels.Everything()); err != nil || third.asked != nil {
		t.Errorf("%v, asked %v", err, third.asked)
	}
}

func TestSourcesRefuse(t *testing.T) {
	deps := fleet(t)
	services := schema.GroupResource{Resource: "services"}
	deps.Objects = objectList{deploymentsResource: {"ml": {"web"}}, nodesResource: {"": {"node-1"}}, services: {"ml": {"web"}}}
	broken := ruleOf(services, "broken")
	broken.err = errors.New("the query is too expensive")
	deps.Sources = []Source{ruleOf(services, "requests"), broken}
	p := NewProvider(maxAge, 0, deps)
	f := func(r schema.GroupResource, namespace, name, metric string, code int32, want string) {
		t.Helper()
		_, err := p.GetMetricByName(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, provider.CustomMetricInfo{GroupResource: r, Metric: metric}, labels.Everything())
		status, ok := err.(apierrors.APIStatus)
		if err == nil || !strings.Contains(err.Error(), want) || ok != (code != 0) || ok && status.Status().Code != code {
			t.Errorf("%s %s: error %v, want %d %q", r, metric, err, code, want)
		}
	}
	f(schema.GroupResource{Resource: "secrets"}, "ml", "x", "m", http.StatusNotFound, "secrets have no metrics here; pods, namespaces, nodes, deployments.apps")
	f(schema.GroupResource{Group: "batch", Resource: "jobs"}, "ml", "x", "m", http.StatusNotFound, "the cluster does not serve")
	f(deploymentsResource, "", "web", "m", http.StatusBadRequest, "no namespace was given")
	f(nodesResource, "ml", "node-1", "m", http.StatusBadRequest, "not namespaced")
	f(services, "ml", "gone", "requests", http.StatusNotFound, `services "gone" not found`)
	f(services, "ml", "web", "requests", http.StatusNotFound, "services ml/web has no value now")
	f(services, "ml", "web", "broken", 0, "too expensive")
	f(services, "ml", "web", "other", http.StatusNotFound, "metric other is not known")
	f(schema.GroupResource{Resource: strings.Repeat("x", 10_000)}, "ml", "web", "other", http.StatusNotFound, "x… have no metrics")
}

func TestSourcesAreDiscovered(t *testing.T) {
	deps := fleet(t)
	deps.Sources = []Source{ruleOf(deploymentsResource, "b"), ruleOf(deploymentsResource, "a"), ruleOf(nodesResource, "a"), ruleOf(deploymentsResource, "a")}
	p := NewProvider(maxAge, 0, deps)
	var got []string
	for _, r := range resourcesOf(p.ListAllMetrics()) {
		for _, s := range r.Subresources {
			got = append(got, string(r.Scope)+" "+r.Resource+"/"+s.Subresource)
		}
	}
	want := []string{
		"Namespaced deployments.apps/a", "Namespaced deployments.apps/b", "Cluster nodes/a",
		"Namespaced pods/DCGM_FI_DEV_GPU_UTIL", "Namespaced pods/queue_depth", "Namespaced pods/vllm:num_requests_waiting",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
