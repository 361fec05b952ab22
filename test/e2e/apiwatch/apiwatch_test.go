// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package apiwatch tests the agent's client of the API server behind a real
// one, with the rights that it needs and no more.
package apiwatch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/apiwatch"
	"github.com/gpupilot/gpupilot/test/cluster"
)

const patience = 5 * time.Minute

func TestBehindARealAPIServer(t *testing.T) {
	ctx := t.Context()
	c, err := cluster.Start(ctx, cluster.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	rc, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(rc)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	must(os.WriteFile(filepath.Join(dir, "ca.crt"), rc.CAData, 0o600))
	must(os.WriteFile(filepath.Join(dir, "token"), []byte(account(ctx, t, k)), 0o600))
	client, err := apiwatch.New(apiwatch.Config{URL: rc.Host, Token: filepath.Join(dir, "token"), CA: filepath.Join(dir, "ca.crt")})
	must(err)

	create := func(name, node string) {
		t.Helper()
		_, err := k.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": name}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}, metav1.CreateOptions{})
		must(err)
	}
	// Kubernetes deletes pods of nodes that do not exist.
	for _, node := range []string{"n1", "n2"} {
		_, err := k.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		must(err)
	}
	for i := range 30 { // more than a page
		create(fmt.Sprintf("early-%02d", i), "n1")
	}
	create("elsewhere", "n2")
	// The node's name is learned from a pod that the kubelet lists, with the rights
	// that the watch needs anyway.
	node := apiwatch.FindNode(client, slog.New(slog.DiscardHandler))
	node.Saw([]gpu.Allocation{{Owner: gpu.Owner{Namespace: "default", Pod: "early-07"}}})
	pods := apiwatch.NewPods(client, nil, apiwatch.PodsConfig{Node: node, Labels: true, Log: slog.New(slog.DiscardHandler)})
	run, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { pods.Run(run) })
	loops.Go(func() { node.Run(run) })
	t.Cleanup(func() { stop(); loops.Wait() })
	count := func(n int) func() bool {
		return func() bool { all, err := pods.Pods(); return err == nil && len(all) == n }
	}
	until(t, "the early pods are known", count(30))
	create("late", "n1")
	until(t, "a late pod is known", count(31))
	all, _ := pods.Pods()
	late := all[gpu.PodName{Namespace: "default", Name: "late"}]
	if diff := cmp.Diff([]gpu.PodLabel{{Name: "app_kubernetes_io_name", Value: "late"}}, late.Labels); diff != "" || late.UID == "" {
		t.Errorf("UID %q, labels (-want +got):\n%s", late.UID, diff)
	}
	// A pod that has ended is told as gone, though it is not deleted.
	pod, err := k.CoreV1().Pods("default").Get(ctx, "late", metav1.GetOptions{})
	must(err)
	pod.Status.Phase = corev1.PodSucceeded
	_, err = k.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	must(err)
	until(t, "a pod that has ended is gone", count(30))
	zero := int64(0)
	must(k.CoreV1().Pods("default").Delete(ctx, "early-00", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	until(t, "a deleted pod is gone", count(29))

	configMap(ctx, t, k, client)
	resourceSlice(ctx, t, k, client)
}

// resourceSlice finds the device of a claim, as long as the driver publishes it.
func resourceSlice(ctx context.Context, t *testing.T, k kubernetes.Interface, client *apiwatch.Client) {
	t.Helper()
	const driver = "gpu.nvidia.com"
	publish := func(node, device, uuid string) {
		t.Helper()
		_, err := k.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: resourcev1.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
				Devices: []resourcev1.Device{{Name: device, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"uuid": {StringValue: &uuid}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("n1", "gpu-0", "GPU-0")
	publish("n2", "gpu-0", "GPU-9")
	slices := apiwatch.NewSlices(client, driver, apiwatch.GivenNode("n1"), slog.New(slog.DiscardHandler))
	run, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { slices.Run(run) })
	t.Cleanup(func() { stop(); loops.Wait() })
	device := func(pool string) string {
		return slices.Resolve([]gpu.Allocation{{DeviceID: "unknown", Owner: gpu.Owner{
			Claim: &gpu.Claim{Driver: driver, Pool: pool, Device: "gpu-0"},
		}}})[0].DeviceID
	}
	until(t, "the node's device is known", func() bool { return device("n1") == "GPU-0" })
	if id := device("n2"); id != "unknown" {
		t.Errorf("another node's device is %s", id)
	}
	if err := k.ResourceV1().ResourceSlices().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the device is gone", func() bool { return device("n1") == "unknown" })
}

// configMap follows a ConfigMap through its life.
func configMap(ctx context.Context, t *testing.T, k kubernetes.Interface, client *apiwatch.Client) {
	t.Helper()
	maps := k.CoreV1().ConfigMaps("default")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "metrics"}, Data: map[string]string{"metrics": "one"}}
	if _, err := maps.Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m := &apiwatch.ConfigMap{Client: client, Namespace: "default", Name: "metrics", Key: "metrics"}
	if text, err := m.Get(ctx); err != nil || text != "one" {
		t.Fatalf("%q, %v", text, err)
	}
	told := make(chan string, 8)
	run, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { m.Follow(run, func(text string, err error) { told <- fmt.Sprint(text, err != nil) }) })
	t.Cleanup(func() { stop(); loops.Wait() })
	cm.Data["metrics"] = "two"
	if _, err := maps.Update(ctx, cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"twofalse", "true"} {
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("%q was not told", want)
		}
		if want == "twofalse" {
			if err := maps.Delete(ctx, "metrics", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// account makes the agent's service account and gives its token.
func account(ctx context.Context, t *testing.T, k kubernetes.Interface) string {
	t.Helper()
	const name = "gpupilot-agent"
	_, err1 := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	_, err2 := k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"metrics"}, Verbs: []string{"get", "list", "watch"}},
		},
	}, metav1.CreateOptions{})
	_, err3 := k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
	}, metav1.CreateOptions{})
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tr, err := k.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return tr.Status.Token
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not within %s", what, patience)
}
