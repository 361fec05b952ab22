// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package external

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/cmd"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

// adapter is a small metrics server of another maker: one custom and one external
// metric, each with the value 7.
type adapter struct{}

func (adapter) value(namespace, name, metric string) custom_metrics.MetricValue {
	return custom_metrics.MetricValue{
		DescribedObject: custom_metrics.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespace, Name: name},
		Metric:          custom_metrics.MetricIdentifier{Name: metric}, Timestamp: metav1.Now(), Value: resource.MustParse("7"),
	}
}

func (a adapter) GetMetricByName(_ context.Context, name types.NamespacedName, info provider.CustomMetricInfo, _ labels.Selector) (*custom_metrics.MetricValue, error) {
	v := a.value(name.Namespace, name.Name, info.Metric)
	return &v, nil
}

func (a adapter) GetMetricBySelector(_ context.Context, namespace string, _ labels.Selector, info provider.CustomMetricInfo, _ labels.Selector) (*custom_metrics.MetricValueList, error) {
	return &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{a.value(namespace, "web-1", info.Metric)}}, nil
}

func (adapter) ListAllMetrics() []provider.CustomMetricInfo {
	return []provider.CustomMetricInfo{{GroupResource: schema.GroupResource{Resource: "pods"}, Namespaced: true, Metric: "http_requests"}}
}

func (adapter) GetExternalMetric(_ context.Context, _ string, _ labels.Selector, info provider.ExternalMetricInfo) (*external_metrics.ExternalMetricValueList, error) {
	return &external_metrics.ExternalMetricValueList{Items: []external_metrics.ExternalMetricValue{{MetricName: info.Metric, Timestamp: metav1.Now(), Value: resource.MustParse("7")}}}, nil
}

func (adapter) ListAllExternalMetrics() []provider.ExternalMetricInfo {
	return []provider.ExternalMetricInfo{{Metric: "s0-cron"}}
}

// serveAdapter serves it behind the API server until the test ends.
func serveAdapter(t *testing.T, port int) {
	t.Helper()
	base := &cmd.AdapterBase{Name: "adapter", FlagSet: pflag.NewFlagSet("adapter", pflag.ContinueOnError)}
	base.WithCustomMetrics(adapter{})
	base.WithExternalMetrics(adapter{})
	kubeconfig := rig.Cluster.Kubeconfig()
	for flag, value := range map[string]string{
		"secure-port": strconv.Itoa(port), "cert-dir": t.TempDir(), "lister-kubeconfig": kubeconfig,
		"authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
	} {
		if err := base.Flags().Set(flag, value); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- base.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

var apis = []metav1.GroupVersion{
	{Group: "custom.metrics.k8s.io", Version: "v1beta1"}, {Group: "custom.metrics.k8s.io", Version: "v1beta2"}, {Group: "external.metrics.k8s.io", Version: "v1beta1"},
}

// register registers the adapter for all APIs, as its own chart does.
func register(t *testing.T, a aggregator.Interface, port int32) {
	t.Helper()
	for _, gv := range apis {
		_, err := a.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: "monitoring", Name: "adapter", Port: &port},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unregister(t *testing.T, a aggregator.Interface) {
	t.Helper()
	for _, gv := range apis {
		err := a.ApiregistrationV1().APIServices().Delete(context.WithoutCancel(t.Context()), gv.Version+"."+gv.Group, metav1.DeleteOptions{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
}

// servedBy waits until all APIs belong to a Service and are available.
func servedBy(t *testing.T, a aggregator.Interface, service string) {
	t.Helper()
	stack.Eventually(t, func() error {
		for _, gv := range apis {
			x, err := a.ApiregistrationV1().APIServices().Get(t.Context(), gv.Version+"."+gv.Group, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := x.Spec.Service.Namespace + "/" + x.Spec.Service.Name; got != service {
				return fmt.Errorf("%s is served by %s, want %s", x.Name, got, service)
			}
			available := false
			for _, c := range x.Status.Conditions {
				available = available || c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue
			}
			if !available {
				return fmt.Errorf("%s is not available: %+v", x.Name, x.Status.Conditions)
			}
		}
		return nil
	})
}

// TestHandOver hands the metrics APIs of another server over to GPUPilot and back.
func TestHandOver(t *testing.T) {
	port, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	queue.set("3")
	k, err := kubernetes.NewForConfig(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	a, err := aggregator.NewForConfig(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	servedBy(t, a, "gpupilot-system/gpupilot-controller")
	rig.StopController()
	t.Cleanup(func() { unregister(t, a) })
	unregister(t, a)
	rig.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "monitoring"}})
	rig.Create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "monitoring", Name: "adapter"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	serveAdapter(t, port)
	register(t, a, int32(port))
	servedBy(t, a, "monitoring/adapter")

	get := func(path string) (string, error) {
		raw, err := k.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		return string(raw), err
	}
	const (
		custom   = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/team-a/pods/*/http_requests"
		older    = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team-a/pods/*/http_requests"
		external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/team-a/s0-cron"
	)
	answered := func() {
		t.Helper()
		for _, path := range []string{custom, older, external} {
			stack.Eventually(t, func() error {
				got, err := get(path)
				if err == nil && !strings.Contains(got, `"value":"7"`) {
					err = errors.New(got)
				}
				return err
			})
		}
	}
	answered()

	// An API of another server is left alone until somebody hands it over.
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		log, err := os.ReadFile(rig.ControllerLog())
		if err == nil && !strings.Contains(string(log), "served by another service: monitoring/adapter") {
			err = errors.New("the log does not say whose the API is")
		}
		return err
	})
	servedBy(t, a, "monitoring/adapter")

	unregister(t, a) // the hand-over
	servedBy(t, a, "gpupilot-system/gpupilot-controller")
	rig.Create(t, metricQuery("queue", "", "sum(queue_length)"))
	stack.Eventually(t, func() error { _, err := raw(t.Context(), k, namespace, "queue"); return err })
	stack.Eventually(t, func() error {
		list, err := k.Discovery().ServerResourcesForGroupVersion("custom.metrics.k8s.io/v1beta2")
		if err != nil {
			return err
		}
		names := map[string]bool{}
		for _, r := range list.APIResources {
			names[r.Name] = true
		}
		if !names["pods/DCGM_FI_DEV_GPU_UTIL"] {
			return fmt.Errorf("discovery lists %v", names)
		}
		return nil
	})
	if _, err := get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/team-a/pods/*/DCGM_FI_DEV_GPU_UTIL"); err != nil {
		t.Error(err)
	}

	rig.StopController() // the way back
	unregister(t, a)
	register(t, a, int32(port))
	servedBy(t, a, "monitoring/adapter")
	answered()
}
