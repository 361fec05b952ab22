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
	// DefaultProc is where a kernel tells of its processes.
	DefaultProc = "/proc"
	// DefaultLogs is where a kubelet keeps pods' logs, unless its podLogsDir says
	// otherwise.
	DefaultLogs = "/var/log/pods"

	// namesEvery is the least time between two looks at the logs' directory.
	namesEvery = time.Second
	// keepUnused is how long a process is remembered that nobody asks for.
	keepUnused = time.Minute
)

// Table remembers where processes run: a process is looked at once. It is safe
// for concurrent use.
type Table struct {
	proc, logs string
	now        func() time.Time

	mu    sync.Mutex
	known map[int]*process
	swept time.Time

	naming  sync.Mutex // held while the logs' directory is read
	listed  time.Time
	podsNow atomic.Pointer[map[string]gpu.PodName]
}

// process is what is known of a process. A later one may have its PID, and is
// told by its start.
type process struct {
	start string // in ticks since the machine's
	place gpu.Place
	used  time.Time
}

// New makes a table of the processes in proc, with names of pods from logs.
func New(proc, logs string) *Table {
	t := &Table{proc: proc, logs: logs, now: time.Now, known: map[int]*process{}}
	t.podsNow.Store(&map[string]gpu.PodName{})
	return t
}

// Place says where a process runs. A process that is not there, or not any
// more, is gpu.Unseen.
func (t *Table) Place(pid int) gpu.Place {
	p := t.place(pid)
	if _, named := t.Pods()[p.PodUID]; p.Kind == gpu.InPod && !named {
		t.refresh()
	}
	return p
}

func (t *Table) place(pid int) gpu.Place {
	name, start, ok := parseStat(t.read(pid, "stat"))
	if !ok {
		return gpu.Place{}
	}
	now := t.now()
	t.mu.Lock()
	t.sweep(now)
	p := t.known[pid]
	if p != nil && p.start == start {
		p.used, p.place.Name = now, name
		place := p.place
		t.mu.Unlock()
		return place
	}
	t.mu.Unlock()
	place := t.look(pid)
	if place.Kind == gpu.Unseen {
		return place
	}
	place.Name = name
	t.mu.Lock()
	t.known[pid] = &process{start: start, place: place, used: now}
	t.mu.Unlock()
	return place
}

// sweep forgets who was not asked for. t.mu is held.
func (t *Table) sweep(now time.Time) {
	if now.Sub(t.swept) < keepUnused {
		return
	}
	t.swept = now
	for pid, p := range t.known {
		if now.Sub(p.used) > keepUnused {
			delete(t.known, pid)
		}
	}
}

// look reads where a process runs.
func (t *Table) look(pid int) gpu.Place {
	cgroup := t.read(pid, "cgroup")
	if cgroup == "" {
		return gpu.Place{}
	}
	uid, id := parseCgroup(cgroup)
	mountUID, container := parseMounts(t.read(pid, "mountinfo"))
	switch {
	case uid == "" && mountUID == "":
		return gpu.Place{Kind: gpu.OnHost}
	case uid == "": // a reader in the pod's own cgroup namespace does not see its UID
		uid = mountUID
	case uid != mountUID: // a container in a pod's container has its own mounts
		container = ""
	}
	return gpu.Place{Kind: gpu.InPod, PodUID: uid, ContainerID: id, Container: container}
}

// read reads a file of a process; empty: it cannot be read.
func (t *Table) read(pid int, file string) string {
	if pid <= 0 {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(pid), file))
	if err != nil {
		return ""
	}
	return string(b)
}

// parseStat reads a /proc/PID/stat: the command's name and when it started. A
// name may hold anything, brackets too.
func parseStat(text string) (name, start string, ok bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return "", "", false
	}
	// What follows the name begins with field 3; the start is field 22.
	fields := strings.Fields(text[end+1:])
	const at = 22 - 3
	if len(fields) <= at {
		return "", "", false
	}
	return strings.ToValidUTF8(text[open+1:end], "?"), fields[at], true
}

// Pods are the pods that have a directory of logs, by UID. Nobody changes what
// it returns. It never blocks: Place looks for those that are new.
func (t *Table) Pods() map[string]gpu.PodName { return *t.podsNow.Load() }

// refresh looks at the directories of logs, unless it did a moment ago. Each is
// named NAMESPACE_NAME_UID, and no part can hold a _.
func (t *Table) refresh() {
	t.naming.Lock()
	defer t.naming.Unlock()
	now := t.now()
	if now.Sub(t.listed) < namesEvery {
		return
	}
	t.listed = now
	entries, err := os.ReadDir(t.logs)
	if err != nil {
		return // not mounted: names come from elsewhere or not at all
	}
	pods := make(map[string]gpu.PodName, len(entries))
	for _, e := range entries {
		if p := strings.Split(e.Name(), "_"); len(p) == 3 && isUID(p[2]) {
			pods[p[2]] = gpu.PodName{Namespace: p[0], Name: p[1]}
		}
	}
	t.podsNow.Store(&pods)
}

// SeesNode says whether the node's processes are seen, not only those of our own
// container, or of our own pod.
func (t *Table) SeesNode() bool {
	if name, _, _ := parseStat(t.read(2, "stat")); name == "kthreadd" {
		return true // no container has the kernel's own
	}
	// On a node that is a container itself, the first process is its init, which
	// is not in our cgroup. In a container it is ours, or the pod's pause.
	name, _, ok := parseStat(t.read(1, "stat"))
	self := t.read(os.Getpid(), "cgroup")
	return ok && name != "pause" && self != "" && self != t.read(1, "cgroup")
}
