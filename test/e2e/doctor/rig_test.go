// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package doctor breaks what gpupilot doctor checks, each thing on a real control plane, with the controller and the
// agents as pods of it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	// namespace is that of the workloads.
	namespace   = "llm"
	gpusPerNode = 16

	controllerImage = "gpupilot-controller:e2e"
	nextAgent       = stack.AgentImage + "-next"
)

// rig is the stack that the tests of this package share. Workloads run on the nodes of the pool work, agents on those of
// work and lab. The nodes of the pool old have a dcgm-exporter each, whose page a test writes.
var rig struct {
	*stack.Stack
	api        *remote.API
	kubeconfig string // of the controller
	port       int    // of its metrics APIs
	controller remote.Controller
}

// pools are the nodes' pools.
var pools = []string{"work", "work", "lab", "old", "old", "old"}

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{
		Nodes: len(pools), GPUs: gpusPerNode, NoAgents: true, NoController: true, HPASyncPeriod: time.Second,
		Images:         map[string]string{controllerImage: "gpupilot-controller", nextAgent: "gpupilot-agent"},
		ControllerArgs: []string{"--node-health"}, // for its rights
	}, use)
}

func use(s *stack.Stack) (err error) {
	rig.Stack = s
	if rig.api, err = remote.NewAPI(s.REST); err != nil {
		return err
	}
	if rig.port, err = cluster.FreePort("127.0.0.1"); err != nil {
		return err
	}
	const account = "system:serviceaccount:" + stack.Namespace + ":" + stack.ControllerAccount
	if rig.kubeconfig, err = s.Cluster.KubeconfigFor(account, "system:serviceaccounts", "system:serviceaccounts:"+stack.Namespace); err != nil {
		return err
	}
	for i, pool := range pools {
		if err := patchNode(i, "", `{"metadata":{"labels":{"pool":"`+pool+`"}}}`); err != nil {
			return err
		}
	}
	return nil
}

func nodeName(i int) string { return rig.Nodes.NodeNames()[i] }

// patchNode is a merge patch of a node, or of its status.
func patchNode(i int, subresource, patch string) error {
	n, p := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}, client.RawPatch(types.MergePatchType, []byte(patch))
	if subresource != "" {
		return rig.Client.SubResource(subresource).Patch(context.Background(), n, p)
	}
	return rig.Client.Patch(context.Background(), n, p)
}

// service makes the metrics APIs reachable: the API server dials localhost.
const service = `{apiVersion: v1, kind: Service, metadata: {name: gpupilot-controller, namespace: gpupilot-system}, spec: {type: ExternalName, externalName: localhost}}`

// The installation: the controller as a Deployment, as the chart has it, and the agents of two GPUExporters.
const installation = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: gpupilot-controller, namespace: gpupilot-system}
spec:
  strategy: {type: Recreate}
  selector: {matchLabels: {app.kubernetes.io/name: gpupilot, app.kubernetes.io/component: controller}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: gpupilot, app.kubernetes.io/component: controller}
      annotations: {sim.gpupilot.dev/exec: image}
    spec:
      serviceAccountName: gpupilot-controller
      nodeSelector: {pool: work}
      terminationGracePeriodSeconds: 5
      containers:
      - name: controller
        image: gpupilot-controller:e2e
        args:
        - --kubeconfig=KUBECONFIG
        - --namespace=gpupilot-system
        - --address=$(POD_IP):8080
        - --secure-port=PORT
        - --service=gpupilot-controller:PORT
        - --pod-cidrs=127.0.0.0/8
        - --node-health
        readinessProbe: {httpGet: {path: /readyz, port: 8080}}
