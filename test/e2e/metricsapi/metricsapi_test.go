// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package metricsapi tests the custom metrics API behind a real API server:
// registered, certified and asked as in a cluster, with the rights of
// deploy/rbac, within deploy/admission, and no more.
package metricsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/metrics/pkg/client/custom_metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "gpupilot-system"
	service   = "gpupilot-controller"
	user      = "system:serviceaccount:gpupilot-system:gpupilot-controller"
	secret    = "gpupilot-controller-tls"
	metric    = "DCGM_FI_DEV_GPU_UTIL"
	patience  = 5 * time.Minute
	group     = "/apis/custom.metrics.k8s.io"
)

// rig is a control plane with our API registered in it.
type rig struct {
	*cluster.Cluster
	collected time.Time // when the GPUs were read
	certs     *certificates.Certs
	ended     atomic.Bool // the API's server
}

// clock stands still, so that values stay fresh and stamps are known.
func (r *rig) clock() time.Time { return r.collected.Add(time.Second) }

// pods are one serving pod with a GPU, one that loads, and one without GPUs.
type pods struct{ store *series.Store }

func (p pods) State(ns, pod string) (serving, found bool) {
	known := ns == "ml" && slices.Contains([]string{"web-a", "web-loading", "web-cpu"}, pod)
	return known && pod != "web-loading", known
}

func (p pods) Serving(ns string, selector labels.Selector) []string {
	if ns != "ml" || !selector.Matches(labels.Set{"app": "web"}) {
		return nil
	}
	return []string{"web-a", "web-cpu"}
}

func (p pods) Value(ns, pod string, q stat.Query) (series.Sample, bool) {
	if q.Metric != "" {
		return p.store.PodMetric(ns, pod, q.Metric, q.Now, q.MaxAge)
	}
	return p.store.Pod(ns, pod, q.Field, q.Now, q.MaxAge)
}

func (p pods) Values(ns string, selector labels.Selector, q stat.Query) iter.Seq2[string, series.Sample] {
	return func(yield func(string, series.Sample) bool) {
		for _, pod := range []string{"web-a", "web-cpu"} {
			s, ok := p.Value(ns, pod, q)
			if ok && ns == "ml" && selector.Matches(labels.Set{"app": "web"}) && !yield(pod, s) {
				return
			}
		}
	}
}

// store has one reading of both GPUs.
func (r *rig) store(t *testing.T) *series.Store {
	s := series.New(series.Config{})
	node := s.Target("node-1", series.TargetLabels{Node: "node-1"})
	var batch series.Batch
	var owners []series.DeviceOwners
	for device, pod := range map[string]string{"GPU-0": "web-a", "GPU-1": "web-loading"} {
		ref, _ := node.Ref(series.Key{Device: device, Field: gpu.GPUUtil})
		batch.Add(ref, 63)
		owners = append(owners, series.DeviceOwners{Device: device, Owners: []gpu.Owner{{Namespace: "ml", Pod: pod}}})
	}
	node.SetOwners(r.collected.Add(-time.Minute), owners)
	if _, err := node.Append(r.collected, &batch); err != nil {
		t.Fatal(err)
	}
	return s
}

