// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hpa

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	custom "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	external "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"

	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/test/stack"
)

// metricsAPI serves custom.metrics.k8s.io and external.metrics.k8s.io. A metric
// is a timeline's: every request for it waits until the timeline answers.
type metricsAPI struct {
	metrics map[string]chan func(*peers.Reading, []string)
	ended   <-chan struct{}
}

// serveMetrics serves it behind the API server's aggregation.
func serveMetrics(t *testing.T, k kubernetes.Interface, rc *rest.Config, names []string) *metricsAPI {
	a := &metricsAPI{metrics: map[string]chan func(*peers.Reading, []string){}, ended: t.Context().Done()}
	for _, name := range names {
		a.metrics[name] = make(chan func(*peers.Reading, []string))
	}
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	stack.Must(t, err)
	port, err := strconv.ParseInt(at.Port(), 10, 32)
	stack.Must(t, err)
	_, err = k.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	stack.Must(t, err)
	register, err := aggregator.NewForConfig(rc)
	stack.Must(t, err)
	for _, gv := range []metav1.GroupVersion{{Group: custom.SchemeGroupVersion.Group, Version: "v1beta2"}, {Group: external.SchemeGroupVersion.Group, Version: "v1beta1"}} {
		_, err := register.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: "metrics", Port: new(int32(port))},
			},
		}, metav1.CreateOptions{})
		stack.Must(t, err)
	}
	a.allow(t, k)
	return a
}

// allow lets the controller read them.
func (a *metricsAPI) allow(t *testing.T, k kubernetes.Interface) {
	meta := metav1.ObjectMeta{Name: "read-metrics"}
	_, err := k.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{custom.SchemeGroupVersion.Group, external.SchemeGroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"get", "list"},
	}}}, metav1.CreateOptions{})
	stack.Must(t, err)
	_, err = k.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "horizontal-pod-autoscaler"}},
	}, metav1.CreateOptions{})
	stack.Must(t, err)
}

// ServeHTTP answers /apis/GROUP/VERSION/namespaces/NAMESPACE/.../METRIC, and what discovery asks for.
func (a *metricsAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	asked, known := a.metrics[path[len(path)-1]]
	switch {
	case len(path) == 3:
		reply(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: path[1] + "/" + path[2]})
		return
	case !known:
		http.NotFound(w, r)
		return
	}
	done := make(chan struct{})
	select {
	case asked <- func(reading *peers.Reading, pods []string) {
		defer close(done)
		if reading == nil {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		reply(w, list(path, reading, pods))
	}:
		<-done
	case <-a.ended:
	case <-r.Context().Done():
	}
}

// list is the reading in the group's words.
func list(path []string, r *peers.Reading, pods []string) any {
	metric, now := path[len(path)-1], metav1.Now()
	milli := func(v int64) resource.Quantity { return *resource.NewMilliQuantity(v, resource.DecimalSI) }
	if path[1] == external.SchemeGroupVersion.Group {
		return external.ExternalMetricValueList{
			TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: path[1] + "/" + path[2]},
			Items:    []external.ExternalMetricValue{{MetricName: metric, Timestamp: now, Value: milli(r.Milli)}},
		}
	}
	out := custom.MetricValueList{TypeMeta: metav1.TypeMeta{Kind: "MetricValueList", APIVersion: path[1] + "/" + path[2]}}
	add := func(kind, name string, v int64) {
		out.Items = append(out.Items, custom.MetricValue{
			DescribedObject: corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name},
			Metric:          custom.MetricIdentifier{Name: metric}, Timestamp: now, Value: milli(v),
		})
	}
	if path[5] != "pods" {
		add("Service", path[6], r.Milli)
		return out
	}
	for i, p := range r.Pods {
		if p.HasSample {
			add("Pod", pods[i], p.Milli)
		}
	}
	return out
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
