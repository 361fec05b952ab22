// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Owner is the container that holds a GPU; the zero value: none.
type Owner struct{ Namespace, Pod, Container string }

// Owners has the owner of each GPU by UUID. From /metrics it has an entry for every GPU, from other sources only for
// GPUs with an owner.
type Owners map[string]Owner

// Taken returns o without the GPUs that have no owner.
func (o Owners) Taken() Owners {
	taken := Owners{}
	for id, owner := range o {
		if owner != (Owner{}) {
			taken[id] = owner
		}
	}
	return taken
}

// ScrapeOwners reads the owners from the labels at an agent's /metrics. All series of a GPU must name the same owner.
func ScrapeOwners(ctx context.Context, url string) (Owners, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", url, err)
	}
	return labelledOwners(families)
}

// labelledOwners reads the owners from the series with dcgm-exporter's names, which all GPUs have alike.
func labelledOwners(families map[string]*dto.MetricFamily) (Owners, error) {
	owners := Owners{}
	for name, family := range families {
		if !strings.HasPrefix(name, "DCGM_FI_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			id, owner := ownerLabels(metric)
			if before, ok := owners[id]; ok && before != owner {
				return nil, fmt.Errorf("GPU %s belongs to %v by %s and to %v by another metric", id, owner, name, before)
			}
			owners[id] = owner
		}
	}
	return owners, nil
}

// ownerLabels are the GPU and its owner by the labels of one series.
func ownerLabels(metric *dto.Metric) (id string, owner Owner) {
	for _, label := range metric.GetLabel() {
		switch label.GetName() {
		case "UUID":
			id = label.GetValue()
		case "namespace":
			owner.Namespace = label.GetValue()
		case "pod":
			owner.Pod = label.GetValue()
		case "container":
			owner.Container = label.GetValue()
		}
	}
	return id, owner
}

// AllocatedOwners reads the owner of each GPU from the kubelet's pod-resources socket.
func AllocatedOwners(ctx context.Context, socket string) (Owners, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, err
	}
	owners := Owners{}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				if devices.GetResourceName() != GPUResource {
					continue
				}
				for _, id := range devices.GetDeviceIds() {
					owners[id] = Owner{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
				}
			}
		}
	}
	return owners, nil
}

// Container is a running container with devices.
type Container struct {
	PID    int
	PodUID string
	GPUs   []string // UUIDs, sorted
}

// RunningContainers finds the containers with devices among the processes: which devices, by the environment that the
// process was started with; which pod, by the cgroup that it is in.
func RunningContainers() ([]Container, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var containers []Container
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // it has ended since
		}
		cgroups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		c := Container{PodUID: podOfCgroup(string(cgroups))}
		for _, variable := range strings.Split(string(environ), "\x00") {
			if ids, ok := strings.CutPrefix(variable, visibleDevices+"="); ok {
				c.GPUs = strings.Split(ids, ",")
			}
		}
		if c.PodUID == "" || c.GPUs == nil {
			continue
		}
		slices.Sort(c.GPUs)
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &c.PID); err != nil {
			return nil, err
		}
		containers = append(containers, c)
	}
	return containers, nil
}

// podOfCgroup is the UID of the pod whose cgroup a process is in, by its /proc/PID/cgroup file; "" if it is in none.
func podOfCgroup(file string) string {
	for line := range strings.Lines(file) {
		for _, part := range strings.Split(strings.TrimSpace(line), "/") {
			if uid, ok := strings.CutPrefix(part, "pod"); ok {
				return uid
			}
		}
	}
	return ""
}

// Watch polls an agent's /metrics all through a test and keeps what it said of each GPU.
type Watch struct {
	url string

	mu      sync.Mutex
	polls   int
	errors  []string
	changes map[string][]Change
}

// Change is a new owner of a GPU, including the first one.
type Change struct {
	At    time.Time
	Owner Owner
}

// NewWatch watches the agent at url.
func NewWatch(url string) *Watch {
	return &Watch{url: url, changes: map[string][]Change{}}
}

// Run polls every 100 ms until ctx ends. A scrape that fails, or that lacks a GPU of an earlier one, is an error to keep.
func (w *Watch) Run(ctx context.Context) {
	for wait(ctx, 100*time.Millisecond) {
		owners, err := ScrapeOwners(ctx, w.url)
		if ctx.Err() != nil {
			return
		}
		w.note(owners, err, time.Now())
	}
}

func (w *Watch) note(owners Owners, err error, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.polls++
	if err != nil {
		w.errors = append(w.errors, fmt.Sprintf("%s: %v", now.Format(time.TimeOnly), err))
		return
	}
	for id := range w.changes {
		if _, ok := owners[id]; !ok {
			w.errors = append(w.errors, fmt.Sprintf("%s: no series of GPU %s", now.Format(time.TimeOnly), id))
		}
	}
	for id, owner := range owners {
		if past := w.changes[id]; len(past) == 0 || past[len(past)-1].Owner != owner {
			w.changes[id] = append(past, Change{At: now, Owner: owner})
		}
	}
}

// Polls returns the number of scrapes.
func (w *Watch) Polls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.polls
}

// Errors returns the errors so far.
func (w *Watch) Errors() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.errors)
}

// Owners returns the agent's last owner of every GPU that it ever exposed.
func (w *Watch) Owners() Owners {
	w.mu.Lock()
	defer w.mu.Unlock()
	owners := Owners{}
	for id, past := range w.changes {
		owners[id] = past[len(past)-1].Owner
	}
	return owners
}

// Changes returns the history of each GPU's owner.
func (w *Watch) Changes() map[string][]Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := make(map[string][]Change, len(w.changes))
	for id, past := range w.changes {
		changes[id] = slices.Clone(past)
	}
	return changes
}
