// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A kind that is installed later is noticed, and a program that ends does not wait for it.
func TestAwaitInstalled(t *testing.T) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
	synctest.Test(t, func(t *testing.T) {
		kinds := meta.NewDefaultRESTMapper(nil)
		c := &Clients{Mapper: kinds}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := c.AwaitInstalled(ctx, pod); err == nil {
			t.Error("no error though the kind is not installed")
		}
		began := time.Now()
		time.AfterFunc(installedRetry+installedRetry/2, func() { kinds.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace) })
		if err := c.AwaitInstalled(t.Context(), pod); err != nil || time.Since(began) != 2*installedRetry {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
