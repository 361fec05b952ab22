// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lateKinds knows every kind from a time on.
type lateKinds struct {
	meta.RESTMapper
	from time.Time
}

func (k lateKinds) RESTMapping(kind schema.GroupKind, _ ...string) (*meta.RESTMapping, error) {
	if time.Now().Before(k.from) {
		return nil, &meta.NoKindMatchError{GroupKind: kind}
	}
	return &meta.RESTMapping{}, nil
}

// A kind that is installed later is noticed, and a program that ends does not wait for it.
func TestAwaitInstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := &Clients{Mapper: lateKinds{from: began.Add(installedRetry + installedRetry/2)}}
		ctx, cancel := context.WithTimeout(t.Context(), installedRetry/2)
		defer cancel()
		if err := c.AwaitInstalled(ctx, &corev1.Pod{}); err == nil {
			t.Error("no error though the kind is not installed")
		}
		began = time.Now()
		if err := c.AwaitInstalled(t.Context(), &corev1.Pod{}); err != nil || time.Since(began) != installedRetry {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
