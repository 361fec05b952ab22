// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package keda runs KEDA's own operator and metrics server against the scaler on a real
// control plane. It needs their binaries: make keda.
package keda

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "team-a"
)

func freePort(t *testing.T) string {
	t.Helper()
	port, err := cluster.FreePort("127.0.0.1")
	stack.Must(t, err)
	return strconv.Itoa(port)
}

// pki is an authority in a folder: ca.crt, tls.crt and tls.key of one certificate that
// serves localhost and is KEDA's client certificate.
func pki(t *testing.T, dir string) {
	t.Helper()
	write := func(name, kind string, der []byte) {
		stack.Must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		stack.Must(t, err)
		return k
	}
	caKey, leafKey := key(), key()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "keda-ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	stack.Must(t, err)
	write("ca.crt", "CERTIFICATE", der)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "keda-operator"}, DNSNames: []string{"localhost"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &leafKey.PublicKey, caKey)
	stack.Must(t, err)
	write("tls.crt", "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(leafKey)
	stack.Must(t, err)
	write("tls.key", "EC PRIVATE KEY", der)
}

// start starts one of KEDA's programs until the test ends.
func start(t *testing.T, s *stack.Stack, program string, args ...string) *os.Process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	stack.Must(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig(), "POD_NAMESPACE=keda", "WATCH_NAMESPACE=", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda", "OPERATOR_NAME=keda-operator")
	cmd.Stdout, cmd.Stderr = log, log
	stack.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if b, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), b[max(0, len(b)-6000):])
		}
	})
	return cmd.Process
}

func scaledObject(name, kind, port string, metadata string) string {
	return `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec:
  scaleTargetRef: {name: ` + name + `}
  pollingInterval: 2
  cooldownPeriod: 2
  minReplicaCount: 0
  maxReplicaCount: 6
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - type: ` + kind + `
    metadata: {scalerAddress: "localhost:` + port + `", unsafeSsl: "true", ` + metadata + `}
    authenticationRef: {name: gpupilot}
`
}

// rig is a stack with KEDA.
type rig struct {
	*stack.Stack
	keda, certs string // folders
	port        string // of our scaler
	backend     string // URL of the PromQL backend of both
	value       atomic.Uint64
	load        stack.Load
}

