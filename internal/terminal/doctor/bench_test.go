// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// fleetServer serves a large cluster, in pages and compressed as an API server does. Each
// answer comes after a round trip.
type fleetServer struct {
	*world
	mu    sync.Mutex
	pages map[string]map[int][][]byte // by list and size of a page: compressed
}

const roundTrip = 10 * time.Millisecond

func (s *fleetServer) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(roundTrip): // of a network that this machine does not have
	case <-r.Context().Done():
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	list := parts[len(parts)-1]
	if len(parts) > 4 && parts[len(parts)-2] != "v1" { // of a namespace
		if own := parts[len(parts)-2] + "/" + list; s.lists[own] != nil {
			list = own
		}
	}
	if strings.HasSuffix(r.URL.Path, "/gpupilot-system/pods") && r.URL.Query().Get("labelSelector") == discovery.DefaultAgents {
		list = "agents"
	}
	if len(s.lists[list]) < 10 {
		s.world.ServeHTTP(out, r)
		return
	}
	size, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	at, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	out.Header().Set("Content-Encoding", "gzip")
	_, _ = out.Write(s.page(list, size)[at])
}

// page returns the pages of a list.
func (s *fleetServer) page(list string, size int) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pages[list][size]; p != nil {
		return p
	}
	if s.pages[list] == nil {
		s.pages[list] = map[int][][]byte{}
	}
	items := s.lists[list]
	n := size
	if n == 0 {
		n = len(items)
	}
	var out [][]byte
	for from := 0; from < len(items); from += n {
		meta := object_{"resourceVersion": "1"}
		if to := from + n; to < len(items) {
			meta["continue"], meta["remainingItemCount"] = strconv.Itoa(len(out)+1), len(items)-to
		}
		b, err := json.Marshal(object_{"kind": "List", "metadata": meta, "items": items[from:min(from+n, len(items))]})
		if err != nil {
			panic(err)
		}
		var z bytes.Buffer
		w, _ := gzip.NewWriterLevel(&z, 1)
		_, _ = w.Write(b)
		_ = w.Close()
		out = append(out, z.Bytes())
	}
	s.pages[list][size] = out
	return out
}

// largeCluster is a healthy cluster of that many GPU nodes, each with an agent, of objects
// as long as those of a cloud, and 500 GPUAutoscalers with two schedules in 50 namespaces.
func largeCluster(b *testing.B, nodes int) *fleetServer {
	b.Helper()
	w := healthy(b)
	clone := func(o object_) object_ {
		text, err := json.Marshal(o)
		if err != nil {
			b.Fatal(err)
		}
		var out object_
		if err := json.Unmarshal(text, &out); err != nil {
			b.Fatal(err)
		}
		return out
	}
	node, agent, scaler, workload := w.lists["nodes"][0], w.lists["pods"][0], w.lists["gpuautoscalers"][0], w.lists["deployments"][0]
	controller := w.lists["pods"][2]
	w.lists["nodes"], w.lists["pods"], w.lists["gpuautoscalers"], w.lists["deployments"] = nil, []object_{controller}, nil, nil
	labels, images, fields := object_{"nvidia.com/gpu.present": "true"}, []any{}, object_{}
	for i := range 40 {
		labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE-%d", i)] = "true"
		images = append(images, object_{"names": []any{fmt.Sprintf("registry.example/team/image-%d@sha256:%064x", i, i), fmt.Sprintf("registry.example/team/image-%d:v1.2.%d", i, i)}, "sizeBytes": 1234567890})
		fields[fmt.Sprintf("f:field-%d", i)] = object_{".": object_{}, "f:value": object_{}}
	}
	managed := []any{object_{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}}
	for i := range nodes {
		name := fmt.Sprintf("gke-fleet-a3-highgpu-8g-%05d.internal", i)
		n, p := clone(node), clone(agent)
		n["metadata"] = object_{"name": name, "labels": labels, "managedFields": managed}
		n["status"].(object_)["images"] = images
		p["metadata"].(object_)["name"], p["metadata"].(object_)["managedFields"] = "gpupilot-agent-"+strconv.Itoa(i), managed
		p["spec"].(object_)["nodeName"] = name
		p["status"].(object_)["containerStatuses"] = []any{object_{"name": "agent", "ready": true, "image": "agent", "imageID": "sha256:1", "state": object_{"running": object_{"startedAt": "2026-11-24T11:00:00Z"}}}}
		w.lists["nodes"], w.lists["agents"] = append(w.lists["nodes"], n), append(w.lists["agents"], p)
	}
	for i := range 500 {
		a, d := clone(scaler), clone(workload)
		meta := func() object_ {
			return object_{"namespace": fmt.Sprintf("team-%d", i%50), "name": fmt.Sprintf("chat-%d", i), "managedFields": managed}
		}
		a["metadata"], d["metadata"] = meta(), meta()
		spec := a["spec"].(object_)
		spec["scaleTargetRef"].(object_)["name"] = fmt.Sprintf("chat-%d", i)
		spec["schedules"] = parse(b, schedulesOf(office, `{name: night, start: "22:00", end: "06:00", timezone: Europe/Berlin, maxReplicas: 2}`))["schedules"]
		own := fmt.Sprintf("team-%d/deployments", i%50)
		w.lists["gpuautoscalers"], w.lists[own] = append(w.lists["gpuautoscalers"], a), append(w.lists[own], d)
	}
	for i := range nodes {
		w.view.Targets = append(w.view.Targets, view.Target{Name: strconv.Itoa(i), Kind: "agent", Up: true})
	}
	return &fleetServer{world: w, pages: map[string]map[int][][]byte{}}
}

// All checks of a cluster of 10,000 nodes, from the first request to the report. The cluster is
// served by the same process: its time is in the figure, but not that of compressing.
func BenchmarkDoctor(b *testing.B) {
	for _, nodes := range []int{100, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			s := largeCluster(b, nodes)
			ask := func() {
				results, _ := s.examineOn(b, s, Selection{})
				if got := failed(results); len(got) > 0 {
					b.Fatalf("%v failed", got)
				}
			}
			ask()
			b.ReportAllocs()
			for b.Loop() {
				ask()
			}
		})
	}
}
