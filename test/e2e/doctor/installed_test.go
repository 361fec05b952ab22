// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package doctor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/stack"
)

// oldNodes are the nodes of the pool old, and old their exporters.
var (
	oldNodes = []int{3, 4, 5}
	old      []*exporter
)

// workloads are a Deployment and a GPUAutoscaler each.
var workloads = []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}

// manifests creates an object for each manifest.
func manifests(want string, all ...string) breakage {
	return breakage{[]string{want}, func(t *testing.T) {
		for _, m := range all {
			create(t, object(t, m))
		}
	}}
}

// foreign are objects of a kind of another project.
func foreign(want string, kind schema.GroupVersionKind, manifest string) breakage {
	return breakage{[]string{want}, func(t *testing.T) {
		stack.Must(t, rig.InstallKind(t.Context(), kind))
		create(t, object(t, manifest))
	}}
}

// spec changes the spec of a workload's GPUAutoscaler.
func spec(code, name string, change func(*v1alpha1.GPUAutoscalerSpec)) breakage {
	return breakage{[]string{code + " GPUAutoscaler llm/" + name}, func(t *testing.T) { changeSpec(t, name, change) }}
}

func changeSpec(t *testing.T, name string, change func(*v1alpha1.GPUAutoscalerSpec)) {
	t.Helper()
	g := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	var was v1alpha1.GPUAutoscalerSpec
	update(t, g, func() { was = *g.Spec.DeepCopy(); change(&g.Spec) }, func() { g.Spec = was })
}

// pod changes the pods of a workload.
func pod(code, name string, change func(*corev1.PodSpec)) breakage {
	return breakage{[]string{code + " Deployment llm/" + name}, func(t *testing.T) {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		var was corev1.PodSpec
		update(t, d, func() { was = *d.Spec.Template.Spec.DeepCopy(); change(&d.Spec.Template.Spec) }, func() { d.Spec.Template.Spec = was })
	}}
}

// update changes an object, and back at the test's end.
func update(t *testing.T, o client.Object, change, back func()) {
	t.Helper()
	do := func(ctx context.Context, f func()) error {
		return stack.Await(ctx, stack.Patience, func() error { // until nobody else has written it meanwhile
			if err := rig.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			f()
			return rig.Client.Update(ctx, o)
		})
	}
	stack.Must(t, do(t.Context(), change))
	t.Cleanup(func() {
		if err := do(context.Background(), back); err != nil {
			t.Error(err)
		}
	})
}

func in(d time.Duration) metav1.Time { return metav1.Time{Time: time.Now().Add(d)} }

// schedule is one of an hour that begins in d.
func schedule(name string, d time.Duration) v1alpha1.Schedule {
	start := time.Now().UTC().Add(d)
	return v1alpha1.Schedule{Name: name, Start: start.Format("15:04"), End: start.Add(time.Hour).Format("15:04"), MinReplicas: new(int32(2))}
}

const target = `scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: `

func scaler(name, of, signals string) string {
	return `{apiVersion: gpupilot.dev/v1alpha1, kind: GPUAutoscaler, metadata: {namespace: llm, name: ` + name + `}, spec: {` + target + of + `}, maxReplicas: 2, signals: [` + signals + `]}}`
}

const utilization = `{gpu: {metric: Utilization}, target: {value: "60"}}`

