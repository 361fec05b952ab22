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
	"sync/atomic"
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
		}, {
			Name: "sidecar", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{simUUID(0)}}},
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

// Without NODE_NAME the hostname is no node's name: the node is where the API
// server says that the kubelet's pods run. Series keep their pods, before that is
// known and after.
func TestNodeNameIsLearned(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveKubelet(t, socket, claiming{})
	var known atomic.Bool
	dir := account(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case q.Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case r.URL.Path == "/api/v1/namespaces/team/pods" && q.Get("fieldSelector") == "metadata.name=llm-0" && known.Load():
			fmt.Fprint(w, `{"items":[{"metadata":{"name":"llm-0","namespace":"team"},"spec":{"nodeName":"n1"}}]}`)
		case r.URL.Path == "/api/v1/pods" && strings.Contains(q.Get("fieldSelector"), "spec.nodeName=n1,"):
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"llm-0","namespace":"team","uid":"u-1","labels":{"app":"llm"}}}]}`)
		case r.URL.Path == "/apis/resource.k8s.io/v1/resourceslices" && strings.Contains(q.Get("fieldSelector"), ",spec.nodeName=n1"):
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"n1-gpus"},"spec":{"driver":"gpu.nvidia.com","nodeName":"n1",
				"pool":{"name":"n1","generation":1},"devices":[{"name":"gpu-1","attributes":{"type":{"string":"gpu"},"uuid":{"string":%q}}}]}}]}`, simUUID(1))
		default:
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
		}
	})
	url, _, _ := start(t, "--backend", "sim", "--sim-gpus", "2", "-c", "50", "-k", "--pod-resources-kubelet-socket", socket, "--service-account", dir,
		"--kubernetes-enable-dra", "--kubernetes-enable-pod-labels", "--kubernetes-enable-pod-uid", "--enable-exporter-metrics")
	shows := func(want ...string) {
		t.Helper()
		until(t, func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return true
		})
	}
	plugin := fmt.Sprintf(`gpupilot_gpu_allocation_info{uuid="%s",namespace="team",pod="llm-0",container="sidecar",replica=""} 1`, simUUID(0))
	shows("gpupilot_pod_watch_up 0", plugin, `,container="sidecar",namespace="team",pod="llm-0"} `)
	known.Store(true)
	shows("gpupilot_pod_watch_up 1", "gpupilot_pods_watched 1", plugin, `,app="llm",container="sidecar",namespace="team",pod="llm-0",pod_uid="u-1"} `, `dra_device_name="gpu-1"`)
}

// simUUID is a simulated GPU's where the node's name is the hostname.
func simUUID(i int) string {
	host, _ := os.Hostname()
	return sim.UUID(host, i)
}

// serveKubelet serves pod resources on a socket.
func serveKubelet(t *testing.T, socket string, pods podresources.PodResourcesListerServer) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, pods)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// A GPU that a pod holds by a resource claim is its own, and says by which claim.
func TestResourceClaims(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveKubelet(t, socket, claiming{})
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