// newRig starts everything, until the test ends.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{keda: os.Getenv("GPUPILOT_KEDA"), certs: t.TempDir()}
	if r.keda == "" {
		t.Skip("GPUPILOT_KEDA is not set; make keda builds KEDA and runs this test")
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[%d,"%d"]}]}}`, time.Now().Unix(), r.value.Load())
	}))
	t.Cleanup(backend.Close)
	r.backend, r.port = backend.URL, freePort(t)
	pki(t, r.certs)
	r.Stack = stack.New(t, stack.Config{
		Nodes: 1, HPASyncPeriod: time.Second,
		ControllerArgs: []string{"--prometheus-url", backend.URL, "--keda-address", "127.0.0.1:" + r.port, "--keda-client-ca-file", filepath.Join(r.certs, "ca.crt")},
		Workloads: []simnode.Workload{{
			Name: "gpu", Model: simnode.Model{Capacity: 10, Concurrency: 16, QueueLimit: 60},
			Offered: r.load.At,
		}},
	})
	return r
}

func TestKEDA(t *testing.T) {
	r := newRig(t)
	s, port, load, value := r.Stack, r.port, &r.load, &r.value
	startKEDA(t, s, r.keda, r.certs)
	stack.Must(t, s.Client.Create(t.Context(), &v1alpha1.MetricQuery{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "queue"},
		Spec:       v1alpha1.MetricQuerySpec{Query: &v1alpha1.MetricQueryPromQL{PromQL: "sum(queue_length)"}},
	}))

	t.Run("a trigger without a target is an event of the ScaledObject", func(t *testing.T) {
		stack.Must(t, s.Client.Create(t.Context(), stack.Deployment(namespace, "bad", 1, 0)))
		stack.Must(t, s.Apply(t.Context(), []byte(scaledObject("bad", "external", port, "metric: Utilization"))))
		stack.Eventually(t, func() error {
			var events corev1.EventList
			if err := s.Client.List(t.Context(), &events, client.InNamespace(namespace)); err != nil {
				return err
			}
			for i := range events.Items {
				if strings.Contains(events.Items[i].Message, "metadata.target: missing") {
					t.Log(events.Items[i].Reason, events.Items[i].Message)
					return nil
				}
			}
			said := []string{}
			for i := range events.Items {
				said = append(said, events.Items[i].Reason+": "+events.Items[i].Message)
			}
			return fmt.Errorf("no event names the field: %q", said)
		})
	})

	t.Run("external: a GPU metric of the workload", func(t *testing.T) {
		stack.Must(t, s.Client.Create(t.Context(), stack.Deployment(namespace, "gpu", 1, 0)))
		load.Set(15) // 150 % of one replica at a target of 60 %: 3
		stack.Must(t, s.Apply(t.Context(), []byte(scaledObject("gpu", "external", port, `metric: Utilization, target: "60"`))))
		s.AwaitReplicas(t, namespace, "gpu", 3)
		load.Set(3)
		s.AwaitReplicas(t, namespace, "gpu", 1)
	})

	t.Run("external-push: from zero and back", func(t *testing.T) {
		stack.Must(t, s.Client.Create(t.Context(), stack.Deployment(namespace, "push", 0, 0)))
		stack.Must(t, s.Apply(t.Context(), []byte(scaledObject("push", "external-push", port, `query: queue, target: "10"`))))
		stack.Eventually(t, func() error { return streams(s) })
		began := time.Now()
		value.Store(25)
		stack.Eventually(t, func() error {
			if n, err := s.Replicas(t.Context(), namespace, "push"); err != nil || n == 0 {
				return errors.Join(err, errors.New("not active"))
			}
			return nil
		})
		t.Logf("activated %s after the value changed in the PromQL backend", time.Since(began))
		s.AwaitReplicas(t, namespace, "push", 3)
		value.Store(0)
		s.AwaitReplicas(t, namespace, "push", 0)
	})
}

// streams reports whether a stream is open.
func streams(s *stack.Stack) error {
	resp, err := http.Get(s.ControllerURL + "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		return err
	}
	if !strings.Contains(b.String(), "gpupilot_keda_streams 1") {
		return errors.New("no stream is open")
	}
	return nil
}

// startKEDA installs KEDA's CRDs, its APIService and the credentials of its triggers, and
// starts its programs. It returns the operator, and what starts that again.
func startKEDA(t *testing.T, s *stack.Stack, keda, certs string) (operator *os.Process, again func() *os.Process) {
	t.Helper()
	crds, err := filepath.Glob(filepath.Join(keda, "crds", "*.yaml"))
	stack.Must(t, err)
	for _, file := range crds {
		b, err := os.ReadFile(file)
		stack.Must(t, err)
		stack.Must(t, s.Apply(t.Context(), b))
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(certs, name))
		stack.Must(t, err)
		return base64.StdEncoding.EncodeToString(b)
	}
	grpcPort, adapterPort := freePort(t), freePort(t)
	manifests := `
apiVersion: v1
kind: Namespace
metadata: {name: ` + namespace + `}
---
apiVersion: v1
kind: Namespace
metadata: {name: keda}
---
apiVersion: v1
kind: Service
metadata: {name: keda-metrics-apiserver, namespace: keda}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  service: {name: keda-metrics-apiserver, namespace: keda, port: ` + adapterPort + `}
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: external-metrics-reader}
rules: [{apiGroups: [external.metrics.k8s.io], resources: ["*"], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: external-metrics-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-metrics-reader}
subjects: [{kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}]
---
apiVersion: v1
kind: Secret
metadata: {name: gpupilot, namespace: ` + namespace + `}
data: {tls.crt: ` + read("tls.crt") + `, tls.key: ` + read("tls.key") + `}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata: {name: gpupilot, namespace: ` + namespace + `}
spec:
  secretTargetRef:
  - {parameter: tlsClientCert, name: gpupilot, key: tls.crt}
  - {parameter: tlsClientKey, name: gpupilot, key: tls.key}
`
	stack.Eventually(t, func() error { return s.Apply(t.Context(), []byte(manifests)) })
	again = func() *os.Process {
		return start(t, s, filepath.Join(keda, "operator"), "--cert-dir", certs, "--metrics-bind-address", "127.0.0.1:"+freePort(t),
			"--health-probe-bind-address", "127.0.0.1:"+freePort(t), "--metrics-service-bind-address", "127.0.0.1:"+grpcPort, "--ca-dir", certs)
	}
	operator = again()
	start(t, s, filepath.Join(keda, "adapter"), "--secure-port", adapterPort, "--port", freePort(t), "--cert-dir", certs,
		"--tls-cert-file", filepath.Join(certs, "tls.crt"), "--tls-private-key-file", filepath.Join(certs, "tls.key"),
		"--metrics-service-address", "localhost:"+grpcPort, "--lister-kubeconfig", s.Cluster.Kubeconfig(),
		"--authentication-kubeconfig", s.Cluster.Kubeconfig(), "--authorization-kubeconfig", s.Cluster.Kubeconfig())
	return operator, again
}
