// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package keda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	rivals "github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	ours      = "gpupilot-controller" // as the API server names who writes
	adoptable = "llm/chat"
)

// adopted is a workload under a ScaledObject of KEDA's own operator.
type adopted struct {
	*stack.Stack
	on       *rig
	name     string
	killer   *stack.Killer
	was      *unstructured.Unstructured // the ScaledObject
	operator *os.Process
	again    func() *os.Process
	seen     *stack.Recorder
	want     []int32 // replicas that it has had
}

// newAdopted waits until KEDA scales a workload to 4 replicas: 20 in the backend, 5 for each.
func newAdopted(t *testing.T, annotation string) *adopted {
	t.Helper()
	r := newRig(t)
	w := &adopted{Stack: r.Stack, on: r, name: "chat"}
	w.operator, w.again = startKEDA(t, r.Stack, r.keda, r.certs)
	w.startWebhooks(t)
	w.on.value.Store(20)
	stack.Must(t, w.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: chat, namespace: llm, annotations: {example.com/note: of the team, %s}}
spec:
  scaleTargetRef: {name: chat}
  pollingInterval: 2
  minReplicaCount: 1
  maxReplicaCount: 8
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - {type: prometheus, metadata: {serverAddress: %q, query: sum(queue_length), threshold: "5"}}
`, annotation, w.on.backend)))
	stack.Must(t, w.Client.Create(t.Context(), stack.Deployment(stack.WorkloadNamespace, w.name, 1, 0)))
	w.replicas(t, 4)
	w.was = w.scaledObject(t)
	w.kedaScales(t)
	w.killer = stack.NewKiller(t, w.REST)
	w.seen, w.want = w.Record(t, w.name), []int32{4}
	return w
}

// startWebhooks starts KEDA's webhook of ScaledObjects. KEDA ignores one that does not answer; here it has to.
func (w *adopted) startWebhooks(t *testing.T) {
	t.Helper()
	port := freePort(t)
	start(t, w.on.Stack, filepath.Join(w.on.keda, "webhooks"), "--cert-dir", w.on.certs, "--port", port,
		"--metrics-bind-address", "127.0.0.1:"+freePort(t), "--health-probe-bind-address", "127.0.0.1:"+freePort(t))
	ca, err := os.ReadFile(filepath.Join(w.on.certs, "ca.crt"))
	stack.Must(t, err)
	url, fail, none := "https://localhost:"+port+"/validate-keda-sh-v1alpha1-scaledobject", admissionv1.Fail, admissionv1.SideEffectClassNone
	stack.Must(t, w.Client.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "keda-admission"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "vscaledobject.kb.io", ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: ca},
			FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{"keda.sh"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"scaledobjects"}},
			}},
		}},
	}))
}

func (w *adopted) scaledObject(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	so := rivals.ScaledObject()
	stack.Must(t, w.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.WorkloadNamespace, Name: w.name}, so))
	return so
}

// hpa is KEDA's; nil: there is none.
func (w *adopted) hpa(ctx context.Context) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	h := &autoscalingv2.HorizontalPodAutoscaler{}
	err := w.Client.Get(ctx, client.ObjectKey{Namespace: stack.WorkloadNamespace, Name: "keda-hpa-" + w.name}, h)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return h, err
}

func (w *adopted) actuation(t *testing.T) v1alpha1.Actuation {
	t.Helper()
	var a v1alpha1.GPUAutoscaler
	err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.WorkloadNamespace, Name: w.name}, &a)
	if apierrors.IsNotFound(err) {
		return v1alpha1.ActuationAdvise
	}
	stack.Must(t, err)
	return a.Spec.Actuation
}

func (w *adopted) replicas(t *testing.T, n int32) {
	t.Helper()
	w.WantReplicas(t, w.name, fmt.Sprint(n), func(got int32) bool { return got == n })
	if len(w.want) > 0 && w.want[len(w.want)-1] != n {
		w.want = append(w.want, n)
	}
}

// kedaScales waits until KEDA scales on a ScaledObject that is as it was.
func (w *adopted) kedaScales(t *testing.T) {
	t.Helper()
	stack.Eventually(t, func() error {
		so := w.scaledObject(t)
		if !equality.Semantic.DeepEqual(so.Object["spec"], w.was.Object["spec"]) || !maps.Equal(so.GetAnnotations(), w.was.GetAnnotations()) || !maps.Equal(so.GetLabels(), w.was.GetLabels()) {
			return fmt.Errorf("it is %v %v %v", so.Object["spec"], so.GetAnnotations(), so.GetLabels())
		}
		h, err := w.hpa(t.Context())
		if err != nil || h == nil {
			return errors.Join(err, errors.New("KEDA has no HPA"))
		}
		for _, c := range h.Status.Conditions {
			if c.Type == autoscalingv2.ScalingActive && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("its HPA does not scale: %+v", h.Status.Conditions)
	})
	if a := w.actuation(t); a != v1alpha1.ActuationAdvise {
		t.Errorf("KEDA scales, and the actuation is %s", a)
	}
}

// weScale checks that the GPUAutoscaler scales, that KEDA is paused by the annotation and has no HPA.
func (w *adopted) weScale(t *testing.T) {
	t.Helper()
	so, want := w.scaledObject(t), maps.Clone(w.was.GetAnnotations())
	want["autoscaling.keda.sh/paused"], want["gpupilot.dev/adopted-by"] = "true", w.name
	if !maps.Equal(so.GetAnnotations(), want) || !rivals.IsPaused(so) || !equality.Semantic.DeepEqual(so.Object["spec"], w.was.Object["spec"]) {
		t.Errorf("the ScaledObject is %v %v", so.GetAnnotations(), so.Object["status"])
	}
	if h, err := w.hpa(t.Context()); h != nil || err != nil {
		t.Errorf("KEDA's HPA is there: %v", err)
	}
	if a := w.actuation(t); a != v1alpha1.ActuationScale {
		t.Errorf("the actuation is %s", a)
	}
}

// changed checks all replicas that there were, and who has set them: the higher number of a hand-over is ours.
func (w *adopted) changed(t *testing.T, byUs func(n int32) bool) {
	t.Helper()
	stack.Eventually(t, func() error { // what is recorded comes by a watch of its own
		if values := w.seen.Values(); !slices.Equal(values, w.want) {
			return fmt.Errorf("replicas went %v, want %v", values, w.want)
		}
		return nil
	})
	values, writers := w.seen.Values(), w.seen.Writers()
	t.Logf("replicas %v, set by %q", values, writers)
	for i := range values {
		if i > 0 && byUs(values[i]) != (writers[i] == ours) {
			t.Errorf("%s has set %d replicas", writers[i], values[i])
		}
	}
}

// A ScaledObject is handed over from KEDA's own operator and back. It is one that KEDA may not scale in, so that its condition
// Paused is True before: that alone says nothing about its HPA.
func TestAdoptFromKEDA(t *testing.T) {
	w := newAdopted(t, `autoscaling.keda.sh/paused-scale-in: "true"`)
	if out := w.killer.MustRun(t, "adopt", "scaledobject", adoptable); !strings.Contains(out, "dry run, nothing was changed") || !strings.Contains(out, "selectPolicy: Disabled") {
		t.Errorf("%s", out)
	}
	w.kedaScales(t)

	// Nobody pauses it without the operator: the command goes back.
	stack.Must(t, w.operator.Signal(syscall.SIGSTOP))
	out, err := w.killer.Run(t, 0, false, "adopt", "scaledobject", adoptable, "--dry-run=false", "--timeout", "20s")
	stack.Must(t, w.operator.Signal(syscall.SIGCONT))
	if err == nil || !strings.Contains(out, "The ScaledObject chat scales again") {
		t.Errorf("%v\n%s", err, out)
	}
	w.kedaScales(t)

	began := time.Now()
	out = w.killer.MustRun(t, "adopt", "scaledobject", adoptable, "--dry-run=false")
	t.Logf("handed over in %.0f s\n%s", time.Since(began).Seconds(), out)
	w.weScale(t)
	w.on.value.Store(25)
	w.replicas(t, 5)

	// A restart of the operator does not wake the ScaledObject, and what may not be scaled in is not.
	stack.Must(t, w.operator.Kill())
	w.operator = w.again()
	w.on.value.Store(20)
	w.Stays(t, w.name, 5, 40)
	w.weScale(t)

	began = time.Now()
	w.killer.MustRun(t, "release", adoptable, "--dry-run=false")
	w.kedaScales(t)
	t.Logf("handed back in %.0f s", time.Since(began).Seconds())
	w.on.value.Store(30)
	w.replicas(t, 6)
	w.changed(t, func(n int32) bool { return n == 5 })
}

// gpupilot is killed by SIGKILL in each request of adopt and release that changes something, applied or not. KEDA wants 4
// replicas and the GPUAutoscaler 7, so that each change of the replicas says who writes: there is one for each hand-over.
func TestAdoptFromKEDAKilled(t *testing.T) {
	w := newAdopted(t, `example.com/other: a`)
	stack.Must(t, w.Apply(t.Context(), []byte(`
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: chat, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  actuation: Advise
  minReplicas: 1
  maxReplicas: 8
  signals: [{query: {promql: sum(queue_length)}, target: {value: "3"}}]
`)))
	adopt, release := []string{"adopt", "scaledobject", adoptable, "--dry-run=false", "--keep-spec"}, []string{"release", adoptable, "--dry-run=false"}
	handOver := func() { w.killer.MustRun(t, adopt...); w.weScale(t); w.replicas(t, 7) }
	back := func() { w.killer.MustRun(t, release...); w.kedaScales(t); w.replicas(t, 4) }
	// settle waits for what a run that was killed has left: one of both scales, or none.
	settle := func() {
		t.Log("killed in", w.killer.Killed())
		switch paused := w.scaledObject(t).GetAnnotations()["autoscaling.keda.sh/paused"] != ""; {
		case !paused:
			w.kedaScales(t)
			w.replicas(t, 4)
		case w.actuation(t) != v1alpha1.ActuationAdvise:
			w.replicas(t, 7)
		}
	}
	for n := 2; ; n++ {
		out, err := w.killer.Run(t, n/2, n%2 == 1, adopt...)
		if !errors.Is(err, stack.ErrKilled) {
			if err != nil || n < 8 {
				t.Fatalf("adopt in %d requests: %v\n%s", n/2, err, out)
			}
			break
		}
		settle()
		if n%4 == 1 {
			back()
		}
		handOver()
		back()
	}
	w.replicas(t, 7)
	for n := 2; ; n++ {
		out, err := w.killer.Run(t, n/2, n%2 == 1, release...)
		if !errors.Is(err, stack.ErrKilled) {
			if err != nil || n < 8 {
				t.Fatalf("release in %d requests: %v\n%s", n/2, err, out)
			}
			break
		}
		settle()
		handOver()
	}
	w.kedaScales(t)
	w.replicas(t, 4)
	w.changed(t, func(n int32) bool { return n == 7 })
	w.webhookNamesHPA(t)
}

// webhookNamesHPA checks what release expects of KEDA's webhook: it refuses a ScaledObject beside another HPA, with its name.
func (w *adopted) webhookNamesHPA(t *testing.T) {
	t.Helper()
	one := resource.MustParse("1")
	stack.Must(t, w.Client.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: stack.WorkloadNamespace, Name: "gpupilot-chat"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: w.name}, MaxReplicas: 8,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "nobody"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &one},
			}}},
		},
	}))
	stack.Eventually(t, func() error {
		so := w.scaledObject(t)
		so.SetAnnotations(map[string]string{"a": "b"})
		if err := w.Client.Update(t.Context(), so, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "gpupilot-chat") {
			return fmt.Errorf("KEDA's webhook says %w", err)
		}
		return nil
	})
}
