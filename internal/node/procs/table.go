// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// DefaultProc is the mount point of the proc file system.
	DefaultProc = "/proc"
	// DefaultLogs is the default of the kubelet's podLogsDir.
	DefaultLogs = "/var/log/pods"

	// minNameInterval is the minimum time between two reads of the logs' directory.
	minNameInterval = time.Second
	// unusedTTL is how long an unused entry of a process is kept.
	unusedTTL = time.Minute
)

// Table caches the places of processes: it reads the files of each process once. It is
// safe for concurrent use.
type Table struct {
	proc, logs string
	now        func() time.Time

	mu        sync.Mutex
	processes map[int]*process
	sweptAt   time.Time

	listing  sync.Mutex // held while the logs' directory is read
	listedAt time.Time
	podNames atomic.Pointer[map[string]gpu.PodName]
}

// process is a cached entry. A later process with the same PID has another start.
type process struct {
	start string // in ticks since the boot
	place gpu.Place
	used  time.Time
}

// New makes a table of the processes in proc, with the names of pods from logs.
func New(proc, logs string) *Table {
	t := &Table{proc: proc, logs: logs, now: time.Now, processes: map[int]*process{}}
	t.podNames.Store(&map[string]gpu.PodName{})
	return t
}

// Place returns the pod and container of a process. A process that does not exist is
// gpu.Unseen.
func (t *Table) Place(pid int) gpu.Place {
	p := t.place(pid)
	if _, named := t.Pods()[p.PodUID]; p.Kind == gpu.InPod && !named {
		t.refreshNames()
	}
	return p
}

func (t *Table) place(pid int) gpu.Place {
	name, start, ok := parseStat(t.readFile(pid, "stat"))
	if !ok {
		return gpu.Place{}
	}
	now := t.now()
	t.mu.Lock()
	t.sweep(now)
	p := t.processes[pid]
	if p != nil && p.start == start {
		p.used, p.place.Name = now, name
		place := p.place
		t.mu.Unlock()
		return place
	}
	t.mu.Unlock()
	place := t.readPlace(pid)
	if place.Kind == gpu.Unseen {
		return place
	}
	place.Name = name
	t.mu.Lock()
	t.processes[pid] = &process{start: start, place: place, used: now}
	t.mu.Unlock()
	return place
}

// sweep deletes unused entries. t.mu is held.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.sweptAt) < unusedTTL {
		return
	}
	t.sweptAt = now
	for pid, p := range t.processes {
		if now.Sub(p.used) > unusedTTL {
			delete(t.processes, pid)
		}
	}
}

// readPlace reads the place of a process from its files.
func (t *Table) readPlace(pid int) gpu.Place {
	cgroup := t.readFile(pid, "cgroup")
	if cgroup == "" {
		return gpu.Place{}
	}
	uid, id := parseCgroup(cgroup)
	mountUID, container := parseMountinfo(t.readFile(pid, "mountinfo"))
	switch {
	case uid == "" && mountUID == "":
		return gpu.Place{Kind: gpu.OnHost}
	case uid == "": // the UID is hidden from a reader in the pod's own cgroup namespace
		uid = mountUID
	case uid != mountUID: // a nested container has mounts of its own
		container = ""
	}
	return gpu.Place{Kind: gpu.InPod, PodUID: uid, ContainerID: id, Container: container}
}

// readFile reads a file of a process. It returns "" if that fails.
func (t *Table) readFile(pid int, file string) string {
	if pid <= 0 {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), file))
	if err != nil {
		return ""
	}
	return string(b)
}

// parseStat parses /proc/PID/stat: the command's name and its start. A name may contain
// any characters, including brackets.
func parseStat(text string) (name, start string, ok bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return "", "", false
	}
	// The fields after the name start with field 3; the start is field 22.
	fields := strings.Fields(text[end+1:])
	const at = 22 - 3
	if len(fields) <= at {
		return "", "", false
	}
	return strings.ToValidUTF8(text[open+1:end], "?"), fields[at], true
}

// Pods returns the pods with a directory of logs, by UID. The result must not be
// changed. Pods never blocks: Place reads the directory when it meets a new pod.
func (t *Table) Pods() map[string]gpu.PodName { return *t.podNames.Load() }

// refreshNames reads the directories of logs, at most once per minNameInterval. They
// are named NAMESPACE_NAME_UID, and no part can contain a _.
func (t *Table) refreshNames() {
	t.listing.Lock()
	defer t.listing.Unlock()
	now := t.now()
	if now.Sub(t.listedAt) < minNameInterval {
		return
	}
	t.listedAt = now
	entries, err := os.ReadDir(t.logs)
	if err != nil {
		return // not mounted: the names come from the API server, if at all
	}
	pods := make(map[string]gpu.PodName, len(entries))
	for _, e := range entries {
		if p := strings.Split(e.Name(), "_"); len(p) == 3 && isUID(p[2]) {
			pods[p[2]] = gpu.PodName{Namespace: p[0], Name: p[1]}
		}
	}
	t.podNames.Store(&pods)
}

// SeesNode reports whether proc has the processes of the whole node, and not only those
// of this container or pod.
func (t *Table) SeesNode() bool {
	if name, _, _ := parseStat(t.readFile(2, "stat")); name == "kthreadd" {
		return true // kernel threads are not visible in containers
	}
	// On a node that is itself a container, process 1 is the node's init, in another
	// cgroup. In a container, process 1 is the container's or the pod's pause.
	name, _, ok := parseStat(t.readFile(1, "stat"))
	self := t.readFile(os.Getpid(), "cgroup")
	return ok && name != "pause" && self != "" && self != t.readFile(1, "cgroup")
}
