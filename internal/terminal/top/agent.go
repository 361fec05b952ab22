// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/client"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Agent is one agent as a source: a node without a controller.
type Agent struct {
	Address string // HOST:PORT or a URL
	Client  *http.Client
}

// agentLimit bounds an answer of an agent, in bytes.
const agentLimit = 32 << 20

// Device is a GPU or a MIG instance of an agent.
type Device struct{ client.Device }

// name is the device's index, with the profile of a MIG instance.
func (d *Device) name() string {
	if d.MIG == nil {
		return strconv.Itoa(d.Index)
	}
	return fmt.Sprintf("%d.%d %s", d.Index, d.MIG.GPUInstance, d.MIG.Profile)
}

// value returns the value of a field, under its name of the profile 4.8; nil: there is none.
func (d *Device) value(field string) *float64 {
	if v, ok := d.Value(field); ok {
		return &v
	}
	return nil
}

// gpu returns the device as the controller shows it.
func (d *Device) gpu() view.GPU {
	g := view.GPU{
		UUID: d.UUID, Index: &d.Index, Utilization: d.value("DCGM_FI_DEV_GPU_UTIL"), MemoryUsedMiB: d.value("DCGM_FI_DEV_FB_USED"),
		PowerWatts: d.value("DCGM_FI_DEV_POWER_USAGE"), TemperatureC: d.value("DCGM_FI_DEV_GPU_TEMP"),
	}
	for i := range d.Owners {
		o := &d.Owners[i]
		g.Owners = append(g.Owners, view.Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container})
	}
	if free := d.value("DCGM_FI_DEV_FB_FREE"); free != nil && g.MemoryUsedMiB != nil {
		total := *free + *g.MemoryUsedMiB
		g.MemoryTotalMiB = &total
	}
	if d.AgeSeconds != nil {
		g.Age = time.Duration(*d.AgeSeconds * float64(time.Second))
	}
	return g
}

// maxProcesses bounds the processes that are shown as holders of a GPU.
const maxProcesses = 8

// processes are those that use the device; nil: none, or they are not read.
func (d *Device) processes() []client.Process {
	if d.Processes == nil {
		return nil
	}
	return *d.Processes
}

// withoutKubelet adds who holds the GPU of an agent that does not ask the kubelet: its
// processes, or somebody unknown if the GPU is used.
func (d *Device) withoutKubelet(g view.GPU) view.GPU {
	g.Owners = nil
	processes := d.processes()
	for _, p := range processes[:min(len(processes), maxProcesses)] {
		g.Owners = append(g.Owners, view.Owner{Pod: fmt.Sprintf("%s (pid %d)", p.Name, p.PID)})
	}
	if len(g.Owners) == 0 && g.Utilization != nil && gpu.IsActive(*g.Utilization) {
		g.Owners = []view.Owner{{}}
	}
	return g
}

// URL returns the address of the agent's JSON.
func (a *Agent) URL() (*url.URL, error) {
	address := a.Address
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--agent %q: want HOST:PORT, or the URL of an agent", a.Address)
	}
	return u.JoinPath("api/v1/gpus"), nil
}

// Read reads the agent's last snapshot.
func (a *Agent) Read(ctx context.Context, r *Request) (*Fleet, error) {
	u, err := a.URL()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, agentLimit))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the agent at %s answers %s: %.200q", a.Address, resp.Status, body)
	}
	return parseDocument(body)
}

// parseDocument converts an agent's answer.
func parseDocument(body []byte) (*Fleet, error) {
	var d client.Node
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("the answer is not an agent's /api/v1/gpus: %w", err)
	}
	f := &Fleet{Source: d.Name, Agent: true, Raw: body}
	v := view.View{Time: d.Time, MaxAge: max(5*time.Second, time.Duration(3*d.IntervalSeconds*float64(time.Second))), Version: d.Backend}
	n := view.Node{Name: d.Name, Fault: d.Error}
	if k := d.Kubelet; k != nil && !k.Up && n.Fault == "" {
		n.Fault = "the kubelet's pod-resources: " + k.Error
	}
	for i := range d.Devices {
		dev := &Device{d.Devices[i]}
		if g := dev.gpu(); d.Kubelet == nil {
			n.GPUs = append(n.GPUs, dev.withoutKubelet(g))
		} else {
			n.GPUs = append(n.GPUs, g)
		}
		n.Model = dev.Model
	}
	v.Nodes = []view.Node{n}
	f.View = v.Bounded(v.NodeSummaries(), true)
	f.Nodes = v.NodeSummaries()
	for i := range n.GPUs {
		g := &n.GPUs[i]
		f.GPUs = append(f.GPUs, GPU{
			GPUEntry: view.GPUEntry{Node: n.Name, Model: d.Devices[i].Model, State: v.State(g), GPU: *g}, Device: &Device{d.Devices[i]},
		})
	}
	f.TotalNodes, f.TotalGPUs = 1, len(f.GPUs)
	return f, nil
}
