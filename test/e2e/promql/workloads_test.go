// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promql

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// template is the pod of stack.Deployment with labels and the load of a workload.
func template(workload string, labels map[string]string) corev1.PodTemplateSpec {
	t := stack.Deployment(mine, workload, 1, 0).Spec.Template
	t.Labels = labels
	t.Annotations = map[string]string{simnode.WorkloadAnnotation: workload}
	return t
}

func ownedBy(apiVersion, kind string, o client.Object) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: o.GetName(), UID: o.GetUID(), Controller: new(true), BlockOwnerDeletion: new(true)}}
}

// forgePod makes a pod with a high utilisation that names an object as its controller.
func forgePod(t *testing.T, namespace, name string, labels map[string]string, owner []metav1.OwnerReference) {
	t.Helper()
	forged := template("forged", labels)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: forged.Annotations, OwnerReferences: owner}, Spec: forged.Spec}
	rig.Create(t, p)
}

// awaitServing waits until pods with a label serve.
func awaitServing(t *testing.T, namespace string, n int, labels map[string]string) {
	t.Helper()
	stack.Eventually(t, func() error {
		ready, err := rig.ReadyPods(t.Context(), namespace, client.MatchingLabels(labels))
		if err == nil && len(ready) != n {
			err = fmt.Errorf("%d pods %v serve, want %d", len(ready), labels, n)
		}
		return err
	})
}

// value reads a custom metric of one object.
func value(t *testing.T, path string) (float64, string, error) {
	t.Helper()
	set, err := kubernetes.NewForConfig(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	b, err := set.RESTClient().Get().RequestURI("/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + mine + "/" + path).DoRaw(t.Context())
	if err != nil {
		return 0, "", fmt.Errorf("%w: %s", err, b)
	}
	var list v1beta2.MetricValueList
	if err := json.Unmarshal(b, &list); err != nil || len(list.Items) != 1 {
		return 0, "", fmt.Errorf("%d values: %s, %v", len(list.Items), b, err)
	}
	return list.Items[0].Value.AsApproximateFloat64(), list.Items[0].DescribedObject.Kind, nil
}

// noise is how much the sum of a few simulated utilisations differs from the load.
const noise = 4.0

// awaitValue waits until a metric has a value for several reads in a row.
func awaitValue(t *testing.T, path, kind string, want float64) {
	t.Helper()
	steady := 0
	stack.Eventually(t, func() error {
		v, of, err := value(t, path)
		if err != nil || math.Abs(v-want) > noise || of != kind {
			steady = 0
			return fmt.Errorf("%s of %s is %v, want %v of %s: %w", path, of, v, want, kind, err)
		}
		if steady++; steady < 20 {
			return fmt.Errorf("%s has %v in %d reads only", path, v, steady)
		}
		return nil
	})
}

// A Job's metrics are those of the pods that the Job's controller made.
func TestMetricsOfJobs(t *testing.T) {
	t.Parallel()
	loads["batch"].Set(60) // 30 % in each of two pods
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: mine, Name: "batch"},
		Spec:       batchv1.JobSpec{Parallelism: new(int32(2)), Completions: new(int32(2)), Template: template("batch", map[string]string{"app": "batch"})},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	rig.Create(t, job)
	awaitServing(t, mine, 2, map[string]string{"batch.kubernetes.io/job-name": "batch"})
	owner := ownedBy("batch/v1", "Job", job)
	forgePod(t, mine, "batch-forged", map[string]string{"app": "batch", "job-name": "batch", "batch.kubernetes.io/job-name": "batch"}, owner)
	labels := maps.Clone(job.Spec.Selector.MatchLabels)
	labels["forged"] = "true"
	forgePod(t, other, "batch-forged", labels, owner)
	awaitServing(t, mine, 3, map[string]string{"app": "batch"})
	awaitValue(t, "jobs.batch/batch/gpu_utilization:sum", "Job", 60)
	awaitValue(t, "jobs.batch/batch/gpu_utilization", "Job", 30)
	awaitValue(t, "jobs.batch/*/gpu_utilization:max", "Job", 30)
}

// A LeaderWorkerSet's metrics are those of its leaders and of their workers, whose
// StatefulSets the set and the leaders own.
func TestMetricsOfLeaderWorkerSets(t *testing.T) {
	t.Parallel() // it waits for what the controller remembers for half a minute
	rig.MustApplyFile(t, "testdata/leaderworkersets-crd.yaml")
	loads["group"].Set(90) // 30 % in the leader and in each of two workers
	rig.MustApply(t, "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: group, namespace: team-a}\nspec: {replicas: 1, leaderWorkerTemplate: {size: 3}}")
	set := &unstructured.Unstructured{}
	set.SetAPIVersion("leaderworkerset.x-k8s.io/v1")
	set.SetKind("LeaderWorkerSet")
	key := client.ObjectKey{Namespace: mine, Name: "group"}
	if err := rig.Client.Get(t.Context(), key, set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), set) })
	// As the LeaderWorkerSet's controller does.
	const nameLabel, indexLabel, groupLabel = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index", "leaderworkerset.sigs.k8s.io/group-index"
	statefulSet := func(name string, replicas, first int32, labels map[string]string, owner []metav1.OwnerReference) *appsv1.StatefulSet {
		s := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: mine, Name: name, Labels: labels, OwnerReferences: owner},
			Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, ServiceName: "group", Ordinals: &appsv1.StatefulSetOrdinals{Start: first}, PodManagementPolicy: appsv1.ParallelPodManagement,
				Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template("group", labels),
			},
		}
		rig.Create(t, s)
		return s
	}
	leaders := map[string]string{nameLabel: "group", indexLabel: "0"}
	statefulSet("group", 1, 0, leaders, ownedBy("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", set))
	awaitServing(t, mine, 1, leaders)
	var leader corev1.Pod
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: mine, Name: "group-0"}, &leader); err != nil {
		t.Fatal(err)
	}
	workers := map[string]string{nameLabel: "group", groupLabel: "0"}
	owned := statefulSet("group-0", 2, 1, workers, ownedBy("v1", "Pod", &leader))
	awaitServing(t, mine, 2, workers)

	// Labels alone, an owner alone, and both in another namespace prove nothing.
	forgePod(t, mine, "group-label", map[string]string{nameLabel: "group", "forged": "yes"}, nil)
	forgePod(t, mine, "group-owner", map[string]string{nameLabel: "group", "forged": "yes"}, ownedBy("apps/v1", "StatefulSet", owned))
	forgePod(t, other, "group-0-9", workers, ownedBy("apps/v1", "StatefulSet", owned))
	awaitServing(t, mine, 2, map[string]string{"forged": "yes"})
	awaitValue(t, "leaderworkersets.leaderworkerset.x-k8s.io/group/gpu_utilization:sum", "LeaderWorkerSet", 90)
	awaitValue(t, "leaderworkersets.leaderworkerset.x-k8s.io/group/gpu_utilization", "LeaderWorkerSet", 30)
	awaitValue(t, "statefulsets.apps/group-0/gpu_utilization:sum", "StatefulSet", 60)
}
