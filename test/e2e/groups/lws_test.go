// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package groups runs the controller of LeaderWorkerSets, and a GPUAutoscaler that scales
// one, on a real control plane.
package groups

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/stack"
)

const root = "../../.."

// leaderWorkerSets installs LeaderWorkerSets as their project does, and starts their
// controller with its webhooks. stop ends it.
func leaderWorkerSets(ctx context.Context, s *stack.Stack) (stop func(), err error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws")
	list.Dir = filepath.Join(root, "test", "lws")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	module := strings.TrimSpace(string(out))
	kinds, err := filepath.Glob(filepath.Join(module, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(kinds) == 0 {
		return nil, fmt.Errorf("no CRDs in %s: %w", module, err)
	}
	for _, file := range kinds {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := s.Apply(ctx, text); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "lws-")
	if err != nil {
		return nil, err
	}
	ca, err := certificate(dir)
	if err != nil {
		return nil, err
	}
	hooks, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		return nil, err
	}
	health, err := cluster.FreePort("127.0.0.1")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
webhook: {port: %d, certDir: %q}
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "0"}
`, hooks, dir, health), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "lws"), "--config", config)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Cluster.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	}
	manifests, err := os.ReadFile(filepath.Join(module, "config", "webhook", "manifests.yaml"))
	if err == nil {
		err = registerWebhooks(ctx, s, manifests, "https://127.0.0.1:"+strconv.Itoa(hooks), ca)
	}
	if err == nil {
		err = stack.Await(ctx, stack.Patience, func() error {
			conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(hooks))
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		stop()
		return nil, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-3000):])
	}
	return stop, nil
}

// certificate writes a certificate of 127.0.0.1, the one of httptest, and returns its CA.
func certificate(dir string) (ca []byte, err error) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return nil, err
	}
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	return ca, errors.Join(
		os.WriteFile(filepath.Join(dir, "tls.crt"), ca, 0o600),
		os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600),
	)
}

// registerWebhooks applies webhook configurations with an address instead of a Service.
func registerWebhooks(ctx context.Context, s *stack.Stack, manifests []byte, address string, ca []byte) error {
	dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var o unstructured.Unstructured
		if err := dec.Decode(&o.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, hook := range hooks {
			fields := hook.(map[string]any)
			path, _, err := unstructured.NestedString(fields, "clientConfig", "service", "path")
			if err != nil {
				return err
			}
			fields["clientConfig"] = map[string]any{"url": address + path, "caBundle": base64.StdEncoding.EncodeToString(ca)}
		}
		if err := unstructured.SetNestedSlice(o.Object, hooks, "webhooks"); err != nil {
			return err
		}
		if err := s.Client.Create(ctx, &o); err != nil {
			return err
		}
	}
}
