// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/simnode"
)

// agentPort is the agent's port, which is that of dcgm-exporter.
const agentPort = 9400

// NoAgentLabel keeps the agent off a node, so that a test can serve the exposition of an
// exporter on that node.
const NoAgentLabel = "sim.gpupilot.dev/no-agent"

// agents is the agents' DaemonSet. simnode runs its pods as real processes.
const agents = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: gpupilot-agent, namespace: ` + Namespace + `}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: gpupilot-agent}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: gpupilot-agent}
      annotations: {` + simnode.ExecAnnotation + `: agent}
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms: [{matchExpressions: [{key: ` + NoAgentLabel + `, operator: DoesNotExist}]}]
      containers:
      - name: agent
        image: gpupilot-agent
        ports: [{name: metrics, containerPort: 9400}]
`

// Load is the load of a simulated workload, which a test changes. It starts at zero.
type Load struct{ bits atomic.Uint64 }

// Set sets the load.
func (l *Load) Set(x float64) { l.bits.Store(math.Float64bits(x)) }

// At returns the load, whatever the time is: see simnode.Workload.
func (l *Load) At(time.Time) float64 { return math.Float64frombits(l.bits.Load()) }

// Deployment is a workload of one GPU a replica: it serves a share of the
// simulated workload of the same name, once it has started up.
func Deployment(namespace, name string, replicas int32, startup time.Duration) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	grace := int64(1)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
					simnode.WorkloadAnnotation: name, simnode.StartupAnnotation: startup.String(),
				}},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{
						Name: "server", Image: "inference-server",
						Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: simnode.MetricsPort}},
						// The simulated kubelet does not probe it: a pod is ready after its start-up.
						ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}},
						Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
							simnode.GPUResource: *resource.NewQuantity(1, resource.DecimalSI),
						}},
					}},
				},
			},
		},
	}
}

// Replicas is spec.replicas of a Deployment.
func (s *Stack) Replicas(ctx context.Context, namespace, name string) (int32, error) {
	var d appsv1.Deployment
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &d); err != nil {
		return 0, err
	}
	return *d.Spec.Replicas, nil
}

// ReadyPods are the names of the pods that are Ready and not being deleted.
func (s *Stack) ReadyPods(ctx context.Context, namespace string, opts ...client.ListOption) ([]string, error) {
	var pods corev1.PodList
	if err := s.Client.List(ctx, &pods, append(opts, client.InNamespace(namespace))...); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var names []string
	for i := range pods.Items {
		p := &pods.Items[i]
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
				names = append(names, p.Name)
			}
		}
	}
	return names, nil
}
