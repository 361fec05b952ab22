// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// claiming is a pod-resources server with one pod that holds a GPU by a claim.
type claiming struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (claiming) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "llm-0", Namespace: "team", Containers: []*podresources.ContainerResources{{
			Name: "server", DynamicResources: []*podresources.DynamicResource{{
				ClaimName: "llm-0-gpu", ClaimNamespace: "team",
				ClaimResources: []*podresources.ClaimResource{{DriverName: "gpu.nvidia.com", PoolName: "n1", DeviceName: "gpu-1"}},
			}},
		}},
	}}}, nil
}

// account is a service account for an API server that answers with h.
func account(t *testing.T, h http.HandlerFunc) (dir string) {
	t.Helper()
	srv := httptest.NewTLSServer(h)
	t.Cleanup(srv.Close)
	dir = t.TempDir()
	for name, text := range map[string]string{
		"token": "secret", "ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", u.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", u.Port())
	return dir
}

// A GPU that a pod holds by a resource claim is its own, and says by which claim.
func TestResourceClaims(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, claiming{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	dir := account(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/apis/resource.k8s.io/v1/resourceslices":
			http.NotFound(w, r)
		case r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"n1-gpus"},"spec":{"driver":"gpu.nvidia.com","nodeName":"n1",
				"pool":{"name":"n1","generation":1},"devices":[{"name":"gpu-1","attributes":{"type":{"string":"gpu"},"uuid":{"string":%q}}}]}}]}`, sim.UUID("n1", 1))
		}
	})
	agent := func(args ...string) (url string) {
		url, _, _ = start(t, append([]string{
			"--backend", "sim", "--sim-gpus", "2", "--node-name", "n1", "-c", "50", "-k", "--pod-resources-kubelet-socket", socket, "--service-account", dir,
		}, args...)...)
		return url
	}
	with := agent("--kubernetes-enable-dra")
	want := `,container="server",dra_claim_name="llm-0-gpu",dra_claim_namespace="team",dra_device_name="gpu-1",dra_driver_name="gpu.nvidia.com",dra_pool_name="n1",namespace="team",pod="llm-0"} `
	until(t, func() bool {
		_, body := get(t, with+"/metrics")
		return strings.Contains(body, want) &&
			strings.Contains(body, fmt.Sprintf(`gpupilot_gpu_allocation_info{uuid="%s",namespace="team",pod="llm-0",container="server",replica=""} 1`, sim.UUID("n1", 1)))
	})
	if _, body := get(t, with+"/api/v1/gpus"); !strings.Contains(body, `"claim": "team/llm-0-gpu"`) && !strings.Contains(body, `"claim":"team/llm-0-gpu"`) {
		t.Errorf("the claim is not told: %s", body)
	}
	without := agent()
	until(t, func() bool {
		_, body := get(t, without+"/metrics")
		return strings.Contains(body, "gpupilot_pod_resources_up 1")
	})
	if _, body := get(t, without+"/metrics"); strings.Contains(body, "llm-0") {
		t.Error("claims are attributed though nobody asked for it")
	}
}