func (r *rig) config(t *testing.T, name string, groups ...string) *rest.Config {
	t.Helper()
	path, err := r.KubeconfigFor(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func start(t *testing.T) *rig {
	c, err := cluster.Start(t.Context(), cluster.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if errors.Is(err, cluster.ErrNoBinary) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	r := &rig{Cluster: c, collected: time.Now().Add(-30 * time.Second).Truncate(time.Second)}
	r.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", namespace))
	r.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {type: ExternalName, externalName: localhost}\n", service, namespace))
	for _, file := range []string{"admission/controller.yaml", "rbac/metrics-apiserver.yaml"} {
		manifest, err := os.ReadFile("../../../deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		r.apply(t, string(manifest))
	}
	r.serve(t)
	return r
}

// apply creates the manifest's objects with all rights.
func (r *rig) apply(t *testing.T, manifest string) {
	t.Helper()
	admin, err := client.New(r.config(t, "admin", "system:masters"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// serve runs what the controller runs, as its service account.
func (r *rig) serve(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	config := r.config(t, user)
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := aggregator.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.KubeconfigFor(user)
	if err != nil {
		t.Fatal(err)
	}
	r.certs = certificates.New(certificates.Config{
		Secrets: clientset.CoreV1().Secrets(namespace), Name: secret, DNSNames: certificates.ServiceNames(service, namespace),
		Recheck: 500 * time.Millisecond, Log: log,
	})
	server, err := metricsapi.New(
		metricsapi.Config{BindAddress: "127.0.0.1", Cert: r.certs, Kubeconfig: kubeconfig, MaxAge: 5 * time.Second, Version: "e2e", Log: log},
		metricsapi.Deps{Pods: pods{r.store(t)}, Names: func() []string { return []string{metric, "queue_depth"} }, Now: r.clock},
	)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() { _ = r.certs.Run(ctx) })
	all.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Errorf("metrics API: %v", err)
		}
		r.ended.Store(true)
	})
	all.Go(func() {
		certificates.KeepAPIServices(ctx, registry.ApiregistrationV1().APIServices(), certificates.APIServiceConfig{
			APIs: certificates.CustomMetrics(), Namespace: namespace, Service: service,
			Port: int32(server.Addr().(*net.TCPAddr).Port), CreateIfMissing: true,
		}, r.certs, log)
	})
}

// get asks the API server, with all rights, as kubectl get --raw does.
func (r *rig) get(ctx context.Context, path, accept string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL()+path, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := r.HTTPClient().Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, response.Status, body)
	}
	return body, err
}

func podsPath(version string) string {
	return group + "/" + version + "/namespaces/ml/pods/*/" + metric + "?labelSelector=app%3Dweb"
}

// answers says whether the API server gives our value.
func (r *rig) answers(ctx context.Context) error {
	for _, version := range []string{"v1beta1", "v1beta2"} {
		if _, err := r.get(ctx, podsPath(version), ""); err != nil {
			return err
		}
	}
	return nil
}

func TestMetricsAPI(t *testing.T) {
	r := start(t)
	began := time.Now()
	stack.Eventually(t, func() error { return r.answers(t.Context()) })
	t.Logf("answers through the API server after %v", time.Since(began).Round(time.Millisecond))
	t.Run("values and stamps", r.values)
	t.Run("discovery", r.discovery)
	t.Run("openapi", r.openapi)
	t.Run("the HPA's client", r.hpaClient)
	t.Run("rights", r.rights)
	t.Run("a lost certificate", r.lostCertificate)
	t.Run("an expired certificate", r.expiredCertificate)
	t.Run("a lost API server", r.lostAPIServer)
}

func (r *rig) values(t *testing.T) {
	object := map[string]any{"kind": "Pod", "namespace": "ml", "name": "web-a", "apiVersion": "v1"}
	stamp := r.collected.UTC().Format(time.RFC3339)
	for version, want := range map[string]map[string]any{
		"v1beta1": {"describedObject": object, "metricName": metric, "timestamp": stamp, "value": "63", "selector": nil},
		"v1beta2": {"describedObject": object, "metric": map[string]any{"name": metric, "selector": nil}, "timestamp": stamp, "value": "63"},
	} {
		body, err := r.get(t.Context(), podsPath(version), "")
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []map[string]any }
		if err := json.Unmarshal(body, &list); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]map[string]any{want}, list.Items); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
}

func (r *rig) discovery(t *testing.T) {
	accept := "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	stack.Eventually(t, func() error { // the API server asks now and then
		body, err := r.get(t.Context(), "/apis", accept)
		if err != nil {
			return err
		}
		var list apidiscoveryv2.APIGroupDiscoveryList
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		var got []string
		for _, g := range list.Items {
			for _, v := range g.Versions {
				for _, res := range v.Resources {
					for _, sub := range res.Subresources {
						if g.Name == "custom.metrics.k8s.io" {
							got = append(got, fmt.Sprint(v.Version, " ", v.Freshness, " ", res.Resource, "/", sub.Subresource))
						}
					}
				}
			}
		}
		want := []string{
			"v1beta2 Current pods/" + metric, "v1beta2 Current pods/queue_depth",
			"v1beta1 Current pods/" + metric, "v1beta1 Current pods/queue_depth",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("aggregated discovery (-want +got):\n%s", diff)
		}
		return nil
	})
	body, err := r.get(t.Context(), group, "application/json")
	if err != nil {
		t.Fatal(err)
	}
	var g metav1.APIGroup
	if err := json.Unmarshal(body, &g); err != nil || g.PreferredVersion.Version != "v1beta2" {
		t.Errorf("preferred version %q, %v", g.PreferredVersion.Version, err)
	}
}

func (r *rig) openapi(t *testing.T) {
	for path, want := range map[string]string{
		"/openapi/v2": "io.k8s.metrics.pkg.apis.custom_metrics.v1beta2.MetricValueList",
		"/openapi/v3": "apis/custom.metrics.k8s.io/v1beta2",
	} {
		stack.Eventually(t, func() error {
			body, err := r.get(t.Context(), path, "application/json")
			if err == nil && !bytes.Contains(body, []byte(want)) {
				err = fmt.Errorf("%s lacks %s", path, want)
			}
			return err
		})
	}
}

