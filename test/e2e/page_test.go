// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

// viewerAccount makes a ServiceAccount with a ClusterRole in these namespaces; * is
// the whole cluster.
func viewerAccount(t *testing.T, name, role string, in ...string) {
	t.Helper()
	remove, err := rig.CreateAccount(t.Context(), name, role, in...)
	t.Cleanup(func() { _ = remove() })
	if err != nil {
		t.Fatal(err)
	}
}

func tokenOf(t *testing.T, name string, audiences ...string) string {
	t.Helper()
	token, err := rig.Token(t.Context(), name, audiences...)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// fetch asks with a header, such as Authorization: Bearer TOKEN.
func fetch(t *testing.T, c *http.Client, url, header, value string) (status int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, body
}

// tenants makes two namespaces with a GPUAutoscaler each.
func tenants(t *testing.T) {
	t.Helper()
	for _, ns := range []string{"page-a", "page-b"} {
		_ = rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}) // it may be there
		a := stack.Autoscaler("w")
		a.Namespace = ns
		if err := rig.Client.Create(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), a) })
	}
}

// viewers are tokens of accounts with various rights.
func viewers(t *testing.T) map[string]string {
	t.Helper()
	viewerAccount(t, "page-none", "gpupilot:viewer")
	viewerAccount(t, "page-a", "gpupilot:viewer", "page-a")
	viewerAccount(t, "page-view", "view", "page-b") // by aggregation
	viewerAccount(t, "page-prometheus", "gpupilot:metrics-reader", "*")
	all := tokenOf(t, "gpupilot-viewer", v1alpha1.GroupVersion.Group)
	return map[string]string{
		"nobody": "", "wrong": all[:len(all)-8] + "AAAAAAAA", "none": tokenOf(t, "page-none"), "a": tokenOf(t, "page-a"),
		"view": tokenOf(t, "page-view"), "prometheus": tokenOf(t, "page-prometheus"), "all": all,
		"all, of the API server": tokenOf(t, "gpupilot-viewer"), "other audience": tokenOf(t, "gpupilot-viewer", "vault"),
	}
}

