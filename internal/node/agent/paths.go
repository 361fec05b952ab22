// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// StatusDoc is the response of /api/v1/status.
type StatusDoc struct {
	Node            string    `json:"node"`
	Version         string    `json:"version"`
	Backend         string    `json:"backend"`
	IntervalSeconds float64   `json:"intervalSeconds"`
	Time            time.Time `json:"time"` // of the last tick
	Error           string    `json:"error,omitempty"`
	Devices         int       `json:"devices"`
	Up              int       `json:"up"`
	Kubelet         *Kubelet  `json:"kubelet,omitempty"`
}

// HealthDoc is the health of a GPU.
type HealthDoc struct {
	UUID    string      `json:"uuid"`
	Overall string      `json:"overall"` // the worst of the systems: pass, warn or fail; unknown if DCGM has not answered
	Judge   string      `json:"judge"`   // dcgm, or gpupilot where DCGM is not there
	Systems []SystemDoc `json:"systems"`

	Collected *time.Time `json:"collected,omitempty"` // of the last successful read of the GPU
}

// SystemDoc is the verdict on one system of a GPU.
type SystemDoc struct {
	Name   string `json:"name"`           // PCIE, NVLINK, PMU, MCU, MEM, SM, INFOROM, THERMAL, POWER, DRIVER or ALL, the GPU as a whole
	Result string `json:"result"`         // pass, warn, fail, or unknown: only DCGM can judge it, or what says it is not collected
	Code   string `json:"code,omitempty"` // DCGM's name of the error
}

// UseDoc is one use of a device by a process.
type UseDoc struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	ProcessDoc
}

// DiscoveryDoc is what is on the node, as dcgmi discovery -l lists it.
type DiscoveryDoc struct {
	Devices  []FoundDoc `json:"devices"`
	Switches []int      `json:"switches"` // ids of NvSwitches, if they are collected
	CPUs     []int      `json:"cpus"`

	GPUs *InventoryDoc `json:"gpus,omitempty"` // what the node should have, beside what is listed
}

// FoundDoc is the identity of a device.
type FoundDoc struct {
	Index    int     `json:"index"`
	UUID     string  `json:"uuid"`
	PCIBusID string  `json:"pciBusId"`
	Model    string  `json:"model"`
	MIG      *MIGDoc `json:"mig,omitempty"`
}

// path is a path of the API.
type path struct {
	pattern, summary string
	answer           func(v view) (any, error)
	of               any // an answer, for the description
}

// view is what a path answers from.
type view struct {
	*gpu.Snapshot
	agent *Agent
	r     *http.Request
	now   time.Time
}

// paths are the API, for GET. {id} is an index, a UUID, or the index of a GPU and the number of its GPU instance: 0:7.
var paths = []path{
	{"/api/v1/gpus", "the last collection", func(v view) (any, error) { return v.agent.document(v.Snapshot, v.now), nil }, Document{}},
	{"/api/v1/gpus/{id}", "one device", view.device, DeviceDoc{}},
	{"/api/v1/gpus/{id}/health", "the health of a GPU's systems", view.health, HealthDoc{}},
	{"/api/v1/gpus/{id}/processes", "the processes that use a device, with --process-metrics", view.processes, []ProcessDoc{}},
	{"/api/v1/processes/{pid}", "the devices that a process uses, with --process-metrics", view.process, []UseDoc{}},
	{"/api/v1/topology", "paths between GPUs and to CPUs", view.topology, TopologyDoc{}},
	{"/api/v1/discovery", "what is on the node", view.discovery, DiscoveryDoc{}},
	{"/api/v1/status", "the agent", view.status, StatusDoc{}},
}

// oldPaths are those of the REST API of NVIDIA's gpu-monitoring-tools, and the paths that answer them. Each may end in
// /json, which is the only format here.
var oldPaths = map[string]string{
	"/dcgm/device/info/id/{id}":       "/api/v1/gpus/{id}",
	"/dcgm/device/info/uuid/{id}":     "/api/v1/gpus/{id}",
	"/dcgm/device/status/id/{id}":     "/api/v1/gpus/{id}",
	"/dcgm/device/status/uuid/{id}":   "/api/v1/gpus/{id}",
	"/dcgm/device/topology/id/{id}":   "/api/v1/topology",
	"/dcgm/device/topology/uuid/{id}": "/api/v1/topology",
	"/dcgm/health/id/{id}":            "/api/v1/gpus/{id}/health",
	"/dcgm/health/uuid/{id}":          "/api/v1/gpus/{id}/health",
	"/dcgm/process/info/pid/{pid}":    "/api/v1/processes/{pid}",
	"/dcgm/status":                    "/api/v1/status",
}

// handlePaths adds the API to a mux.
func (a *Agent) handlePaths(mux *http.ServeMux) {
	answers := map[string]path{}
	for _, p := range paths {
		answers[p.pattern] = p
		mux.Handle("GET "+p.pattern, a.inPlace(a.serve(p)))
	}
	for old, to := range oldPaths {
		mux.Handle("GET "+old, a.inPlace(a.serve(answers[to])))
		mux.Handle("GET "+old+"/json", a.inPlace(a.serve(answers[to])))
	}
	description := openAPI(a.cfg.Version)
	mux.Handle("GET /api/v1/openapi.json", a.inPlace(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !noParameters(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(description)
	})))
}

// notFound is an answer with status 404.
type notFound string

func (e notFound) Error() string { return string(e) }

