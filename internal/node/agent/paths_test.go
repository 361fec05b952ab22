// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/client"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Each path answers, also under its old names, refuses parameters, and is in the description.
func TestPaths(t *testing.T) {
	instance := gpu.Device{Index: 2, Minor: 2, UUID: "MIG-7", Model: "fake", MIG: &gpu.MIG{ParentUUID: "GPU-2", GPUInstance: 7, Profile: "1g.18gb"}}
	devices := append(gpus(2), instance)
	x := newLister()
	x.list["GPU-1"] = []gpu.Process{process(4711, "ua", .5)}
	withProcesses(t, time.Second, newReader(devices...), x, nil, func(n *node) {
		n.pass(3 * time.Second)
		h := n.Handler()
		f := func(path string, want int, parts ...string) {
			t.Helper()
			code, body := fetch(t, h, path)
			if code != want {
				t.Errorf("%s: %d %s, want %d", path, code, body, want)
			}
			if code == http.StatusOK && !json.Valid([]byte(body)) {
				t.Errorf("%s: %s", path, body)
			}
			for _, p := range parts {
				if !strings.Contains(body, p) {
					t.Errorf("%s: %s\nlacks %s", path, body, p)
				}
			}
			if code == http.StatusOK {
				if code, body := fetch(t, h, path+"?x=1"); code != http.StatusBadRequest {
					t.Errorf("%s?x=1: %d %s", path, code, body)
				}
			}
		}
		f("/api/v1/gpus", 200, `"uuid": "GPU-0"`)
		f("/api/v1/gpus/1", 200, `"uuid": "GPU-1"`)
		f("/api/v1/gpus/GPU-1", 200, `"index": 1`)
		f("/api/v1/gpus/2:7", 200, `"uuid": "MIG-7"`)
		f("/api/v1/gpus/MIG-7", 200, `"profile": "1g.18gb"`)
		for _, id := range []string{"2", "3", "-1", "2:8", "0:7", "GPU-9", "%3Cscript%3E", strings.Repeat("9", 1000)} {
			f("/api/v1/gpus/"+id, 404, "no device")
		}
		f("/api/v1/gpus/0/health", 200, `"judge": "dcgm"`, `"name": "MEM",
      "result": "warn"`, `"overall": "warn"`) // whatever the collectors show
		f("/api/v1/gpus/2:7/health", 404)
		f("/api/v1/gpus/1/processes", 200, `"pid": 4711`)
		f("/api/v1/processes/4711", 200, `"uuid": "GPU-1"`)
		f("/api/v1/processes/1", 404)
		f("/api/v1/processes/x", 404)
		f("/api/v1/topology", 404) // this reader has none
		f("/api/v1/discovery", 200, `"gpuInstance": 7`, `"switches": []`)
		f("/api/v1/status", 200, `"devices": 3`, `"up": 3`)
		f("/dcgm/device/info/id/1", 200, `"uuid": "GPU-1"`)
		f("/dcgm/device/info/uuid/GPU-1/json", 200, `"uuid": "GPU-1"`)
		f("/dcgm/device/status/id/1/json", 200, `"values"`)
		f("/dcgm/process/info/pid/4711", 200, `"pid": 4711`)
		f("/dcgm/health/id/1", 200, `"systems"`)
		f("/dcgm/status", 200, `"backend": "fake"`)
		f("/dcgm/device/info/id/7", 404)
		f("/api/v1/openapi.json", 200, `"openapi": "3.1.0"`, `"/api/v1/gpus/{id}/health"`, `"$ref": "#/components/schemas/Device"`)
	})
	a := New(Config{Interval: time.Second}, Deps{Metrics: http.NotFoundHandler()})
	if code, _ := fetch(t, a.Handler(), "/api/v1/status"); code != http.StatusServiceUnavailable {
		t.Errorf("before the first collection: %d", code)
	}
}

// package client has all that the paths answer.
func TestClientHasIt(t *testing.T) {
	answers := map[string]any{
		"/api/v1/gpus": client.Node{}, "/api/v1/gpus/{id}": client.Device{}, "/api/v1/gpus/{id}/health": client.Health{},
		"/api/v1/gpus/{id}/processes": []client.Process{}, "/api/v1/processes/{pid}": []client.Use{}, "/api/v1/topology": client.Topology{},
		"/api/v1/discovery": client.Discovery{}, "/api/v1/status": client.Status{},
	}
	for _, p := range paths {
		if answers[p.pattern] == nil {
			t.Errorf("package client lacks %s", p.pattern)
			continue
		}
		if diff := cmp.Diff(flat(reflect.TypeOf(p.of)), flat(reflect.TypeOf(answers[p.pattern]))); diff != "" {
			t.Errorf("%s, agent and client: %s", p.pattern, diff)
		}
	}
}

