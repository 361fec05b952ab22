// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// sharing is a pod-resources server with two pods that share one GPU.
type sharing struct {
	podresources.UnimplementedPodResourcesListerServer
	uuid string
}

func (k *sharing) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	res := &podresources.ListPodResourcesResponse{}
	for i := range 2 {
		res.PodResources = append(res.PodResources, &podresources.PodResources{
			Name: fmt.Sprint("llm-", i), Namespace: "team", Containers: []*podresources.ContainerResources{{
				Name: "server", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu.shared", DeviceIds: []string{fmt.Sprintf("%s::%d", k.uuid, i)}}},
			}},
		})
	}
	return res, nil
}

// fakeProc is a directory like /proc of a node.
type fakeProc struct {
	t   *testing.T
	dir string
}

func (p *fakeProc) add(pid int, name, cgroup, mounts string) {
	p.t.Helper()
	dir := filepath.Join(p.dir, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	for file, text := range map[string]string{
		"stat":   fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 170000000 2900", pid, name),
		"cgroup": cgroup, "mountinfo": mounts,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}

// Two pods share a GPU, beside a process of the host: each has what its own
// processes use, known without an API server.
func TestProcessMetrics(t *testing.T) {
	const gpu0 = "GPU-48323030-6670-4000-8000-000000000000" // the fake's
	uids := [2]string{"31dd0274-bb43-4975-bdbc-7e10047a23f8", "7fda01c4-0ece-403d-88b4-c371d66d132a"}
	library := gputest.Library(t, "libnvidia-ml-fake.so")
	dir := t.TempDir()
	gpus := filepath.Join(dir, "gpus")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(gpus+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(gpus+".new", gpus); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GPUPILOT_FAKE_NVML", gpus)
	const used = "gpus 2\ngpu 0 util 80\ngpu 0 fb_used 3500\ngpu 0 process 101 2000 50 compute\ngpu 0 process 103 10 1 graphics\n"
	write(used + "gpu 0 process 102 1000 25\n")

	proc := &fakeProc{t, filepath.Join(dir, "proc")}
	logs := filepath.Join(dir, "logs")
	proc.add(2, "kthreadd", "0::/", "")
	proc.add(103, "Xorg", "0::/user.slice", "")
	for i, uid := range uids {
		cgroup := fmt.Sprintf("0::/../../kubepods-burstable-pod%s.slice/cri-containerd-%064d.scope", strings.ReplaceAll(uid, "-", "_"), i)
		proc.add(101+i, "python3", cgroup, fmt.Sprintf("1 2 259:1 /var/lib/kubelet/pods/%s/containers/server/abc /dev/termination-log rw - xfs /dev/x rw", uid))
		if err := os.MkdirAll(filepath.Join(logs, fmt.Sprintf("team_llm-%d_%s", i, uid)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &sharing{uuid: gpu0})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	url, _, stop := start(t, "--backend", "nvml", "--nvml-library", library, "-c", "100", "-k", "--process-metrics",
		"--host-proc", proc.dir, "--pod-logs", logs, "--pod-resources-kubelet-socket", socket)
	shows := func(want ...string) {
		t.Helper()
		until(t, func() bool {
			_, body := get(t, url+"/metrics?name[]=gpupilot_gpu_processes")
			for _, w := range want {
				if !strings.Contains(body, w+"\n") {
					return false
				}
			}
			return true
		})
	}
	of := func(pod int) string {
		return fmt.Sprintf(`{uuid="%s",gpu="0",namespace="team",pod="llm-%d",container="server"} `, gpu0, pod)
	}
	shows("gpupilot_pod_gpu_utilization_ratio"+of(0)+"0.500000", "gpupilot_pod_gpu_utilization_ratio"+of(1)+"0.250000",
		"gpupilot_pod_gpu_memory_used_bytes"+of(0)+"2097152000", "gpupilot_pod_gpu_memory_used_bytes"+of(1)+"1048576000",
		`gpupilot_gpu_processes{uuid="`+gpu0+`",gpu="0",place="pod"} 2`, `gpupilot_gpu_processes{uuid="`+gpu0+`",gpu="0",place="host"} 1`)
	var doc agent.Document
	_, body := get(t, url+"/api/v1/gpus")
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if ps := *doc.Devices[0].Processes; len(ps) != 3 || ps[0].Pod != "llm-0" || ps[1].Pod != "llm-1" || ps[2].Name != "Xorg" || ps[2].Pod != "" || ps[2].Type != "graphics" {
		t.Errorf("processes %s", body)
	}
	// One pod's server ends.
	write(used)
	shows("gpupilot_pod_gpu_utilization_ratio"+of(0)+"0.500000", "gpupilot_pod_gpu_utilization_ratio"+of(1)+"0.000000",
		"gpupilot_pod_gpu_memory_used_bytes"+of(1)+"0")
	stop()
}

// Who sees only a container's processes would say that all pods idle.
func TestProcessMetricsNeedTheNode(t *testing.T) {
	err := run(t.Context(), []string{"-a", "127.0.0.1:0", "--backend", "sim", "--process-metrics", "--host-proc", t.TempDir()}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("%v", err)
	}
}