// installed is what is broken while GPUPilot runs.
var installed = []together{
	{ // alone
		manifests("GP401 GPUAutoscaler llm/a", `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {namespace: llm, name: other}, spec: {`+target+`a}, maxReplicas: 2, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 90}}}]}}`),
	},
	{ // alone: a preset whose port does not answer
		manifests("GP406 GPUAutoscaler llm/silent", deployment("silent", "work"), scaler("silent", "silent", "{preset: vllm}")),
	},
	{ // takes half a minute: a lost GPU, and the start of slow
		foreign("GP402 GPUAutoscaler llm/a", schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}, `{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {namespace: llm, name: other}, spec: {scaleTargetRef: {name: a}, triggers: [{type: cron}]}}`),
		foreign("GP403 GPUAutoscaler llm/b", schema.GroupVersionKind{Group: "autoscaling.k8s.io", Version: "v1", Kind: "VerticalPodAutoscaler"}, `{apiVersion: autoscaling.k8s.io/v1, kind: VerticalPodAutoscaler, metadata: {namespace: llm, name: other}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: b}, updatePolicy: {updateMode: Recreate}}}`),
		manifests("GP404 GPUAutoscaler llm/second", scaler("second", "c", utilization)),
		manifests("GP405 GPUAutoscaler llm/lost", scaler("lost", "lost", utilization)),
		manifests("GP406 GPUAutoscaler llm/unknown", deployment("unknown", "work"), scaler("unknown", "unknown", `{query: {promql: "sum(no_such_metric)"}, target: {value: "1"}}`)),
		manifests("GP407 GPUAutoscaler llm/homeless", deployment("homeless", "nowhere"), scaler("homeless", "homeless", utilization)),
		spec("GP408", "d", func(s *v1alpha1.GPUAutoscalerSpec) { s.MaxReplicas = 1000 }),
		spec("GP409", "e", func(s *v1alpha1.GPUAutoscalerSpec) { s.Signals[0].Target.Value.Set(100) }),
		pod("GP411", "f", func(s *corev1.PodSpec) { s.Containers[0].ReadinessProbe = nil }),
		pod("GP412", "g", func(s *corev1.PodSpec) {
			s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}),
		manifests("GP413 Deployment llm/h", `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {namespace: llm, name: h}, spec: {maxUnavailable: 0, selector: {matchLabels: {app: h}}}}`),
		spec("GP414", "i", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.MinReplicas, s.Override = new(int32(4)), &v1alpha1.Override{Replicas: new(int32(2)), Until: in(4 * time.Hour), Reason: "incident 4711"}
		}),
		spec("GP415", "j", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.Behavior = &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: new(int32(0))}} // else it would hold them for 5 min, too
			s.Override = &v1alpha1.Override{Replicas: new(int32(3)), Until: in(50 * time.Minute), Reason: "incident 4711"}
		}),
		{[]string{"GP204 Node gpu-node-1"}, func(t *testing.T) { // its agent says so, too, and the lost GPU has no values
			gpus(t, 1, sim.GPUState{Lost: true}, sim.GPUState{XIDs: []sim.XID{{Code: 79, Count: 1}}})
		}},
		{[]string{"GP205 image " + nextAgent}, func(t *testing.T) {
			patch(t, a(t, "gpupilot.dev/v1alpha1", "GPUExporter", "", "lab"), `{"spec":{"image":"`+nextAgent+`"}}`, `{"spec":{"image":"`+stack.AgentImage+`"}}`)
		}},
		{[]string{"GP206 GPUExporter default"}, func(t *testing.T) {
			patch(t, a(t, "gpupilot.dev/v1alpha1", "GPUExporter", "", "default"), `{"spec":{"collectors":{"csv":"DCGM_FI_DEV_NOPE, gauge, x\n"}}}`, `{"spec":{"collectors":null}}`)
		}},
		{[]string{"GP201 Node gpu-node-3"}, func(t *testing.T) { old[0].stop(t); t.Cleanup(func() { old[0].start(t) }) }},
		{[]string{"GP302 dcgm-exporter dcgm-exporter/gpupilot-system/dcgm-gpu-node-4"}, func(t *testing.T) { // it says that a pod without GPUs holds one
			old[1].holder.Store(&place(t, namespace, "without", 4, nil).Name)
			t.Cleanup(func() { old[1].holder.Store(nil) })
		}},
		{[]string{"GP305 dcgm-exporter dcgm-exporter/gpupilot-system/dcgm-gpu-node-5"}, func(t *testing.T) {
			old[2].utilization.Store(4711)
			t.Cleanup(func() { old[2].utilization.Store(0) })
		}},
		spec("GP410", "slow", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.Behavior = &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: new(int32(5))}}
		}),
	},
	{
		{[]string{"GP503 ValidatingAdmissionPolicy gpupilot-controller-pods"}, func(t *testing.T) {
			patch(t, a(t, "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", "gpupilot-controller-pods"), `{"spec":{"failurePolicy":"Ignore"}}`, `{"spec":{"failurePolicy":"Fail"}}`)
		}},
		{[]string{"GP506 ClusterRole gpupilot-controller:scale"}, func(t *testing.T) {
			patch(t, a(t, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "gpupilot-controller:scale"), `{"subjects":[]}`,
				`{"subjects":[{"kind":"ServiceAccount","name":"gpupilot-controller","namespace":"gpupilot-system"}]}`)
		}},
		spec("GP416", "a", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.Schedules = []v1alpha1.Schedule{{Name: "same", Start: "08:00", End: "18:00", MaxReplicas: &s.MaxReplicas}}
		}),
		spec("GP416", "b", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.Override = &v1alpha1.Override{Replicas: new(int32(2)), Until: in(31 * 24 * time.Hour), Reason: "incident 4711"}
		}),
		spec("GP417", "c", func(s *v1alpha1.GPUAutoscalerSpec) {
			late := schedule("late", 6*time.Hour)
			late.LeadTime = new(intstr.FromInt32(60))
			s.Startup, s.Schedules = &v1alpha1.Startup{ExpectedSeconds: new(int32(600))}, []v1alpha1.Schedule{late}
		}),
		spec("GP419", "d", func(s *v1alpha1.GPUAutoscalerSpec) { s.Actuation = v1alpha1.ActuationHPA }), // which this controller may not write
		{[]string{"GP203 Node gpu-node-2"}, func(t *testing.T) { // no driver
			patch(t, a(t, "gpupilot.dev/v1alpha1", "GPUExporter", "", "lab"), `{"spec":{"backend":"nvml","args":["--address=$(POD_IP):9400","--nvml-library=/driver-root/libnvidia-ml.so.1"]}}`,
				`{"spec":{"backend":"sim","args":["--address=$(POD_IP):9400","--sim-state=$(SIM_STATE)","--sim-gpus=16"]}}`)
		}},
		{[]string{"GP301 dcgm-exporter dcgm-exporter/gpupilot-system/dcgm-gpu-node-3"}, func(t *testing.T) {
			stack.Must(t, old[0].page.Close())
			t.Cleanup(func() { old[0].serve(t) })
		}},
		{[]string{"GP304 dcgm-exporter dcgm-exporter/gpupilot-system/dcgm-gpu-node-4"}, func(t *testing.T) {
			old[1].frozen.Store(true)
			t.Cleanup(func() { old[1].frozen.Store(false) })
		}},
		{[]string{"GP303 dcgm-exporter dcgm-exporter/gpupilot-system/dcgm-gpu-node-5"}, func(t *testing.T) { // more GPUs than the controller keeps of one exporter
			old[2].more.Store(series.MaxDevices)
			t.Cleanup(func() { // it counts as limited for a minute more, and its GPUs as stale for five, unless it is another one
				old[2].more.Store(0)
				old[2].stop(t)
				old[2].start(t)
			})
		}},
		{[]string{"GP307 Node gpu-node-0"}, func(t *testing.T) { // a GPU that gives no utilisation
			gpus(t, 0, sim.GPUState{Fields: map[string]*float64{"DCGM_FI_DEV_GPU_UTIL": nil}})
		}},
	},
	{
		manifests("GP504 ClusterRoleBinding oops", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: oops}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: ServiceAccount, namespace: gpupilot-system, name: gpupilot-controller}]}`), // not beside GP419: the controller would have its right
		{[]string{"GP202 Node gpu-node-2"}, func(t *testing.T) {
			create(t, object(t, `{apiVersion: gpupilot.dev/v1alpha1, kind: GPUExporter, metadata: {name: twice}, spec: {nodeSelector: {kubernetes.io/hostname: gpu-node-2}, `+agent+`}}`))
		}},
		{[]string{"GP306 Node gpu-node-0"}, func(t *testing.T) {
			x := &exporter{node: 0}
			x.start(t)
			t.Cleanup(func() { x.stop(t) })
		}},
	},
	{
		{[]string{"GP203 Node gpu-node-2"}, func(t *testing.T) { // the agent crashes
			p := podNamed(t, "gpupilot.dev/exporter=lab")
			stack.Must(t, rig.Nodes.Kill(p.Namespace, p.Name))
			t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), p) })
		}},
		{[]string{"GP502 APIService v1beta1.custom.metrics.k8s.io", "GP502 APIService v1beta2.custom.metrics.k8s.io"}, func(t *testing.T) {
			patch(t, a(t, "v1", "Service", stack.Namespace, "gpupilot-controller"), `{"spec":{"externalName":"nowhere.invalid"}}`, `{"spec":{"externalName":"localhost"}}`)
		}},
		{[]string{"GP602 Pod gpupilot-system/gpupilot-controller"}, func(t *testing.T) { outOfMemory(t, podNamed(t, "app.kubernetes.io/component=controller")) }},
	},
	{
		controller("GP501 Pod gpupilot-system/gpupilot-controller", func(d *appsv1.Deployment) {
			c := &d.Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "--page-auth", "none")
		}),
		// After the Deployment, so that it is mended before: a controller reads the Secret when it starts, and once a minute.
		{[]string{"GP505 APIService v1beta1.custom.metrics.k8s.io", "GP505 APIService v1beta2.custom.metrics.k8s.io"}, foreignCertificate},
		{[]string{"GP602 Pod gpupilot-system/gpupilot-agent-lab"}, func(t *testing.T) { outOfMemory(t, podNamed(t, "gpupilot.dev/exporter=lab")) }},
	},
	{controller("GP603 Lease gpupilot-system/gpupilot-controller", func(d *appsv1.Deployment) {
		c := &d.Spec.Template.Spec.Containers[0]
		c.Args = append(c.Args, "--roles=scrape,api,query")
	})},
	{
		controller("GP601 controller", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(0)) }),
		{[]string{
			"GP202?", "GP203?", "GP206?", "GP301?", "GP302?", "GP303?", "GP304?", "GP305?", "GP307?", "GP308?",
			"GP405?", "GP406?", "GP407?", "GP410?", "GP414?", "GP415?", "GP419?", "GP501?", "GP502?", "GP506?", "GP603?",
		}, func(*testing.T) {}},
	},
}

// deployment is a workload of one replica on the nodes of a pool, which the test that creates it does not scale.
func deployment(name, pool string) string {
	d := stack.Deployment(namespace, name, 1, 0)
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	d.Spec.Template.Spec.NodeSelector = map[string]string{"pool": pool}
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // a Deployment can be encoded
	}
	return string(b)
}

// controller changes the controller's Deployment.
func controller(want string, change func(*appsv1.Deployment)) breakage {
	return breakage{[]string{want}, func(t *testing.T) {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-controller"}}
		var was appsv1.DeploymentSpec
		update(t, d, func() { was = *d.Spec.DeepCopy(); change(d) }, func() { d.Spec = was })
	}}
}

// gpus sets the last GPUs of a node, which no pod holds, until the test ends. Its agent starts again then: what it has
// said about errors stays as long as it runs.
func gpus(t *testing.T, node int, last ...sim.GPUState) {
	t.Helper()
	write := func(last ...sim.GPUState) {
		all := make([]sim.GPUState, gpusPerNode-len(last), gpusPerNode)
		for i := range all {
			all[i] = sim.Busy(0, 0)
		}
		stack.Must(t, sim.WriteState(rig.Nodes.StateFile(nodeName(node)), sim.State{GPUs: append(all, last...)}))
	}
	write(last...)
	t.Cleanup(func() {
		write()
		stack.Must(t, rig.Client.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace(stack.Namespace),
			client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"}, client.MatchingFields{"spec.nodeName": nodeName(node)}))
	})
}

// podNamed is the pod of GPUPilot with a label.
func podNamed(t *testing.T, selector string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	key, value, _ := strings.Cut(selector, "=")
	stack.Eventually(t, func() error { // until the last one has gone
		err := rig.Client.List(t.Context(), &pods, client.InNamespace(stack.Namespace), client.MatchingLabels{key: value})
		if err == nil && (len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil) {
			err = fmt.Errorf("%d pods have the label %s", len(pods.Items), selector)
		}
		return err
	})
	return &pods.Items[0]
}

// outOfMemory has the status of a pod say what the kubelet says after the kernel has killed its container.
func outOfMemory(t *testing.T, p *corev1.Pod) {
	t.Helper()
	set := func(last string) error {
		body := fmt.Appendf(nil, `{"status":{"containerStatuses":[{"name":%q,"lastState":{"terminated":%s}}]}}`, p.Spec.Containers[0].Name, last)
		return client.IgnoreNotFound(rig.Client.Status().Patch(context.Background(), p, client.RawPatch(types.StrategicMergePatchType, body)))
	}
	stack.Must(t, set(`{"reason":"OOMKilled","exitCode":137,"finishedAt":"2026-11-24T12:00:00Z"}`))
	t.Cleanup(func() { stack.Must(t, set("null")) })
}

// foreignCertificate has another program, such as cert-manager, keep the controller's certificate, and stop renewing it
// three days before its authority ends.
func foreignCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	stack.Must(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "issuer"}, DNSNames: []string{"gpupilot-controller.gpupilot-system.svc"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(3 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	stack.Must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	stack.Must(t, err)
	leaf, private := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-controller-tls"}}
	var was map[string][]byte
	update(t, s, func() {
		was, s.Data = s.Data, map[string][]byte{"ca.crt": leaf, corev1.TLSCertKey: leaf, corev1.TLSPrivateKeyKey: private}
	}, func() { s.Data = was })
}

// slow is a workload whose replica starts for half a minute, while other things are broken.
func slow(t *testing.T) { t.Helper(); workload(t, "slow", 31*time.Second, nil) }

// skippedHour is GP418: the doctor looks on a day before the clock goes forward.
func skippedHour(t *testing.T) {
	t.Helper()
	before := &look{now: func() time.Time { return time.Date(2026, 3, 26, 12, 0, 0, 0, time.UTC) }}
	t.Run("GP418", func(t *testing.T) {
		changeSpec(t, "a", func(s *v1alpha1.GPUAutoscalerSpec) {
			s.Schedules = []v1alpha1.Schedule{{Name: "night", TimeZone: "Europe/Berlin", Start: "02:10", End: "02:50", MinReplicas: new(int32(2))}}
		})
		before.wants(t, "GP418 GPUAutoscaler llm/a")
	})
	before.wants(t)
}
