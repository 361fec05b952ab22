// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// fakeDocker answers on a unix socket with what is in answers, by path.
type fakeDocker struct {
	mu      sync.Mutex
	answers map[string]string
	asked   []string
}

func (f *fakeDocker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.URL.Path)
	a, ok := f.answers[r.URL.Path]
	switch {
	case !ok:
		http.NotFound(w, r)
	case a == "":
		http.Error(w, "out of order", http.StatusInternalServerError)
	default:
		_, _ = w.Write([]byte(a))
	}
}

func serve(t *testing.T, answers map[string]string) (*fakeDocker, *Client) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeDocker{answers: answers}
	s := &http.Server{Handler: f}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return f, New(socket)
}

func TestContainers(t *testing.T) {
	f, c := serve(t, map[string]string{
		"/containers/json":                    `[{"Id":"aa11"},{"Id":"bb22"},{"Id":"cc33"},{"Id":"dd44"},{"Id":"ee5566778899aabbcc"},{"Id":"ff66"},{"Id":"gone"}]`,
		"/containers/aa11/json":               `{"Id":"aa11","Name":"/train","HostConfig":{"DeviceRequests":[{"Driver":"","Count":0,"DeviceIDs":["GPU-1","2"],"Capabilities":[["gpu"]]}]}}`,
		"/containers/bb22/json":               `{"Id":"bb22","Name":"/all","Config":{"Env":["A=b","NVIDIA_VISIBLE_DEVICES=3"]},"HostConfig":{"DeviceRequests":[{"Driver":"nvidia","Count":-1}]}}`,
		"/containers/cc33/json":               `{"Id":"cc33","Name":"/some","HostConfig":{"DeviceRequests":[{"Driver":"nvidia","Count":2}]},"Config":{"Env":["NVIDIA_VISIBLE_DEVICES=all"]}}`,
		"/containers/dd44/json":               `{"Id":"dd44","Name":"/old","Config":{"Env":["NVIDIA_VISIBLE_DEVICES= GPU-7 , MIG-1,0:1"]},"HostConfig":{}}`,
		"/containers/ff66/json":               `{"Id":"ff66","Name":"/none","Config":{"Env":["NVIDIA_VISIBLE_DEVICES=void"]},"HostConfig":{"DeviceRequests":null}}`,
		"/containers/ee5566778899aabbcc/json": `{"Id":"ee55","Config":{"Env":["NVIDIA_VISIBLE_DEVICES=all"]}}`,
	})
	want := []Container{
		{Name: "all", All: true},
		{Name: "ee5566778899", All: true},
		{Name: "old", Devices: []string{"GPU-7", "MIG-1", "0:1"}},
		{Name: "train", Devices: []string{"GPU-1", "2"}},
	}
	for range 2 {
		got, err := c.Containers(context.Background())
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	inspected := 0
	for _, path := range f.asked {
		if strings.HasSuffix(path, "aa11/json") {
			inspected++
		}
	}
	if inspected != 1 {
		t.Errorf("a container was inspected %d times", inspected)
	}
	f.mu.Lock()
	f.answers["/containers/json"] = ""
	f.mu.Unlock()
	if _, err := c.Containers(context.Background()); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("a failure: %v", err)
	}
}

func TestNoDocker(t *testing.T) {
	if _, err := New(filepath.Join(t.TempDir(), "none")).Containers(context.Background()); err == nil {
		t.Error("there is a Docker")
	}
}

func TestAllocations(t *testing.T) {
	devices := []gpu.Device{
		{Index: 0, UUID: "GPU-0"},
		{Index: 1, UUID: "MIG-a", MIG: &gpu.MIG{ParentUUID: "GPU-1", GPUInstance: 7}},
		{Index: 1, UUID: "MIG-b", MIG: &gpu.MIG{ParentUUID: "GPU-1", GPUInstance: 8}},
	}
	f := func(c Container, want ...string) {
		t.Helper()
		var got []string
		for _, a := range Allocations([]Container{c}, devices) {
			got = append(got, a.DeviceID)
			if a.Owner.Container != c.Name {
				t.Errorf("%+v", a)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
	f(Container{Name: "a", All: true}, "GPU-0", "MIG-a", "MIG-b")
	f(Container{Name: "a", Devices: []string{"0"}}, "GPU-0")
	f(Container{Name: "a", Devices: []string{"GPU-0", "MIG-b"}}, "GPU-0", "MIG-b")
	f(Container{Name: "a", Devices: []string{"1"}}, "MIG-a", "MIG-b")
	f(Container{Name: "a", Devices: []string{"GPU-1"}}, "MIG-a", "MIG-b")
	f(Container{Name: "a", Devices: []string{"1:1"}}, "MIG-b")
	f(Container{Name: "a", Devices: []string{"0:0", "9", "-1", "GPU-x"}}, "0:0", "9", "-1", "GPU-x")
}

func FuzzContainer(f *testing.F) {
	f.Add("/n", "GPU-1,2", "nvidia", -1)
	f.Add("\xff/", "all,0", "", 0)
	f.Fuzz(func(t *testing.T, n, env, driver string, count int) {
		i := inspectResponse{Name: n}
		i.Config.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + env}
		i.HostConfig.DeviceRequests = []deviceRequest{{Driver: driver, Count: count}}
		c := i.toContainer("0123456789abcdef")
		if c.Name == "" || len(c.Name) > maxName || strings.ToValidUTF8(c.Name, "") != c.Name || c.All && len(c.Devices) > 0 {
			t.Errorf("%q %q: %+v", n, env, c)
		}
	})
}