// Who may look at what, by the rights that the API server knows.
func TestPageNeedsAToken(t *testing.T) {
	tenants(t)
	tokens := viewers(t)
	all := tokens["all"]
	url, stop, err := rig.StartReplica(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	get := func(token, path string) (int, []byte) {
		t.Helper()
		if token != "" {
			token = "Bearer " + token
		}
		return fetch(t, http.DefaultClient, url+path, "Authorization", token)
	}
	const historyA, historyB = "/api/v1/history?namespace=page-a&name=w", "/api/v1/history?namespace=page-b&name=w"
	for _, c := range []struct {
		who                 string
		view, a, b, metrics int
	}{
		{"nobody", 401, 401, 401, 401},
		{"wrong", 401, 401, 401, 401},
		{"other audience", 401, 401, 401, 401},
		{"none", 200, 403, 403, 403},
		{"a", 200, 200, 403, 403},
		{"view", 200, 403, 200, 403},
		{"prometheus", 200, 403, 403, 200},
		{"all", 200, 200, 200, 200},
		{"all, of the API server", 200, 200, 200, 200},
	} {
		for path, want := range map[string]int{"/api/v1/view": c.view, historyA: c.a, historyB: c.b, "/metrics": c.metrics, "/healthz": 200, "/": 200} {
			if status, body := get(tokens[c.who], path); status != want {
				t.Errorf("%s at %s: %d, want %d: %.200s", c.who, path, status, want, body)
			}
		}
	}
	for who, want := range map[string]string{"none": "", "a": "page-a/w", "view": "page-b/w"} {
		var v view.View
		if _, body := get(tokens[who], "/api/v1/view"); json.Unmarshal(body, &v) != nil {
			t.Fatalf("%s: %s", who, body)
		}
		var got []string
		for _, w := range v.Workloads {
			got = append(got, w.Namespace+"/"+w.Name)
		}
		if strings.Join(got, " ") != want || len(v.Nodes)+len(v.Targets)+len(v.Recent) > 0 || v.Namespaces == nil {
			t.Errorf("%s sees the workloads %q, want %q; %d nodes, %d targets", who, got, want, len(v.Nodes), len(v.Targets))
		}
	}
	stack.Eventually(t, func() error {
		var v view.View
		if _, body := get(all, "/api/v1/view"); json.Unmarshal(body, &v) != nil || len(v.Nodes) == 0 || len(v.Targets) == 0 || v.Namespaces != nil {
			return fmt.Errorf("who may see all sees %.300s", body)
		}
		return nil
	})
	api, err := rest.HTTPClientFor(rest.AnonymousClientConfig(rig.REST))
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := fetch(t, api, rig.Cluster.URL()+"/api/v1/namespaces", "Authorization", "Bearer "+all); status != 401 {
		t.Errorf("the page's token at the API server: %d", status)
	}
}

// Without the API server nobody who is not known gets in, and nothing is open.
func TestPageWithoutAPIServer(t *testing.T) {
	viewerAccount(t, "page-late", "gpupilot:viewer", "*")
	url, stop, err := rig.StartReplica(t.Context(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	token := "Bearer " + tokenOf(t, "page-late")
	rig.Cluster.StopAPIServer()
	defer func() {
		if err := rig.Cluster.StartAPIServer(context.Background()); err != nil {
			t.Fatal(err)
		}
	}()
	for _, path := range []string{"/api/v1/view", "/metrics", "/api/v1/history?namespace=page-a&name=w"} {
		if status, body := fetch(t, http.DefaultClient, url+path, "Authorization", token); status != 503 {
			t.Errorf("%s: %d, want 503: %.100s", path, status, body)
		}
		if status, _ := fetch(t, http.DefaultClient, url+path, "", ""); status != 401 {
			t.Errorf("%s without a token: %d, want 401", path, status)
		}
	}
}

// The API server's proxy removes Authorization; our own header passes.
func TestPageThroughTheAPIServer(t *testing.T) {
	host := ownAddress()
	if host == "" {
		t.Skip("this machine has no IPv4 address besides loopback, which the API server does not proxy to")
	}
	url, stop, err := rig.StartReplica(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	exposePage(t, host, int32(stack.PortOf(url)))
	api, err := rest.HTTPClientFor(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	token := tokenOf(t, "gpupilot-viewer", v1alpha1.GroupVersion.Group)
	proxy := rig.Cluster.URL() + "/api/v1/namespaces/" + stack.Namespace + "/services/page:8080/proxy"
	stack.Eventually(t, func() error {
		if status, body := fetch(t, api, proxy+"/api/v1/view", view.TokenHeader, token); status != 200 {
			return fmt.Errorf("%d: %.200s", status, body)
		}
		return nil
	})
	status, body := fetch(t, api, proxy+"/", "", "")
	scripts := regexp.MustCompile(`<script [^>]*src="([^"]+)"`).FindAllSubmatch(body, -1)
	if status != 200 || len(scripts) == 0 {
		t.Errorf("the page: %d, %.2000s", status, body)
	}
	for _, src := range scripts {
		if status, _ := fetch(t, api, proxy+"/"+string(src[1]), "", ""); status != 200 {
			t.Errorf("its script %s: %d", src[1], status)
		}
	}
	if status, _ := fetch(t, api, proxy+"/api/v1/view", "Authorization", "Bearer "+token); status != 401 {
		t.Errorf("Authorization reaches the controller: %d", status)
	}
}

// exposePage makes a Service of what listens there. The API server proxies to the
// addresses of pods only: one that no scheduler takes is given this one.
func exposePage(t *testing.T, host string, port int32) {
	t.Helper()
	is := metav1.ObjectMeta{Namespace: stack.Namespace, Name: "page"}
	ready, name, protocol := true, "http", corev1.ProtocolTCP
	pod := &corev1.Pod{ObjectMeta: is, Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "page", Image: "page"}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: *is.DeepCopy(), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: is.Namespace, Name: is.Name},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: is.Name}
	service := &corev1.Service{ObjectMeta: is, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: name, Port: 8080}}}}
	for _, o := range []client.Object{pod, service, slice} {
		if err := rig.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), o) })
	}
	created := pod.DeepCopy() // a patch does not meet the version of others' writes
	pod.Status.PodIP, pod.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
	if err := rig.Client.Status().Patch(t.Context(), pod, client.MergeFrom(created)); err != nil {
		t.Fatal(err)
	}
}

// ownAddress is an IPv4 address of this machine that others could reach.
func ownAddress() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// Who may edit a namespace may have its workloads scaled, and who may view it may look: by aggregation to the ClusterRoles
// that every cluster has.
func TestTenantsRights(t *testing.T) {
	tenants(t)
	viewerAccount(t, "tenant-edit", "edit", "page-b")
	viewerAccount(t, "tenant-view", "view", "page-b")
	f := func(who, verb, resource, namespace string, want bool) {
		t.Helper()
		account := "system:serviceaccount:" + stack.Namespace + ":" + who
		stack.Eventually(t, func() error { // the roles are aggregated by a controller
			r := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: v1alpha1.GroupVersion.Group, Resource: resource},
			}}
			if err := rig.Client.Create(t.Context(), r); err != nil {
				return err
			}
			if r.Status.Allowed != want {
				return fmt.Errorf("%s may %s %s in %s: %v", who, verb, resource, namespace, r.Status.Allowed)
			}
			return nil
		})
	}
	for _, resource := range []string{"gpuautoscalers", "metricqueries"} {
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection", "get", "list", "watch"} {
			f("tenant-edit", verb, resource, "page-b", true)
			f("tenant-edit", verb, resource, "page-a", false)
			f("tenant-view", verb, resource, "page-b", verb == "get" || verb == "list" || verb == "watch")
		}
	}
	f("tenant-edit", "update", "gpuautoscalers/status", "page-b", false) // what the controller says
	f("tenant-edit", "create", "gpuexporters", "", false)                // agents are the operator's
}
