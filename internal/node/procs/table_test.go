// SPDX-License-Identifier: Apache-2.0

package procs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// tree is a /proc and a directory of logs of our own.
type tree struct {
	t          *testing.T
	proc, logs string
	table      *Table
	now        time.Time
}

func newTree(t *testing.T) *tree {
	x := &tree{t: t, proc: t.TempDir(), logs: t.TempDir(), now: time.Unix(1_700_000_000, 0)}
	x.table = New(x.proc, x.logs)
	x.table.now = func() time.Time { return x.now }
	return x
}

func (x *tree) write(pid int, file, text string) {
	x.t.Helper()
	dir := filepath.Join(x.proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		x.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
}

// process makes a process that has begun at start.
func (x *tree) process(pid int, name string, start int, cgroup, mounts string) {
	x.t.Helper()
	x.write(pid, "stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 %d 170000000 2900 18446744073709551615 1 1\n", pid, name, start))
	x.write(pid, "cgroup", cgroup)
	x.write(pid, "mountinfo", mounts)
}

const termination = "1132 1104 259:1 /var/lib/kubelet/pods/" + uid + "/containers/server/6d7c8bf1 /dev/termination-log rw - xfs /dev/x rw\n"

func TestPlace(t *testing.T) {
	x := newTree(t)
	f := func(pid int, want gpu.Place) {
		t.Helper()
		if got := x.table.Place(pid); got != want {
			t.Errorf("process %d: %+v, want %+v", pid, got, want)
		}
	}
	f(0, gpu.Place{})
	f(-1, gpu.Place{})
	f(7, gpu.Place{}) // there is none
	x.process(10, "python3", 100, "0::/kubepods/pod"+uid+"/"+id+"\n", termination)
	f(10, gpu.Place{Kind: gpu.InPod, Name: "python3", PodUID: uid, ContainerID: id, Container: "server"})
	x.process(11, "a) b (c", 100, "0::/init.scope\n", "")
	f(11, gpu.Place{Kind: gpu.OnHost, Name: "a) b (c"})
	// The cgroup tells nothing, as in a cgroup namespace of the same pod.
	x.process(12, "worker", 100, "0::/../cri-containerd-"+id+".scope\n", termination)
	f(12, gpu.Place{Kind: gpu.InPod, Name: "worker", PodUID: uid, Container: "server"})
	// A container within the pod's, with another pod's mounts.
	x.process(13, "inner", 100, "0::/kubepods/pod"+uid2+"/"+id+"\n", termination)
	f(13, gpu.Place{Kind: gpu.InPod, Name: "inner", PodUID: uid2, ContainerID: id})
	// No mounts can be read.
	x.process(14, "x", 100, "0::/kubepods/pod"+uid+"/"+id+"\n", "")
	f(14, gpu.Place{Kind: gpu.InPod, Name: "x", PodUID: uid, ContainerID: id})
	// It ended between two looks.
	x.write(15, "stat", "15 (gone) Z")
	f(15, gpu.Place{})
	x.write(16, "stat", "16 (gone) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 5 170000000")
	f(16, gpu.Place{})
}

// A process is looked at once; its PID's next owner is another.
func TestPIDsAreUsedAgain(t *testing.T) {
	x := newTree(t)
	x.process(10, "python3", 100, "0::/kubepods/pod"+uid+"/"+id+"\n", termination)
	first := x.table.Place(10)
	x.write(10, "cgroup", "0::/\n")
	if again := x.table.Place(10); again != first {
		t.Errorf("looked at again: %+v", again)
	}
	x.process(10, "bash", 101, "0::/user.slice\n", "")
	if next := x.table.Place(10); next != (gpu.Place{Kind: gpu.OnHost, Name: "bash"}) {
		t.Errorf("the PID's next owner: %+v", next)
	}
}

func TestForgetting(t *testing.T) {
	x := newTree(t)
	for pid := 1; pid <= 50; pid++ {
		x.process(pid, "x", 1, "0::/\n", "")
		x.table.Place(pid)
	}
	for range 3 {
		x.now = x.now.Add(unusedTTL)
		x.table.Place(1)
	}
	if n := len(x.table.processes); n != 1 {
		t.Errorf("%d processes are remembered", n)
	}
}

