// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package sources tests gateways as sources of metrics on a real control
// plane, without Prometheus.
package sources

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	mine    = "llm"   // the namespace of the workloads
	others  = "evil"  // another tenant's
	trusted = "infra" // of --query-namespaces
)

var rig *stack.Stack

func TestMain(m *testing.M) {
	cfg := stack.Config{Nodes: 2, ControllerArgs: []string{"--query-namespaces", trusted}}
	stack.Main(m, cfg, func(s *stack.Stack) error {
		rig = s
		for _, name := range []string{"chat", "dynamo", "worker"} {
			s.Offer(name, 0)
		}
		return nil
	})
}

// tenants empties the namespaces when the test ends.
func tenants(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.Background()
		for _, ns := range []string{mine, others, trusted} {
			for _, kind := range []schema.GroupVersionKind{
				v1alpha1.GroupVersion.WithKind("GPUAutoscaler"),
				{Group: "apps", Version: "v1", Kind: "Deployment"},
				{Version: "v1", Kind: "Pod"},
			} {
				u := &unstructured.Unstructured{}
				u.SetGroupVersionKind(kind)
				if err := rig.Client.DeleteAllOf(ctx, u, client.InNamespace(ns)); err != nil && !meta.IsNoMatchError(err) {
					t.Error(err)
				}
			}
		}
		if err := stack.Await(ctx, stack.Patience, func() error {
			var pods corev1.PodList
			err := rig.Client.List(ctx, &pods)
			for i := range pods.Items {
				if ns := pods.Items[i].Namespace; ns == mine || ns == others || ns == trusted {
					err = fmt.Errorf("pod %s/%s is still there", ns, pods.Items[i].Name)
				}
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// scaled creates a Deployment and a GPUAutoscaler with one signal.
func scaled(t *testing.T, namespace, name string, replicas int, signal string) {
	t.Helper()
	d := stack.Deployment(namespace, name, int32(replicas), time.Second)
	stack.Eventually(t, func() error {
		_ = rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}) // it may be there
		return rig.Client.Create(t.Context(), d)
	})
	rig.MustApply(t, fmt.Sprintf(`
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[2]s}
  minReplicas: 0
  maxReplicas: 12
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  signals: [%[3]s]
`, namespace, name, signal))
}

func wantReplicas(t *testing.T, namespace, name string, want int32) {
	t.Helper()
	stack.Eventually(t, func() error {
		n, err := rig.Replicas(t.Context(), namespace, name)
		if err == nil && n != want {
			err = fmt.Errorf("%s has %d replicas, want %d: %s", name, n, want, signalsCondition(t, namespace, name))
		}
		return err
	})
}

// signalsCondition is the message of the condition SignalsReadable.
func signalsCondition(t *testing.T, namespace, name string) string {
	var a v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
		return err.Error()
	}
	for _, c := range a.Status.Conditions {
		if c.Type == v1alpha1.ConditionSignals {
			return c.Message
		}
	}
	return fmt.Sprint(a.Status.Conditions)
}

func wantCondition(t *testing.T, namespace, name, text string) {
	t.Helper()
	stack.Eventually(t, func() error {
		if is := signalsCondition(t, namespace, name); !strings.Contains(is, text) {
			return fmt.Errorf("the condition of %s says %q, want %q", name, is, text)
		}
		return nil
	})
}

// place creates a pod and returns its address once it runs.
func place(t *testing.T, namespace, name, labels, ports string, more string) string {
	t.Helper()
	rig.MustApply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {%s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: server, ports: [%s]}]
%s
`, name, namespace, labels, rig.Nodes.NodeNames()[0], ports, more))
	var pod corev1.Pod
	stack.Eventually(t, func() error {
		err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod)
		if err == nil && (pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "") {
			err = fmt.Errorf("pod %s is %s at %q", name, pod.Status.Phase, pod.Status.PodIP)
		}
		return err
	})
	return pod.Status.PodIP
}

func serve(t *testing.T, ip string, port int, h http.HandlerFunc) *stack.Page {
	t.Helper()
	p, err := stack.ServePage(ip, port, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// text is a page that may be replaced.
type text struct{ atomic.Value }

func (x *text) handler() http.HandlerFunc {
	return stack.Text(func() string { return x.Load().(string) })
}

func picker(queued, queueSize, running, endpoints int) string {
	return fmt.Sprintf(`llm_d_epp_flow_control_queue_size{inference_pool="chat",fairness_id="a",priority="0"} %d
llm_d_epp_average_queue_size{name="chat"} %d
llm_d_epp_average_running_requests{name="chat"} %d
llm_d_epp_ready_endpoints{name="chat"} %d
`, queued, queueSize, running, endpoints)
}

// The endpoint picker of an InferencePool scales a workload from zero, with nothing but
// the controller. The picker of another namespace does not, whatever its page says.
func TestEPP(t *testing.T) {
	tenants(t)
	forged := &text{}
	forged.Store(strings.ReplaceAll(picker(1000, 1000, 1000, 100), "{", `{namespace="llm",pod="chat-epp-0",`))
	evil := serve(t, place(t, others, "chat-epp-0", "inferencepool: chat-epp", "{name: metrics, containerPort: 9090}", ""), 9090, forged.handler())
	// The other tenant scales on it, so it is scraped.
	scaled(t, others, "chat", 0, `{preset: epp, activation: "0"}`)
	wantReplicas(t, others, "chat", 12)

	scaled(t, mine, "chat", 0, `{preset: epp, target: {value: "8"}, activation: "0"}`)
	wantCondition(t, mine, "chat", "no running pod of namespace llm has the labels of the gateway")
	page := &text{}
	page.Store(picker(0, 0, 0, 0))
	ip := place(t, mine, "chat-epp-0", "inferencepool: chat-epp", "{name: grpc, containerPort: 9002}", "")
	locked := serve(t, ip, 9090, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	wantCondition(t, mine, "chat", "401")
	if err := locked.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, ip, 9090, page.handler())
	stack.Eventually(t, func() error { // readable, and the workload stays at zero
		if is := signalsCondition(t, mine, "chat"); strings.Contains(is, "gateway") || strings.Contains(is, "query") {
			return fmt.Errorf("the condition says %q", is)
		}
		return nil
	})
	if n, err := rig.Replicas(t.Context(), mine, "chat"); n != 0 || err != nil {
		t.Fatalf("%d replicas without a request, %v", n, err)
	}
	page.Store(picker(20, 0, 0, 0)) // in the picker's queue, with no endpoint
	wantReplicas(t, mine, "chat", 3)
	page.Store(picker(0, 0, 0, 3))
	wantReplicas(t, mine, "chat", 0)
	if evil.Requests.Load() == 0 {
		t.Error("the other namespace's picker was not scraped: the test shows nothing")
	}
}

// In a namespace whose queries may read all namespaces, a gateway's preset still reads
// the gateways of its own.
func TestDynamoInATrustedNamespace(t *testing.T) {
	tenants(t)
	const labels = "nvidia.com/dynamo-component-type: frontend"
	forged, page := &text{}, &text{}
	forged.Store(`dynamo_frontend_inflight_requests{model="m"} 10000` + "\n")
	page.Store(`dynamo_frontend_inflight_requests{model="m"} 10` + "\n" + `dynamo_frontend_inflight_requests{model="other"} 500` + "\n")
	evil := serve(t, place(t, others, "frontend", labels, "{name: http, containerPort: 8000}", ""), 8000, forged.handler())
	serve(t, place(t, trusted, "front", "role: front", "{name: web, containerPort: 8123}", ""), 8123, page.handler())
	scaled(t, others, "dynamo", 0, `{preset: dynamo, model: m, activation: "0"}`)
	wantReplicas(t, others, "dynamo", 12)
	scaled(t, trusted, "dynamo", 0, `{preset: dynamo, model: m, port: web, selector: {matchLabels: {role: front}}, target: {value: "5"}, activation: "0"}`)
	wantReplicas(t, trusted, "dynamo", 2)
	if evil.Requests.Load() == 0 {
		t.Error("the other namespace's frontend was not scraped: the test shows nothing")
	}
	page.Store(`dynamo_frontend_inflight_requests{model="m"} 15` + "\n")
	wantReplicas(t, trusted, "dynamo", 3)
}