// The very client that the HPA controller uses, as its service account.
func (r *rig) hpaClient(t *testing.T) {
	config := r.config(t, "system:serviceaccount:kube-system:horizontal-pod-autoscaler")
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := restmapper.GetAPIGroupResources(d)
	if err != nil {
		t.Fatal(err)
	}
	metrics := custom_metrics.NewForConfig(config, restmapper.NewDiscoveryRESTMapper(resources), custom_metrics.NewAvailableAPIsGetter(d))
	pods := schema.GroupKind{Kind: "Pod"}
	list, err := metrics.NamespacedMetrics("ml").GetForObjects(pods, labels.SelectorFromSet(labels.Set{"app": "web"}), metric, labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Value.MilliValue() != 63000 || !list.Items[0].Timestamp.Time.Equal(r.collected) {
		t.Errorf("list %+v", list.Items)
	}
	_, err = metrics.NamespacedMetrics("ml").GetForObjects(pods, labels.Everything(), "no_such_metric", labels.Everything())
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "no_such_metric") {
		t.Errorf("unknown metric: %v", err)
	}
}

func (r *rig) rights(t *testing.T) {
	f := func(who string, wantForbidden bool) {
		t.Helper()
		clientset, err := kubernetes.NewForConfig(r.config(t, who))
		if err != nil {
			t.Fatal(err)
		}
		err = clientset.CoreV1().RESTClient().Get().AbsPath(group + "/v1beta2/namespaces/ml/pods/*/" + metric).Do(t.Context()).Error()
		if apierrors.IsForbidden(err) != wantForbidden || !wantForbidden && err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	f("nobody-in-particular", true)
	f("system:serviceaccount:kube-system:horizontal-pod-autoscaler", false)
}

// The certificate in the Secret has expired, and its authority with it: both are made anew without a restart, and the APIServices
// trust the new one.
func (r *rig) expiredCertificate(t *testing.T) {
	admin, err := kubernetes.NewForConfig(r.config(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	// What a controller would have made two years ago, for a year.
	ago := func() time.Time { return time.Now().Add(-2 * 365 * 24 * time.Hour) }
	expired := certificates.New(certificates.Config{
		Secrets: admin.CoreV1().Secrets(namespace), Name: "expired", DNSNames: certificates.ServiceNames(service, namespace),
		CALifetime: 365 * 24 * time.Hour, LeafLifetime: 365 * 24 * time.Hour, Now: ago,
	})
	if err := expired.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := admin.CoreV1().Secrets(namespace).Get(t.Context(), "expired", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is, err := admin.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	is.Data = old.Data
	before := r.certs.CABundle()
	if _, err := admin.CoreV1().Secrets(namespace).Update(t.Context(), is, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if b := r.certs.CABundle(); bytes.Equal(b, before) || bytes.Equal(b, old.Data["ca.crt"]) {
			return errors.New("there is no new authority")
		}
		return nil
	})
	stack.Eventually(t, func() error {
		api, err := r.registered(t)
		if err == nil && !bytes.Equal(api, r.certs.CABundle()) {
			err = errors.New("the APIService does not trust the new authority")
		}
		return err
	})
	stack.Eventually(t, func() error { return r.answers(t.Context()) })
}

// registered is the authority that the APIService trusts.
func (r *rig) registered(t *testing.T) ([]byte, error) {
	registry, err := aggregator.NewForConfig(r.config(t, "admin", "system:masters"))
	if err != nil {
		return nil, err
	}
	api, err := registry.ApiregistrationV1().APIServices().Get(t.Context(), "v1beta2.custom.metrics.k8s.io", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return api.Spec.CABundle, nil
}

// Somebody deletes the Secret: a new authority, which the APIServices trust.
func (r *rig) lostCertificate(t *testing.T) {
	admin, err := kubernetes.NewForConfig(r.config(t, "admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	old, changed := r.certs.CABundle(), r.certs.Changed()
	var was *corev1.Secret
	if was, err = admin.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().Secrets(namespace).Delete(t.Context(), secret, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &was.UID}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(patience):
		t.Fatal("no new certificate")
	}
	if bytes.Equal(old, r.certs.CABundle()) {
		t.Error("the authority is the old one")
	}
	stack.Eventually(t, func() error { return r.answers(t.Context()) })
}

func (r *rig) lostAPIServer(t *testing.T) {
	r.StopAPIServer()
	time.Sleep(3 * time.Second) // a real outage, in which nothing may end
	if r.ended.Load() {
		t.Fatal("the metrics API ended with the API server")
	}
	if err := r.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error { return r.answers(t.Context()) })
}
