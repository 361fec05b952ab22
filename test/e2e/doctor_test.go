// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/serve/doctor"
	"github.com/gpupilot/gpupilot/internal/serve/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/scalerig"
	"github.com/gpupilot/gpupilot/test/stack"
)

// failedChecks are the codes of the checks that do not pass, with a question mark those that
// could not run. now is the doctor's clock.
func failedChecks(t *testing.T, s doctor.Selection, now func() time.Time) string {
	t.Helper()
	api, err := remote.NewAPI(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	controller := remote.Controller{Cluster: &remote.Cluster{}, Address: rig.ControllerURL}
	where := doctor.Where{API: api, Namespace: stack.Namespace, Now: now, Controller: func(ctx context.Context, v *view.View) error {
		return controller.Get(ctx, "api/v1/view", nil, v)
	}}
	checks, err := s.Select()
	if err != nil {
		t.Fatal(err)
	}
	results := doctor.Run(checks, where.Gather(t.Context(), s.Pre))
	var out []string
	for i := range results {
		switch r := &results[i]; r.Status {
		case doctor.Failed:
			out = append(out, r.Code)
			t.Logf("%s: %+v", r.Code, r.Findings)
		case doctor.Unknown:
			out = append(out, r.Code+"?")
			t.Logf("%s: %s", r.Code, r.Reason)
		}
	}
	return strings.Join(out, " ")
}

// wantFailed waits until exactly these checks fail.
func wantFailed(t *testing.T, what, want string, s doctor.Selection) {
	t.Helper()
	wantFailedAt(t, what, want, s, time.Now)
}

func wantFailedAt(t *testing.T, what, want string, s doctor.Selection, now func() time.Time) {
	t.Helper()
	err := stack.Eventually(t.Context(), 30*time.Second, func() error {
		if got := failedChecks(t, s, now); got != want {
			return fmt.Errorf("%q fail, want %q", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// with creates objects, calls do, and deletes them.
func with(t *testing.T, manifest string, do func()) {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &o.Object); err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rig.Client.Delete(context.Background(), o, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	}()
	do()
}

// On a healthy control plane nothing fails, and what is broken fails with its own code only.
func TestDoctor(t *testing.T) {
	const name = "updown"
	rig.Deploy(t, name, 1, 0)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) { a.Spec.Behavior = nil })
	all := doctor.Selection{}
	wantFailed(t, "healthy", "", all)
	wantFailed(t, "healthy, before an installation", "", doctor.Selection{Pre: true})

	broken := func(code, manifest string) {
		t.Helper()
		with(t, manifest, func() { wantFailed(t, code, code, all) })
		wantFailed(t, "after "+code, "", all)
	}
	broken("GP401", `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {namespace: llm, name: other}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: updown}, maxReplicas: 2, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 90}}}]}}`)
	broken("GP413", `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {namespace: llm, name: b}, spec: {maxUnavailable: 0, selector: {matchLabels: {app: updown}}}}`)
	broken("GP504", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: oops}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, namespace: gpupilot-system, name: gpupilot-controller}]}`)
	broken("GP405", `{apiVersion: gpupilot.dev/v1alpha1, kind: GPUAutoscaler, metadata: {namespace: llm, name: lost}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: lost}, maxReplicas: 2, signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]}}`)
	var nodes corev1.NodeList
	if err := rig.Client.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	broken("GP306", `{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: dcgm, labels: {app.kubernetes.io/name: dcgm-exporter}}, spec: {schedulerName: none, nodeName: `+nodes.Items[0].Name+`, containers: [{name: c, image: dcgm-exporter}]}}`)

	change := func(code string, o client.Object, change, back func()) {
		t.Helper()
		for _, f := range []struct {
			do   func()
			want string
		}{{change, code}, {back, ""}} {
			scalerig.Eventually(t, func() error {
				if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					return err
				}
				f.do()
				return rig.Client.Update(t.Context(), o)
			})
			wantFailed(t, code, f.want, all)
		}
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	var probe *corev1.Probe
	container := func() *corev1.Container { return &d.Spec.Template.Spec.Containers[0] }
	change("GP411", d, func() { probe, container().ReadinessProbe = container().ReadinessProbe, nil }, func() { container().ReadinessProbe = probe })
	change("GP412", d, func() {
		container().Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
	}, func() { container().Lifecycle = nil })
	a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	change("GP408", a, func() { a.Spec.MaxReplicas = 1000 }, func() { a.Spec.MaxReplicas = 12 })
	bounded := func(code string, spec func(*v1alpha1.GPUAutoscalerSpec)) {
		t.Helper()
		var was v1alpha1.GPUAutoscalerSpec
		change(code, a, func() { was = *a.Spec.DeepCopy(); spec(&a.Spec) }, func() { a.Spec = was })
	}
	four, two, six := int32(4), int32(2), int32(6)
	in := func(d time.Duration) metav1.Time { return metav1.Time{Time: time.Now().Add(d)} }
	bounded("GP414", func(s *v1alpha1.GPUAutoscalerSpec) {
		s.MinReplicas, s.Override = &four, &v1alpha1.Override{Replicas: &two, Until: in(4 * time.Hour), Reason: "incident 4711"}
	})
	bounded("GP415", func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Behavior = &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: new(int32(0))}} // else it would hold them for 5 min, too
		s.Override = &v1alpha1.Override{Replicas: &six, Until: in(50 * time.Minute), Reason: "incident 4711"}
	})
	bounded("GP416", func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Schedules = []v1alpha1.Schedule{{Name: "same", Start: "08:00", End: "18:00", MaxReplicas: &s.MaxReplicas}}
	})
	bounded("GP416", func(s *v1alpha1.GPUAutoscalerSpec) {
		s.Override = &v1alpha1.Override{Replicas: &two, Until: in(31 * 24 * time.Hour), Reason: "incident 4711"}
	})
	bounded("GP417", func(s *v1alpha1.GPUAutoscalerSpec) {
		start, lead, seconds := time.Now().UTC().Add(6*time.Hour), intstr.FromInt32(60), int32(600)
		s.Startup = &v1alpha1.Startup{ExpectedSeconds: &seconds}
		s.Schedules = []v1alpha1.Schedule{{Name: "late", Start: start.Format("15:04"), End: start.Add(time.Hour).Format("15:04"), MinReplicas: &two, LeadTime: &lead}}
	})
	change("", a, func() {
		a.Spec.Schedules = []v1alpha1.Schedule{{Name: "night", TimeZone: "Europe/Berlin", Start: "02:10", End: "02:50", MinReplicas: &two}}
	}, func() {
		wantFailedAt(t, "GP418", "GP418", all, func() time.Time { return time.Date(2026, 3, 26, 12, 0, 0, 0, time.UTC) })
		a.Spec.Schedules = nil
	})
	bounded("GP419", func(s *v1alpha1.GPUAutoscalerSpec) { s.Actuation = v1alpha1.ActuationHPA }) // which this controller may not write
	p := &unstructured.Unstructured{}
	p.SetAPIVersion("admissionregistration.k8s.io/v1")
	p.SetKind("ValidatingAdmissionPolicy")
	p.SetName("gpupilot-controller-pods")
	failure := func(to string) func() {
		return func() {
			if err := unstructured.SetNestedField(p.Object, to, "spec", "failurePolicy"); err != nil {
				t.Fatal(err)
			}
		}
	}
	change("GP503", p, failure("Ignore"), failure("Fail"))
}
