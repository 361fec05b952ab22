// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/e2e/realnode"
)

// nodeLease is the kubelet's, some seconds after its start.
const nodeLease = "coordination.k8s.io/Lease kube-node-lease/" + nodeName

var (
	controllerPods = client.MatchingLabels{"app.kubernetes.io/name": "gpupilot", "app.kubernetes.io/component": "controller"}
	agentPods      = client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"}
)

// demo is a workload of one GPU a replica, and demoScaler its autoscaler: any load of the GPUs asks for all replicas.
const (
	demoReplicas = 3

	demo = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat, namespace: demo}
spec:
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        image: ` + realnode.PayloadImage + `
        imagePullPolicy: Never
        resources: {limits: {nvidia.com/gpu: 1}}
`
	demoScaler = `
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: chat, namespace: demo}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}
  minReplicas: 1
  maxReplicas: 3
  signals:
  - gpu: {metric: Utilization}
    target: {value: "1"}
`
)

// The values of the installation and of the upgrade, which has other collectors and another image of the controller.
const (
	installed = `
gpuExporter: {spec: {backend: sim}}
rules:
  custom:
  - seriesQuery: DCGM_FI_DEV_GPU_UTIL{namespace!="",pod!=""}
    resources: {template: <<.Resource>>}
    name: {as: adapted}
    metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
ruleFiles:
  team.yaml: {groups: [{name: team, rules: [{record: recorded, expr: "avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL)"}]}]}
`
	upgraded = `
image: {tag: ` + newTag + `}
gpuExporter:
  spec:
    backend: sim
    collectors:
      csv: |
        DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).
        DCGM_FI_DEV_MEMORY_TEMP, gauge, Memory temperature (in C).
