// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The load of the KEDA scaler. KEDA has one connection for all ScaledObjects with the
// same address and credentials.
const (
	scaledObjects   = 1000
	kedaWorkloads   = 16 // that the ScaledObjects share, of one pod each
	kedaCalls       = 10000
	kedaConcurrent  = 8
	kedaNamespace   = "keda-bench"
	barKEDA         = 2 // times a call of gRPC that does nothing
	getMetricsOfRPC = "/externalscaler.ExternalScaler/GetMetrics"
	// unknownRPC is answered by gRPC itself.
	unknownRPC = "/externalscaler.ExternalScaler/Nothing"
)

// benchKEDA measures GetMetrics as KEDA calls it: over TLS with a client certificate, of
// ScaledObjects on a real control plane, with KEDA's messages.
func benchKEDA(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	port, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gpupilot-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a rest remains in the temporary folder
	authority := filepath.Join(dir, "ca.crt")
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s, err := stack.Start(ctx, stack.Config{
		Nodes: 2, GPUs: 8, NoController: true,
		// The authority of the clients is written after the control plane has started.
		ControllerArgs: []string{"--keda-address", address, "--keda-client-ca-file", authority},
	})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := deployScaledObjects(ctx, s); err != nil {
		return nil, err
	}
	if err := copyFile(s.Cluster.CAPath(), authority); err != nil {
		return nil, err
	}
	if err := s.StartController(ctx); err != nil {
		return nil, err
	}
	conn, err := dialKEDA(ctx, s, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	for i := range scaledObjects {
		if err := stack.Await(ctx, time.Minute, func() error { _, err := askKEDA(ctx, conn, i); return err }); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(out, "keda: %d calls of GetMetrics for %d ScaledObjects\n", kedaCalls, scaledObjects)
	alone, empty, err := compareKEDA(ctx, conn)
	if err != nil {
		return nil, err
	}
	together, err := callKEDA(ctx, conn, kedaConcurrent)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("KEDA scaler, %d ScaledObjects, GetMetrics over TLS", scaledObjects)
	return []Row{
		relative(name+", p50", quantile(alone, 0.50), "ms", "an empty call", quantile(empty, 0.50), barKEDA),
		figure("  p99", quantile(alone, 0.99), "ms"),
		figure(fmt.Sprintf("  %d at once, p50", kedaConcurrent), quantile(together, 0.50), "ms"),
		figure(fmt.Sprintf("  %d at once, p99", kedaConcurrent), quantile(together, 0.99), "ms"),
	}, nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// deployScaledObjects creates the workloads and their ScaledObjects.
func deployScaledObjects(ctx context.Context, s *stack.Stack) error {
	kind := schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}
	if err := errors.Join(s.AwaitNamespace(ctx, kedaNamespace), s.InstallKind(ctx, kind)); err != nil {
		return err
	}
	for i := range kedaWorkloads {
		d := stack.Deployment(kedaNamespace, workload(i), 1, 0)
		d.Spec.Template.Annotations = map[string]string{simnode.StartupAnnotation: "0s"}
		if err := s.Client.Create(ctx, d); err != nil {
			return err
		}
	}
	for i := range scaledObjects {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
			"metadata": map[string]any{"namespace": kedaNamespace, "name": scaledObjectName(i)},
			"spec": map[string]any{
				"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": workload(i % kedaWorkloads)}, "minReplicaCount": int64(1),
				"triggers": []any{map[string]any{"type": "external", "metadata": toAny(kedaTrigger)}},
			},
		}}
		if err := stack.Await(ctx, time.Minute, func() error { return client.IgnoreAlreadyExists(s.Client.Create(ctx, o.DeepCopy())) }); err != nil {
			return err
		}
	}
	return stack.Await(ctx, time.Minute, func() error {
		ready, err := s.ReadyPods(ctx, kedaNamespace)
		if err == nil && len(ready) != kedaWorkloads {
			err = fmt.Errorf("%d of %d pods are ready", len(ready), kedaWorkloads)
		}
		return err
	})
}

var kedaTrigger = map[string]string{"metric": "Utilization", "target": "60"}

func toAny(in map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range in {
		out[k] = v
	}
	return out
}

func scaledObjectName(i int) string { return "so-" + strconv.Itoa(i) }

// dialKEDA connects with a client certificate of keda-operator, which the cluster's
// authority signed.
func dialKEDA(ctx context.Context, s *stack.Stack, address string) (*grpc.ClientConn, error) {
	kubeconfig, err := s.Cluster.KubeconfigFor("keda-operator")
	if err != nil {
		return nil, err
	}
	user, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	c, err := rest.TLSConfigFor(user)
	if err != nil {
		return nil, err
	}
	var secret corev1.Secret
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-controller-tls"}, &secret); err != nil {
		return nil, err
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(secret.Data["ca.crt"]) {
		return nil, errors.New("the Secret gpupilot-controller-tls has no ca.crt")
	}
	c.ServerName = "gpupilot-controller." + stack.Namespace + ".svc"
	return grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(c)))
}

func askKEDA(ctx context.Context, conn *grpc.ClientConn, i int) (time.Duration, error) {
	in := &pb.GetMetricsRequest{
		ScaledObjectRef: &pb.ScaledObjectRef{Namespace: kedaNamespace, Name: scaledObjectName(i), ScalerMetadata: kedaTrigger}, MetricName: "gpupilot-Utilization",
	}
	began, answer := time.Now(), new(pb.GetMetricsResponse)
	err := conn.Invoke(ctx, getMetricsOfRPC, in, answer)
	if err == nil && len(answer.GetMetricValues()) != 1 {
		err = fmt.Errorf("%s: %d values", scaledObjectName(i), len(answer.GetMetricValues()))
	}
	return time.Since(began), err
}

// compareKEDA asks about all ScaledObjects in turns with calls that gRPC itself answers,
// and returns the times of both in ms, sorted.
func compareKEDA(ctx context.Context, conn *grpc.ClientConn) (times, empty []float64, err error) {
	for i := range kedaCalls {
		took, err := askKEDA(ctx, conn, i%scaledObjects)
		if err != nil {
			return nil, nil, err
		}
		began := time.Now()
		err = conn.Invoke(ctx, unknownRPC, &pb.GetMetricsRequest{}, new(pb.GetMetricsResponse))
		if status.Code(err) != codes.Unimplemented {
			return nil, nil, fmt.Errorf("%s: %w", unknownRPC, err)
		}
		times, empty = append(times, ms(took)), append(empty, ms(time.Since(began)))
	}
	slices.Sort(times)
	slices.Sort(empty)
	return times, empty, nil
}

// callKEDA asks about all ScaledObjects in turn, from so many goroutines, and returns the
// times in ms, sorted.
func callKEDA(ctx context.Context, conn *grpc.ClientConn, goroutines int) ([]float64, error) {
	times, errs := make([]float64, kedaCalls), make([]error, goroutines)
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < kedaCalls; i += goroutines {
				took, err := askKEDA(ctx, conn, i%scaledObjects)
				if times[i] = ms(took); err != nil {
					errs[g] = err
					return
				}
			}
		})
	}
	all.Wait()
	slices.Sort(times)
	return times, errors.Join(errs...)
}