func TestPods(t *testing.T) {
	x := newTree(t)
	for _, name := range []string{
		"team_llm-0_" + uid, "kube-system_etcd-n1_" + static, "team_llm-0_not-a-uid", "lost+found", "a_b_c_" + uid2,
	} {
		if err := os.Mkdir(filepath.Join(x.logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]gpu.PodName{uid: {Namespace: "team", Name: "llm-0"}, static: {Namespace: "kube-system", Name: "etcd-n1"}}
	x.table.refreshNames()
	if got := x.table.Pods(); !maps.Equal(got, want) {
		t.Errorf("pods %v, want %v", got, want)
	}
	if err := os.Mkdir(filepath.Join(x.logs, "ns_new_"+uid2), 0o755); err != nil {
		t.Fatal(err)
	}
	x.table.refreshNames()
	if got := x.table.Pods(); len(got) != 2 {
		t.Errorf("looked again at once: %v", got)
	}
	// A process of a pod that has no name yet makes it look.
	x.process(10, "x", 1, "0::/kubepods/pod"+uid2+"/"+id, "")
	x.now = x.now.Add(minNameInterval)
	x.table.Place(10)
	if got := x.table.Pods()[uid2]; got != (gpu.PodName{Namespace: "ns", Name: "new"}) {
		t.Errorf("the new pod is %v", got)
	}
	none := New(x.proc, filepath.Join(x.logs, "nowhere"))
	none.refreshNames()
	if got := none.Pods(); got == nil || len(got) != 0 {
		t.Errorf("without a directory: %v", got)
	}
}

func TestSeesNode(t *testing.T) {
	f := func(want bool, what string, processes ...func(x *tree)) {
		t.Helper()
		x := newTree(t)
		for _, p := range processes {
			p(x)
		}
		if x.table.SeesNode() != want {
			t.Errorf("%s: %v, want %v", what, !want, want)
		}
	}
	at := func(pid int, name, cgroup string) func(*tree) {
		return func(x *tree) { x.process(pid, name, 1, cgroup, "") }
	}
	self := os.Getpid()
	f(true, "a node", at(1, "systemd", "0::/init.scope"), at(2, "kthreadd", "0::/"), at(self, "agent", "0::/system.slice/agent.service"))
	f(true, "a node without cgroups of its own", at(1, "init", "0::/"), at(2, "kthreadd", "0::/"), at(self, "agent", "0::/"))
	f(true, "a node that is a container", at(1, "systemd", "0::/../../../init.scope"), at(2, "sh", "0::/x"), at(self, "agent", "0::/"))
	f(false, "a container", at(1, "tini", "0::/"), at(2, "nginx", "0::/"), at(self, "agent", "0::/"))
	f(false, "a container of cgroup v1", at(1, "tini", "4:memory:/kubepods/pod/a"), at(self, "agent", "4:memory:/kubepods/pod/a"))
	f(false, "a pod that shares its processes", at(1, "pause", "0::/../a"), at(self, "agent", "0::/"))
	f(false, "no processes")
}

// Several devices' workers ask at once; the race detector is the judge.
func TestConcurrency(t *testing.T) {
	x := newTree(t)
	x.process(10, "python3", 100, "0::/kubepods/pod"+uid+"/"+id+"\n", termination)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if p := x.table.Place(10); p.PodUID != uid {
					t.Errorf("%+v", p)
				}
				x.table.Pods()
			}
		})
	}
	wg.Wait()
}

// The processes of this machine are as they are: one's own is not Unseen.
func TestThisMachine(t *testing.T) {
	if _, err := os.Stat(filepath.Join(DefaultProc, "self", "stat")); err != nil {
		t.Skip("this machine has no /proc")
	}
	table := New(DefaultProc, DefaultLogs)
	if p := table.Place(os.Getpid()); p.Kind == gpu.Unseen || p.Name == "" {
		t.Errorf("this process: %+v", p)
	}
}

func FuzzStat(f *testing.F) {
	f.Add("10 (python3) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123 170000000 2900")
	f.Add("10 (a) b (c) S")
	f.Add(")(")
	f.Fuzz(func(t *testing.T, text string) {
		name, start, ok := parseStat(text)
		if !ok && (name != "" || start != "") || ok && start == "" {
			t.Errorf("%q: %q, %q, %v", text, name, start, ok)
		}
	})
}

func BenchmarkPlace(b *testing.B) {
	table := New(DefaultProc, DefaultLogs)
	for b.Loop() {
		table.Place(os.Getpid())
	}
}