// flat describes a type without its names.
func flat(t reflect.Type) any {
	switch {
	case t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[json.Number]():
		return t.String()
	case t.Kind() == reflect.Struct:
		out := map[string]any{}
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				maps.Copy(out, flat(f.Type).(map[string]any))
				continue
			}
			out[f.Tag.Get("json")] = flat(f.Type)
		}
		return out
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Slice, t.Kind() == reflect.Array, t.Kind() == reflect.Map:
		return []any{t.Kind().String(), flat(t.Elem())}
	}
	return t.Kind().String()
}

// The description has each path, and each of its references leads somewhere.
func TestOpenAPI(t *testing.T) {
	var d struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas map[string]any }
	}
	text := openAPI("1")
	if err := json.Unmarshal(text, &d); err != nil || len(d.Paths) != len(paths) {
		t.Fatalf("%d paths, %v", len(d.Paths), err)
	}
	for _, part := range strings.Split(string(text), `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if d.Components.Schemas[name] == nil {
			t.Errorf("no schema %s", name)
		}
	}
	device, _ := json.Marshal(d.Components.Schemas["Device"])
	if !slices.ContainsFunc([]string{`"uuid":{"type":"string"}`}, func(p string) bool { return strings.Contains(string(device), p) }) || strings.Contains(string(device), `""`) {
		t.Errorf("%s", device)
	}
	for old, to := range oldPaths {
		if !slices.ContainsFunc(paths, func(p path) bool { return p.pattern == to }) {
			t.Errorf("%s leads to %s, which is not there", old, to)
		}
	}
}

// withoutVerdicts is a reader whose library does not judge, withSilent one whose library does not answer.
type (
	withoutVerdicts struct{ gpu.Reader }
	withSilent      struct{ gpu.Reader }
)

func (withSilent) Health(string) (*gpu.Verdicts, error) { return nil, gpu.ErrNoDriver }

// A system is never called healthy by a judge that was not asked, nor without a value that says it.
func TestHealthIsNotGuessed(t *testing.T) {
	f := func(r gpu.Reader, d gpu.DeviceSnapshot, want string) {
		t.Helper()
		a := New(Config{Interval: time.Second}, Deps{Reader: r, Metrics: http.NotFoundHandler()})
		now := time.Now()
		d.UUID, d.Collected = "GPU-0", now
		a.snapshot.Store(&gpu.Snapshot{Time: now, Interval: time.Second, Devices: []gpu.DeviceSnapshot{d}})
		code, body := fetch(t, a.Handler(), "/api/v1/gpus/0/health")
		var doc HealthDoc
		if err := json.Unmarshal([]byte(body), &doc); err != nil || code != http.StatusOK {
			t.Fatalf("%d %v %s", code, err, body)
		}
		got := doc.Judge + " " + doc.Overall
		for _, s := range doc.Systems {
			if s.Name == "MEM" || s.Name == "DRIVER" || s.Name == "POWER" {
				got += " " + s.Name + "=" + s.Result
			}
		}
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	var values, bad gpu.Values
	values.Set(gpu.RowRemapFailure, 0)
	bad.Set(gpu.RowRemapFailure, 1)
	f(withoutVerdicts{}, gpu.DeviceSnapshot{}, "gpupilot pass MEM=unknown POWER=unknown DRIVER=pass")
	f(withoutVerdicts{}, gpu.DeviceSnapshot{Values: values}, "gpupilot pass MEM=pass POWER=unknown DRIVER=pass")
	f(withSilent{}, gpu.DeviceSnapshot{Values: values}, "gpupilot unknown MEM=unknown POWER=unknown DRIVER=unknown")
	f(withSilent{}, gpu.DeviceSnapshot{Values: bad}, "gpupilot fail MEM=fail POWER=unknown DRIVER=unknown")
	f(withSilent{}, gpu.DeviceSnapshot{Verdicts: &gpu.Verdicts{gpu.WatchMem: {Health: gpu.HealthFail}}}, "dcgm fail MEM=fail POWER=pass DRIVER=pass")
}