---
apiVersion: gpupilot.dev/v1alpha1
kind: GPUExporter
metadata: {name: default}
spec: {nodeSelector: {pool: work}, AGENT}
---
apiVersion: gpupilot.dev/v1alpha1
kind: GPUExporter
metadata: {name: lab}
spec: {nodeSelector: {pool: lab}, AGENT}
`

// agent is the part of a GPUExporter's spec that has simulated nodes run its pods. They share this machine's network.
const agent = `image: "` + stack.AgentImage + `", backend: sim, podAnnotations: {sim.gpupilot.dev/exec: image}, ` +
	`args: ["--address=$(POD_IP):9400", "--sim-state=$(SIM_STATE)", "--sim-gpus=16"], env: [{name: DCGM_POD_RESOURCES_KUBELET_SOCKET, value: "$(POD_RESOURCES_SOCKET)"}]`

func install(t *testing.T) {
	t.Helper()
	text := strings.NewReplacer("KUBECONFIG", rig.kubeconfig, "PORT", fmt.Sprint(rig.port), "AGENT", agent).Replace(installation)
	stack.Must(t, rig.Apply(t.Context(), []byte(service)))
	stack.Must(t, rig.Apply(t.Context(), []byte(text)))
}

// readView reads the controller's view, as gpupilot doctor does, but at the address of its pod: nothing on this machine
// forwards what is sent to a Service.
func readView(ctx context.Context, v *view.View) error {
	ready, err := controllerPods(ctx)
	if err != nil {
		return err
	}
	if len(ready) == 0 {
		return errors.New("no endpoints available for service gpupilot-controller")
	}
	if at := "http://" + ready[0].Status.PodIP + ":8080"; rig.controller.Address != at {
		rig.controller = remote.Controller{Cluster: &remote.Cluster{Kubeconfig: rig.Cluster.Kubeconfig()}, Address: at, Viewer: remote.DefaultViewer}
	}
	return rig.controller.Get(ctx, "api/v1/view", nil, v)
}

// controllerPods are the pods of the controller that are ready.
func controllerPods(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := rig.Client.List(ctx, &pods, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/component": "controller"})
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}), err
}

// random is the part of the names of GPUPilot's pods that is chosen at random.
var random = regexp.MustCompile(`(/gpupilot-(?:controller|agent-[a-z]+))-[a-z0-9-]+$`)

// look is one run of gpupilot doctor.
type look struct {
	doctor.Selection
	as  *rest.Config // nil: with all permissions
	now func() time.Time
}

// run returns CODE OBJECT of each finding, and CODE? of each check that could not run. why has their texts.
func (l *look) run(t *testing.T) (out, why []string) {
	t.Helper()
	api := rig.api
	if l.as != nil {
		var err error
		if api, err = remote.NewAPI(l.as); err != nil {
			t.Fatal(err)
		}
	}
	where := doctor.Where{API: api, Namespace: stack.Namespace, Now: time.Now, Controller: readView}
	if l.now != nil {
		where.Now = l.now
	}
	checks, err := l.Select()
	if err != nil {
		t.Fatal(err)
	}
	results := doctor.Run(checks, where.Gather(t.Context(), l.Pre))
	for i := range results {
		r := &results[i]
		if r.Status == doctor.Unknown {
			out, why = append(out, r.Code+"?"), append(why, r.Code+": "+r.Reason)
		}
		for _, f := range r.Findings {
			out = append(out, r.Code+" "+random.ReplaceAllString(f.Object, "$1"))
			why = append(why, r.Code+": "+f.Message)
		}
	}
	return out, why
}

// wants waits until the doctor finds exactly this.
func (l *look) wants(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	stack.Eventually(t, func() error {
		got, why := l.run(t)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("doctor finds %q, want %q:\n%s", got, want, strings.Join(why, "\n"))
		}
		return nil
	})
}

// object parses a manifest.
func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	stack.Must(t, yaml.Unmarshal([]byte(manifest), &o.Object))
	return o
}

// create creates an object, and its namespace if that is missing. The test's end deletes the object.
func create(t *testing.T, o client.Object) {
	t.Helper()
	if ns := o.GetNamespace(); ns != "" {
		err := rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	stack.Eventually(t, func() error { return rig.Client.Create(t.Context(), o) }) // its kind, or the namespace's account, may be made just now
	t.Cleanup(func() {
		if err := rig.Client.Delete(context.Background(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
}

// patch is a merge patch of an object. The test's end applies back.
func patch(t *testing.T, o client.Object, change, back string) {
	t.Helper()
	do := func(ctx context.Context, text string) error {
		return rig.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text)))
	}
	stack.Must(t, do(t.Context(), change))
	t.Cleanup(func() {
		if err := do(context.Background(), back); err != nil {
			t.Error(err)
		}
	})
}

// a refers to an object of a kind; without a namespace: of the cluster.
func a(t *testing.T, apiVersion, kind, ns, name string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {namespace: %q, name: %q}}", apiVersion, kind, ns, name))
}

// workload creates a Deployment of one replica with one GPU, and a GPUAutoscaler of it.
func workload(t *testing.T, name string, startup time.Duration, change func(*v1alpha1.GPUAutoscaler)) {
	t.Helper()
	d := stack.Deployment(namespace, name, 1, startup)
	d.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "work"}
	create(t, d)
	g := &v1alpha1.GPUAutoscaler{}
	stack.Must(t, yaml.Unmarshal(fmt.Appendf(nil, `{metadata: {namespace: %s, name: %s}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[2]s}, minReplicas: 1, maxReplicas: 12, `+
		`signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]}}`, namespace, name), g))
	if change != nil {
		change(g)
	}
	create(t, g)
}

// place creates a pod on a node, and returns it when it has an address. The test's end deletes it.
func place(t *testing.T, ns, name string, node int, labels map[string]string) *corev1.Pod {
	t.Helper()
	pod := newPod(ns, name, node, labels)
	create(t, pod)
	address(t, pod)
	return pod
}

func newPod(ns, name string, node int, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: nodeName(node), Containers: []corev1.Container{{
			Name: "main", Image: "main",
		}}},
	}
}

// address waits until a pod has one.
func address(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	stack.Eventually(t, func() error {
		err := rig.Client.Get(context.Background(), client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.Status.PodIP == "" {
			err = fmt.Errorf("%s has no address", pod.Name)
		}
		return err
	})
}

// exporter is a dcgm-exporter with a page of one GPU.
type exporter struct {
	node        int
	pod         *corev1.Pod
	page        *stack.Page
	energy      atomic.Int64
	frozen      atomic.Bool // nothing changes
	utilization atomic.Int64
	more        atomic.Int64           // GPUs beside the first
	holder      atomic.Pointer[string] // the name of a pod that is said to hold the GPU
}

// start starts the exporter's pod, also at the end of a test.
func (x *exporter) start(t *testing.T) {
	t.Helper()
	x.pod = newPod(stack.Namespace, "dcgm-"+nodeName(x.node), x.node, map[string]string{"app.kubernetes.io/name": "dcgm-exporter"})
	stack.Eventually(t, func() error { return rig.Client.Create(context.Background(), x.pod) }) // the last one may not have gone yet
	address(t, x.pod)
	x.serve(t)
}

// stop deletes the exporter's pod.
func (x *exporter) stop(t *testing.T) {
	t.Helper()
	_ = x.page.Close()
	stack.Must(t, rig.Client.Delete(context.Background(), x.pod, client.GracePeriodSeconds(0)))
}

func (x *exporter) serve(t *testing.T) {
	t.Helper()
	page, err := stack.ServePage(x.pod.Status.PodIP, 9400, stack.Text(x.text))
	stack.Must(t, err)
	x.page = page
}

func (x *exporter) text() string {
	if !x.frozen.Load() {
		x.energy.Add(100_000)
	}
	var page strings.Builder
	for i := range 1 + x.more.Load() {
		labels := fmt.Sprintf(`gpu="%d",UUID="GPU-old-%d-%[1]d",device="nvidia%[1]d",modelName="NVIDIA L4"`, i, x.node)
		if p := x.holder.Load(); p != nil {
			labels += fmt.Sprintf(`,container="server",namespace=%q,pod=%q`, namespace, *p)
		}
		fmt.Fprintf(&page, "DCGM_FI_DEV_GPU_UTIL{%[1]s} %[2]d\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{%[1]s} %[3]d\n", labels, x.utilization.Load(), x.energy.Load())
	}
	return page.String()
}