// noParameters refuses parameters: none is known.
func noParameters(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.RawQuery == "" {
		return true
	}
	http.Error(w, "this path has no parameters", http.StatusBadRequest)
	return false
}

func (a *Agent) serve(p path) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !noParameters(w, r) {
			return
		}
		s := a.Snapshot()
		if s == nil {
			http.Error(w, "nothing has been collected yet", http.StatusServiceUnavailable)
			return
		}
		answer, err := p.answer(view{s, a, r, time.Now()})
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(answer) // a disconnected client is not an error
	})
}

// find returns the device of {id}.
func (v view) find() (*gpu.DeviceSnapshot, error) {
	id := v.r.PathValue("id")
	index, instance, isInstance := strings.Cut(id, ":")
	n, err := strconv.Atoi(index)
	for i := range v.Devices {
		d := &v.Devices[i]
		switch {
		case d.UUID == id:
			return d, nil
		case err != nil || d.Index != n || isInstance != (d.MIG != nil):
		case !isInstance, instance == strconv.Itoa(d.MIG.GPUInstance):
			return d, nil
		}
	}
	return nil, notFound(fmt.Sprintf("no device %.100q: give an index, a UUID, or the index of a GPU and the number of its instance, such as 0:7", id))
}

func (v view) device() (any, error) {
	d, err := v.find()
	if err != nil {
		return nil, err
	}
	return deviceDoc(d, v.Interval, v.now), nil
}

// unknownHealth is the result where the library that judges has not answered, or no value
// was collected that says something.
const unknownHealth = "unknown"

func (v view) health() (any, error) {
	d, err := v.find()
	if err != nil {
		return nil, err
	}
	if d.MIG != nil {
		return nil, notFound("an instance has no health of its own: ask for its GPU")
	}
	results := map[uint8]string{gpu.HealthPass: "pass", gpu.HealthWarn: "warn", gpu.HealthFail: "fail"}
	doc := HealthDoc{UUID: d.UUID, Judge: "dcgm", Collected: known(d.Collected)}
	worst := uint8(gpu.HealthPass)
	of, judged := d.Health(v.now, gpu.MaxAge(v.Interval))
	_, couldJudge := v.agent.deps.Reader.(gpu.HealthReader)
	if !judged {
		doc.Judge = "gpupilot"
	}
	for w := range gpu.HealthWatch(gpu.HealthWatches) {
		system := SystemDoc{Name: w.String(), Result: results[of[w].Health], Code: of[w].Code}
		if !judged && of[w].Health == gpu.HealthPass && (couldJudge || !d.CanJudge(w)) {
			system.Result = unknownHealth
		}
		worst = max(worst, of[w].Health)
		doc.Systems = append(doc.Systems, system)
	}
	doc.Overall = results[worst]
	if !judged && couldJudge && worst == gpu.HealthPass {
		doc.Overall = unknownHealth
	}
	return doc, nil
}

func (v view) processes() (any, error) {
	d, err := v.find()
	if err != nil {
		return nil, err
	}
	list := processDocs(d)
	if list == nil {
		return nil, notFound("processes are not known: " + cmp.Or(message(d.ProcessesErr), "start the agent with --process-metrics"))
	}
	return *list, nil
}

func (v view) process() (any, error) {
	pid, err := strconv.Atoi(v.r.PathValue("pid"))
	if err != nil {
		return nil, notFound("a pid is a number")
	}
	list := []UseDoc{}
	for i := range v.Devices {
		d := &v.Devices[i]
		processes := processDocs(d)
		if processes == nil {
			continue
		}
		for _, p := range *processes {
			if p.PID == pid {
				list = append(list, UseDoc{d.UUID, d.Index, p})
			}
		}
	}
	if len(list) == 0 {
		return nil, notFound(fmt.Sprintf("process %d uses no device that is read, or processes are not known (--process-metrics)", pid))
	}
	return list, nil
}

func (v view) topology() (any, error) {
	doc := topologyDoc(v.agent.lastTopology.Load())
	if doc == nil {
		return nil, notFound("the topology is not known: it has not been read yet, or this backend does not give it")
	}
	return doc, nil
}

func (v view) discovery() (any, error) {
	doc := DiscoveryDoc{Devices: []FoundDoc{}, Switches: []int{}, CPUs: []int{}, GPUs: inventoryDoc(v.Inventory)}
	for i := range v.Devices {
		d := &v.Devices[i]
		doc.Devices = append(doc.Devices, FoundDoc{d.Index, d.UUID, d.PCIBusID, d.Model, migDoc(d.MIG)})
	}
	for i := range v.Parts {
		switch p := &v.Parts[i]; p.Kind {
		case gpu.NVSwitch:
			doc.Switches = append(doc.Switches, p.ID)
		case gpu.CPU:
			doc.CPUs = append(doc.CPUs, p.ID)
		}
	}
	return doc, nil
}

func (v view) status() (any, error) {
	doc := StatusDoc{
		Node: v.agent.cfg.Node, Version: v.agent.cfg.Version, Backend: v.Backend, IntervalSeconds: v.Interval.Seconds(), Time: v.Time.UTC(),
		Error: message(v.Err), Devices: len(v.Devices), Kubelet: v.agent.kubelet(v.Snapshot),
	}
	for i := range v.Devices {
		if isUp(&v.Devices[i], v.Interval, v.now) {
			doc.Up++
		}
	}
	return doc, nil
}