`
)

// serviceIP is the address of the controller's Service for the pod of helm test. No DNS and no kube-proxy are here.
const serviceIP = "198.51.100.10"

// withServiceIP gives that pod the address of the Service's name.
type withServiceIP struct{}

// Run is Helm's post-renderer.
func (withServiceIP) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	const field = "\n  restartPolicy: Never\n" // no other pod has it
	alias := field + "  hostAliases: [{ip: " + serviceIP + ", hostnames: [gpupilot-controller." + namespace + "]}]\n"
	return bytes.NewBuffer(bytes.Replace(rendered.Bytes(), []byte(field), []byte(alias), 1)), nil
}

// TestInstallOnNode is the test stage, in the node's namespaces: the pages' commands, then install, scale, upgrade, uninstall.
func TestInstallOnNode(t *testing.T) {
	if realnode.CurrentStage() != realnode.StageTest {
		t.Skip("TestInstallNode runs it on a node")
	}
	s := newSite(t)
	s.eventually("the cluster has settled", func() (err error) {
		if s.before, err = takeInventory(s.ctx, s.REST); err != nil {
			return err
		}
		return s.before.settled()
	})
	labels := s.nodeLabels()
	s.pages()
	s.importImages()
	must(t, s.Apply(s.ctx, []byte(demo)))
	s.eventually("the demo runs", func() error { return s.podsReady(1, "demo", nil) })

	s.install()
	s.upgrade()
	s.uninstall()
	s.run("kubectl label nodes --all gpupilot.dev/gpu-")
	if diff := cmp.Diff(labels, s.nodeLabels()); diff != "" {
		t.Errorf("the node's labels (-before +after):\n%s", diff)
	}
}

// install installs the chart and waits for the first metric, the first scale and all pods.
func (s *site) install() {
	s.t.Helper()
	began := time.Now()
	must(s.t, s.helm.install(s.ctx, values(s.t, installed)))
	s.log("helm install has returned")
	must(s.t, s.Apply(s.ctx, []byte(demoScaler)))
	s.eventually("custom.metrics.k8s.io has the demo's metric", func() error {
		_, err := s.metricTimes("DCGM_FI_DEV_GPU_UTIL")
		return err
	})
	metric := time.Since(began)
	s.eventually("the demo scales", func() error {
		if n := s.demo().Spec.Replicas; *n != demoReplicas {
			return fmt.Errorf("it has %d replicas", *n)
		}
		return nil
	})
	scale := time.Since(began)
	s.eventually("the agent is ready", func() error { return s.podsReady(1, namespace, agentPods) })
	s.eventually("the controllers are ready", func() error { return s.podsReady(2, namespace, controllerPods) })
	s.eventually("the demo's new replicas run", func() error { return s.podsReady(demoReplicas, "demo", nil) })
	s.log("from helm install to the first GPU metric %.1f s, to the first scale %.1f s, to all pods %.1f s",
		metric.Seconds(), scale.Seconds(), time.Since(began).Seconds())
	for _, name := range []string{"adapted", "recorded"} {
		s.eventually("the chart's rules give the demo's pods the metric "+name, func() error {
			_, err := s.metricTimes(name)
			return err
		})
	}
	must(s.t, realnode.ServeClusterIP(s.ctx, serviceIP, "8080", s.pods(controllerPods)[0].Status.PodIP+":8080"))
	must(s.t, s.helm.test())
	s.log("helm test has succeeded")
}

// upgrade upgrades to another controller image and other collectors. No agent restarts, nothing scales, and decisions go
// on.
func (s *site) upgrade() {
	s.t.Helper()
	agent, demo := s.onlyPod(agentPods), s.demo()
	ticks := s.watchTicks()
	ticks.await("the leader decides")
	must(s.t, s.helm.upgrade(s.ctx, values(s.t, upgraded)))
	s.log("helm upgrade has returned")
	s.eventually("the new controllers are ready", func() error {
		if err := s.podsReady(2, namespace, controllerPods); err != nil {
			return err
		}
		for _, p := range s.pods(controllerPods) {
			if image := p.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+newTag) {
				return fmt.Errorf("%s has the image %s", p.Name, image)
			}
		}
		return nil
	})
	s.eventually("the agent has the new collectors", func() error {
		body, err := fetch(s.ctx, "http://"+agent.Status.PodIP+":9400/metrics", "")
		if err == nil && (strings.Contains(body, "DCGM_FI_DEV_SM_CLOCK") || !strings.Contains(body, "DCGM_FI_DEV_MEMORY_TEMP")) {
			err = errors.New("it has the old ones")
		}
		return err
	})
	ticks.await("the new leader decides")
	ticks.check()
	after := s.onlyPod(agentPods)
	if after.UID != agent.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		s.t.Errorf("the upgrade restarted the agent: %s, and now %s with %d restarts", agent.Name, after.Name, after.Status.ContainerStatuses[0].RestartCount)
	}
	if now := s.demo(); now.Generation != demo.Generation {
		s.t.Errorf("the upgrade changed the demo: generation %d, and now %d with %d replicas", demo.Generation, now.Generation, *now.Spec.Replicas)
	}
	if _, err := s.metricTimes("DCGM_FI_DEV_GPU_UTIL"); err != nil {
		s.t.Errorf("custom metrics after the upgrade: %v", err)
	}
}

// uninstall follows docs/upgrade.md#uninstall. Nothing is left but the demo's replicas, until the demo is deleted.
func (s *site) uninstall() {
	s.t.Helper()
	must(s.t, s.helm.uninstall())
	s.log("helm uninstall has returned")
	if n := *s.demo().Spec.Replicas; n != demoReplicas {
		s.t.Errorf("the uninstallation left the demo with %d replicas, want %d", n, demoReplicas)
	}
	for _, name := range crdNames {
		crd := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
		crd.Name = name
		must(s.t, s.Client.Delete(s.ctx, crd))
	}
	for _, name := range []string{namespace, "demo"} {
		must(s.t, s.Client.Delete(s.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	s.eventually("nothing is left", func() error { return leftSince(s.ctx, s.REST, s.before, nodeLease) })
}

func (s *site) nodeLabels() map[string]string {
	s.t.Helper()
	var node corev1.Node
	must(s.t, s.Client.Get(s.ctx, client.ObjectKey{Name: nodeName}, &node))
	return node.Labels
}

func (s *site) demo() *appsv1.Deployment {
	s.t.Helper()
	var d appsv1.Deployment
	must(s.t, s.Client.Get(s.ctx, client.ObjectKey{Namespace: "demo", Name: "chat"}, &d))
	return &d
}

// pods are the release's pods with the labels.
func (s *site) pods(labels client.MatchingLabels) []corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	must(s.t, s.Client.List(s.ctx, &pods, client.InNamespace(namespace), labels))
	return pods.Items
}

func (s *site) onlyPod(labels client.MatchingLabels) *corev1.Pod {
	s.t.Helper()
	pods := s.pods(labels)
	if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
		s.t.Fatalf("%d pods %v, want one", len(pods), labels)
	}
	return &pods[0]
}

// metricTimes asks for a metric of the demo's pods, as kubectl get --raw does, and returns when it was measured.
func (s *site) metricTimes(name string) ([]time.Time, error) {
	clients, err := kubernetes.NewForConfig(s.REST)
	if err != nil {
		return nil, err
	}
	body, err := clients.RESTClient().Get().AbsPath("/apis/custom.metrics.k8s.io/v1beta2/namespaces/demo/pods/*/" + name).DoRaw(s.ctx)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Timestamp time.Time `json:"timestamp"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod has a value: %s", body)
	}
	var times []time.Time
	for _, item := range list.Items {
		times = append(times, item.Timestamp)
	}
	return slices.SortedFunc(slices.Values(times), time.Time.Compare), nil
}
