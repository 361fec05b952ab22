// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// lister is who lists processes.
type lister struct {
	mu    sync.Mutex
	list  map[string][]gpu.Process
	err   error
	hangs bool          // GPU-0's list does not come
	hang  chan struct{} // until this is closed
	takes time.Duration
	asked map[string]int
	names map[string]gpu.PodName
}

func newLister() *lister {
	return &lister{list: map[string][]gpu.Process{}, asked: map[string]int{}, names: map[string]gpu.PodName{}}
}

func (x *lister) set(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

func (x *lister) processes(uuid string) (gpu.Processes, error) {
	x.mu.Lock()
	x.asked[uuid]++
	hang, takes := x.hang, x.takes
	x.mu.Unlock()
	if x.hangs && uuid == "GPU-0" {
		<-hang
	}
	time.Sleep(takes) // the bubble's clock
	x.mu.Lock()
	defer x.mu.Unlock()
	return gpu.Processes{List: x.list[uuid], Times: true}, x.err
}

// times is how often the processes of a device were listed.
func (x *lister) times(uuid string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.asked[uuid]
}

func (x *lister) pods() map[string]gpu.PodName {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.names
}

// withProcesses runs f beside an agent that lists processes, in a bubble of its
// own clock.
func withProcesses(t *testing.T, interval time.Duration, r *reader, x *lister, pods func() (map[gpu.PodName]gpu.Pod, error), f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x.hang = make(chan struct{}) // of the bubble
		n := &node{r: r}
		n.Agent = New(Config{Interval: interval}, Deps{
			Reader: r, Owners: sharers, Publish: n.publish, Pods: pods, Processes: x.processes, PodNames: x.pods,
			Log: slog.New(slog.NewTextHandler(n, nil)), Metrics: http.NotFoundHandler(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { n.Run(ctx) })
		n.pass(0)
		f(n)
		cancel()
		close(x.hang)
		run.Wait()
		n.pass(x.takes) // whoever lists comes to an end
	})
}

// sharers are two pods that share GPU 0.
func sharers(context.Context) ([]gpu.Allocation, error) {
	return []gpu.Allocation{
		{DeviceID: "GPU-0::0", Owner: gpu.Owner{Namespace: "ns", Pod: "a", Container: "m"}},
		{DeviceID: "GPU-0::1", Owner: gpu.Owner{Namespace: "ns", Pod: "b", Container: "m"}},
	}, nil
}

func process(pid int, uid string, util float64) gpu.Process {
	p := gpu.Process{PID: pid, Type: gpu.Compute, Memory: gpu.Read(1 << 20), Utilization: gpu.Read(util)}
	p.Place = gpu.Place{Kind: gpu.InPod, Name: "python3", PodUID: uid, Container: "m"}
	return p
}

// shares are what pods use of GPU 0's time, as "a 0.5 b 0".
func shares(t *testing.T, n *node) string {
	t.Helper()
	var out []string
	for _, u := range device(t, n.out.last(), "GPU-0").Usage {
		b, _ := json.Marshal(number(u.Utilization))
		out = append(out, u.Owner.Pod+" "+string(b))
	}
	return strings.Join(out, " ")
}

func TestProcessesInTheSnapshot(t *testing.T) {
	x := newLister()
	x.list["GPU-0"] = []gpu.Process{process(10, "ua", .5), process(11, "ub", .25)}
	x.names = map[string]gpu.PodName{"ua": {Namespace: "ns", Name: "a"}}
	told := map[gpu.PodName]gpu.Pod{{Namespace: "ns", Name: "b"}: {UID: "ub"}, {Namespace: "ns", Name: "a"}: {}}
	pods := func() (map[gpu.PodName]gpu.Pod, error) { return told, nil }
	withProcesses(t, time.Second, newReader(gpus(2)...), x, pods, func(n *node) {
		// The first tick has them already. One name is the API server's, one the
		// node's own.
		if got := shares(t, n); got != "a 0.5 b 0.25" {
			t.Errorf("shares %s", got)
		}
		before := n.out.last()
		x.set(func() { x.list["GPU-0"] = []gpu.Process{process(10, "ua", .75)} })
		n.pass(2 * time.Second)
		if got := shares(t, n); got != "a 0.75 b 0" {
			t.Errorf("shares %s", got)
		}
		if p := before.Devices[0].Processes.List[0]; p.Utilization.Value != .5 {
			t.Errorf("the last snapshot has changed: %+v", p)
		}
		// What cannot be listed leaves the last list, for a while.
		x.set(func() { x.err = errors.New("no permission") })
		n.pass(2 * time.Second)
		if got := shares(t, n); got != "a 0.75 b 0" || device(t, n.out.last(), "GPU-0").ProcessesErr == nil {
			t.Errorf("shares %s", got)
		}
		n.pass(gpu.MaxAge(time.Second))
		if d := device(t, n.out.last(), "GPU-0"); d.Usage != nil || !d.ProcessesRead.IsZero() || d.Processes.List != nil {
			t.Errorf("what is known no more is shown: %+v", d.Usage)
		}
		x.set(func() { x.err = nil })
		n.pass(2 * time.Second)
		if got := shares(t, n); got != "a 0.75 b 0" {
			t.Errorf("shares %s", got)
		}
		if got := strings.Count(n.logs, "processes of a device cannot be listed"); got != 2 { // two devices
			t.Errorf("logged %d times:\n%s", got, n.logs)
		}
	})
}

// A list that hangs, or is slow, holds up no field and no other device.
func TestSlowProcesses(t *testing.T) {
	x := newLister()
	x.hangs = true
	x.list["GPU-1"] = []gpu.Process{process(10, "ua", .5)}
	withProcesses(t, time.Second, newReader(gpus(2)...), x, nil, func(n *node) {
		n.pass(10 * time.Second)
		s := n.out.last()
		if u := util(s, "GPU-0"); u < 10 {
			t.Errorf("GPU 0 was read %v times", u)
		}
		if d := device(t, s, "GPU-1"); len(d.Processes.List) != 1 {
			t.Errorf("GPU 1's processes: %+v", d.Processes)
		}
		// Only the first tick waited for it.
		for i, st := range n.out.stats[1:] {
			if st.Duration > 0 {
				t.Errorf("tick %d took %v", i+1, st.Duration)
			}
		}
		if got := x.times("GPU-0"); got != 1 {
			t.Errorf("asked %d times at once", got)
		}
	})
	y := newLister()
	y.takes = 700 * time.Millisecond
	y.list["GPU-0"] = []gpu.Process{process(10, "ua", .5)}
	withProcesses(t, time.Second, newReader(gpus(1)...), y, nil, func(n *node) {
		n.pass(10 * time.Second)
		for i, st := range n.out.stats[1:] {
			if st.Duration > 0 {
				t.Errorf("tick %d took %v", i+1, st.Duration)
			}
		}
		if d := device(t, n.out.last(), "GPU-0"); len(d.Processes.List) != 1 {
			t.Errorf("what comes late never comes: %+v", d)
		}
	})
}

// Fast ticks do not ask faster, and devices that go are asked no more.
func TestProcessesAreAskedOncePerSecond(t *testing.T) {
	x, r := newLister(), newReader(gpus(2)...)
	withProcesses(t, 100*time.Millisecond, r, x, nil, func(n *node) {
		n.pass(10 * time.Second)
		if got := x.times("GPU-0"); got < 10 || got > 11 {
			t.Errorf("asked %d times in 10 s", got)
		}
		r.set(func() { r.devices = gpus(1) })
		n.pass(keepGone + 30*time.Second)
		before := x.times("GPU-1")
		n.pass(10 * time.Second)
		if got := x.times("GPU-1"); got != before {
			t.Errorf("a device that is gone is asked %d times", got-before)
		}
	})
}

// Processes that are nowhere in /proc: the log says what to look for.
func TestBlindness(t *testing.T) {
	x := newLister()
	x.list["GPU-0"] = []gpu.Process{{PID: 10}, {PID: 11}}
	withProcesses(t, time.Second, newReader(gpus(1)...), x, nil, func(n *node) {
		n.pass(5 * time.Second)
		if got := strings.Count(n.logs, "hostPID"); got != 1 {
			t.Errorf("logged %d times:\n%s", got, n.logs)
		}
		if got := shares(t, n); got != "" { // it may be theirs
			t.Errorf("shares %s", got)
		}
	})
}

func TestProcessDocument(t *testing.T) {
	x := newLister()
	host := gpu.Process{PID: 12, Type: gpu.Graphics, Place: gpu.Place{Kind: gpu.OnHost, Name: "Xorg"}}
	stranger := process(13, "uc", .25)
	stranger.ContainerID = "c0ffee"
	x.list["GPU-0"] = []gpu.Process{process(10, "ua", .5), host, stranger}
	x.names["ua"] = gpu.PodName{Namespace: "ns", Name: "a"}
	withProcesses(t, time.Second, newReader(gpus(2)...), x, nil, func(n *node) {
		doc := n.document(n.out.last(), time.Now())
		got, err := json.Marshal(doc.Devices[0].Processes)
		if err != nil {
			t.Fatal(err)
		}
		want := `[{"pid":10,"name":"python3","type":"compute","namespace":"ns","pod":"a","container":"m","podUid":"ua","memoryBytes":1048576,"utilization":0.5},` +
			`{"pid":12,"name":"Xorg","type":"graphics"},` +
			`{"pid":13,"name":"python3","type":"compute","container":"m","podUid":"uc","containerId":"c0ffee","memoryBytes":1048576,"utilization":0.25}]`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if p := doc.Devices[1].Processes; p == nil || len(*p) != 0 {
			t.Errorf("GPU 1's processes are %v, want none", p)
		}
		if diff := cmp.Diff([]string{"GPU-1"}, doc.WithoutPod); diff != "" {
			t.Errorf("without a pod (-want +got):\n%s", diff)
		}
	})
}
