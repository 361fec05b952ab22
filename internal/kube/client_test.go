// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An API server that is away keeps nobody from starting.
func TestConnectAsksNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(Config{Kubeconfig: file}); err != nil {
		t.Error(err)
	}
}

// Of pods little is cached, of other objects everything but who wrote what.
func TestSlim(t *testing.T) {
	managed := []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	p, err := slim()(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: managed}, Spec: corev1.PodSpec{ServiceAccountName: "s"}})
	if pod, ok := p.(*corev1.Pod); err != nil || !ok || pod.Name != "p" || pod.ManagedFields != nil || pod.Spec.ServiceAccountName != "" {
		t.Errorf("of a pod %+v, %v", p, err)
	}
	o, err := slim()(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", ManagedFields: managed}, Spec: appsv1.DeploymentSpec{MinReadySeconds: 3}})
	if d, ok := o.(*appsv1.Deployment); err != nil || !ok || d.Name != "d" || d.ManagedFields != nil || d.Spec.MinReadySeconds != 3 {
		t.Errorf("of a Deployment %+v, %v", o, err)
	}
}
