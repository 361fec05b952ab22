// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gpupilot/gpupilot/client"
)

// agent stands for http://127.0.0.1:9400.
func agent() *httptest.Server {
	const device = `{"index": 0, "uuid": "GPU-1", "pciBusId": "00000000:18:00.0", "model": "NVIDIA H200", "up": true, "readSeconds": 0.001, "failures": 0,
		"values": {"DCGM_FI_DEV_GPU_UTIL": {"value": 57, "unit": "%"}, "DCGM_FI_DEV_POWER_USAGE": {"value": 412.5, "unit": "W"}}, "labels": {},
		"owners": [{"namespace": "llm", "pod": "chat-0", "container": "vllm"}], "xids": []}`
	answers := map[string]string{
		"/api/v1/gpus":           `{"node": "gpu-1", "time": "2026-11-24T10:00:00Z", "intervalSeconds": 0.01, "backend": "nvml", "devices": [` + device + `]}`,
		"/api/v1/gpus/0":         device,
		"/api/v1/gpus/0/health":  `{"uuid": "GPU-1", "overall": "warn", "judge": "dcgm", "systems": [{"name": "MEM", "result": "warn", "code": "DCGM_FR_PENDING_ROW_REMAP"}, {"name": "SM", "result": "pass"}]}`,
		"/api/v1/processes/4711": `[{"uuid": "GPU-1", "index": 0, "pid": 4711, "type": "compute", "namespace": "llm", "pod": "chat-0", "memoryBytes": 1073741824}]`,
		"/api/v1/topology":       `{"gpus": [{"uuid": "GPU-1", "cpus": "0-55"}], "pairs": [{"uuids": ["GPU-1", "GPU-2"], "path": "NODE", "nvlinks": 18}]}`,
		"/api/v1/status":         `{"node": "gpu-1", "version": "v0.1.0", "backend": "nvml", "intervalSeconds": 1, "time": "2026-11-24T10:00:00Z", "devices": 8, "up": 7}`,
	}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := answers[r.URL.Path]; ok {
			_, _ = io.WriteString(w, text)
			return
		}
		http.Error(w, "no device "+r.URL.Path, http.StatusNotFound)
	}))
}

// The device info of one GPU, and who holds it.
func Example_deviceInfo() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	d, err := c.Device(context.Background(), "0")
	if err != nil {
		fmt.Println(err)
		return
	}
	watts, known := d.Value("DCGM_FI_DEV_POWER_USAGE")
	fmt.Println(d.Model, d.PCIBusID, watts, known, d.Owners[0].Pod)
	_, err = c.Device(context.Background(), "7")
	var missing *client.Error
	fmt.Println(errors.As(err, &missing) && missing.Status == http.StatusNotFound)
	// Output:
	// NVIDIA H200 00000000:18:00.0 412.5 true chat-0
	// true
}

// A line per collection and device, as of dcgmi dmon.
func Example_dmon() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for node, err := range c.Watch(ctx) {
		if err != nil {
			fmt.Println(err)
			continue
		}
		for d := range node.Up() {
			utilization, _ := d.Value("DCGM_FI_DEV_GPU_UTIL")
			fmt.Printf("GPU %d %5.1f %%\n", d.Index, utilization)
		}
		break
	}
	// Output: GPU 0  57.0 %
}

// The systems of a GPU that are not healthy.
func Example_health() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	h, err := c.Health(context.Background(), "0")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.Overall, "by", h.Judge)
	for _, s := range h.Systems {
		if s.Result != "pass" {
			fmt.Println(s.Name, s.Result, s.Code)
		}
	}
	// Output:
	// warn by dcgm
	// MEM warn DCGM_FR_PENDING_ROW_REMAP
}

// What a process uses.
func Example_processInfo() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	uses, err := c.Process(context.Background(), 4711)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, u := range uses {
		fmt.Printf("GPU %d: %s/%s, %.0f MiB\n", u.Index, u.Namespace, u.Pod, *u.MemoryBytes/(1<<20))
	}
	// Output: GPU 0: llm/chat-0, 1024 MiB
}

// How GPUs are connected.
func Example_topology() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	t, err := c.Topology(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range t.Pairs {
		fmt.Println(p.UUIDs[0], p.Path, p.UUIDs[1], *p.NVLinks, "NVLinks")
	}
	// Output: GPU-1 NODE GPU-2 18 NVLinks
}

// Whether the agent works.
func Example_status() {
	server := agent()
	defer server.Close()
	c := client.Client{URL: server.URL}
	s, err := c.Status(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %d of %d devices are up, by %s\n", s.Node, s.Up, s.Devices, s.Backend)
	// Output: gpu-1: 7 of 8 devices are up, by nvml
}
