// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package soak runs the agent on both fake GPU libraries while one thing after
// another breaks and heals, and looks at every page: what breaks must cost no
// more than what it touches.
package soak

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// -soak 10m goes on with further rounds of faults until then; there is always
// one, of about a minute.
var length = flag.Duration("soak", 0, "how long to go on, at least one round of faults")

const (
	gpus     = 8
	interval = 250 * time.Millisecond
	// patience bounds every wait: nothing here takes half of it by itself.
	patience = 5 * time.Minute
	// maxMissed is how many collections in a row may lack a reading of a GPU that no
	// fault touches, beside a fault that lasts longer: a machine that does other work
	// lets some readings come after their collection.
	maxMissed = 6
	// hold is how many collections a fault lasts once it shows.
	hold = 10
	// maxRSS bounds the agent's memory, hostile labels included, and maxGrowth what
	// all rounds but the first leave in it.
	maxRSS, maxGrowth = 32 << 20, 3 << 20
)

const bin = "../../../bin"

func TestNVML(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(dir string) *agentrig.Library { return agentrig.NVML(bin, dir) })
	n.soak(t, append(n.faults(),
		n.state("a driver reload", everything, "driver not-loaded", func(p page) bool { return p.devices("") == 0 }),
		n.state("a hang", []int{6}, "gpu 6 hang 60000", gone(6)),
	))
}

func TestDCGM(t *testing.T) {
	t.Parallel()
	n := startNode(t, func(dir string) *agentrig.Library { return agentrig.DCGM(bin, dir) })
	n.soak(t, append(n.faults(),
		n.state("the loss of the host engine", everything, "engine lost", func(p page) bool { return p.devices("") == 0 }),
		n.state("a restart of the host engine", everything, "engine restarted 1", func(page) bool { return true }),
	))
}

// node is an agent and all that it depends on.
type node struct {
	*agentrig.Agent
	library *agentrig.Library
	kubelet *agentrig.Kubelet
	api     *agentrig.APIServer
}

func startNode(t *testing.T, library func(dir string) *agentrig.Library) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{library: library(dir)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.library.Set(healthy))
	var err error
	n.kubelet, err = agentrig.StartKubelet(filepath.Join(dir, "kubelet.sock"), grants())
	must(err)
	t.Cleanup(n.kubelet.Stop)
	n.api, err = agentrig.StartAPIServer(dir)
	must(err)
	t.Cleanup(n.api.Close)
	for i := range gpus {
		n.api.SetPod(namespace, pod(i), labels())
	}
	cfg := agentrig.Config{
		Binary: filepath.Join(bin, "gpupilot-agent"), Env: append(n.library.Env(), "NODE_NAME=n1"),
		Args: append(n.library.Args(), "--kubernetes-enable-pod-labels", "--collect-interval", fmt.Sprint(interval.Milliseconds())),
	}
	cfg.Args = append(append(cfg.Args, n.kubelet.Args()...), n.api.Args()...)
	cfg.Env = append(cfg.Env, n.api.Env()...)
	n.Agent, err = agentrig.Start(t.Context(), cfg)
	must(err)
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the agent said:\n%s", n.Log())
		}
	})
	return n
}

const namespace = "team"

func pod(i int) string { return fmt.Sprintf("llm-%d", i) }

func labels() map[string]string { return map[string]string{"app": "llm"} }

func grants() []agentrig.Grant {
	var out []agentrig.Grant
	for i := range gpus {
		out = append(out, agentrig.Grant{
			Namespace: namespace, Pod: pod(i), Container: "server", Resource: "nvidia.com/gpu", DeviceID: fmt.Sprint("nvidia", i),
		})
	}
	return out
}

// fault is something that breaks and heals.
type fault struct {
	name       string
	costs      []int // the GPUs whose series it may cost
	begin, end func() error
	shows      func(page) bool // the agent has noticed
}

// none is what breaks between two faults.
var none = fault{name: "nothing"}

// everything is all GPUs.
var everything = []int{0, 1, 2, 3, 4, 5, 6, 7}

var healthy = fmt.Sprintf("gpus %d\ngpu * util 57\n", gpus)

// state is a fault that the library's file tells of.
func (n *node) state(name string, costs []int, line string, shows func(page) bool) fault {
	return fault{
		name: name, costs: costs, shows: shows,
		begin: func() error { return n.library.Set(healthy + line + "\n") },
		end:   func() error { return n.library.Set(healthy) },
	}
}

// gone says that a GPU has no series.
func gone(i int) func(page) bool { return func(p page) bool { return p.devices(gpu(i)) == 0 } }

// faults are those of every library.
func (n *node) faults() []fault {
	return []fault{
		n.state("a lost GPU", []int{3}, "gpu 3 lost", gone(3)),
		n.state("a change of MIG", []int{5}, "gpu 5 mig 1g.18gb 3", func(p page) bool { return p.devices(gpu(5)) == 3 }),
		{
			name:  "a restart of the kubelet",
			begin: func() error { n.kubelet.Stop(); return nil },
			end:   n.kubelet.Start,
			shows: func(p page) bool { return p.value("gpupilot_pod_resources_up") == 0 },
		},
		{
			name:  "hostile pod labels",
			begin: func() error { n.api.SetPod(namespace, pod(2), hostile()); return nil },
			end:   func() error { n.api.SetPod(namespace, pod(2), labels()); return nil },
			shows: func(p page) bool { return strings.Contains(p.text, `marker="hostile"`) },
		},
	}
}

// hostile are labels that no API server lets pass, and some that it does.
func hostile() map[string]string {
	l := map[string]string{
		"marker": "hostile", "gpu": "7", "UUID": "GPU-0", "pod": "another", "namespace": "another", "__name__": "up", "le": "1", "": "empty",
		"9": "digit", "a-b": "1", "a.b": "2", "a_b": "3", "\n": "newline", "новое": "имя", "quote\"": "x", "app": "\"} 1\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 100\n#",
		"backslash": `\`, "nul": "a\x00b", "bad": "\xff\xfe", "long": strings.Repeat("x", 10_000),
	}
	for i := range 50 {
		l[fmt.Sprint("many", i)] = "x"
	}
	return l
}

// soak makes one fault after the other while every page is looked at.
func (n *node) soak(t *testing.T, faults []fault) {
	t.Helper()
	w := &watch{t: t, fault: none, read: map[string]*readings{}}
	n.await(t, "all GPUs with their pods", whole)
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { w.run(n, stop) })
	stopWatching := sync.OnceFunc(func() { close(stop); watching.Wait() })
	t.Cleanup(stopWatching)
	begin := time.Now()
	for round := 1; round == 1 || time.Since(begin) < *length; round++ {
		for _, f := range faults {
			n.suffer(t, w, f)
		}
		w.endRound(n)
	}
	stopWatching()
	w.judge()
}

// suffer makes one fault.
func (n *node) suffer(t *testing.T, w *watch, f fault) {
	t.Helper()
	w.allow(f)
	if err := f.begin(); err != nil {
		t.Fatal(err)
	}
	n.await(t, f.name, f.shows)
	w.awaitCollections(hold)
	if err := f.end(); err != nil {
		t.Fatal(err)
	}
	n.await(t, "the end of "+f.name, whole)
	w.allow(none)
}

// await waits for a page that shows something.
func (n *node) await(t *testing.T, what string, shows func(page) bool) {
	t.Helper()
	err := n.Await(t.Context(), patience, func(text string) bool {
		p, err := parse(text)
		return err == nil && shows(p)
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// whole says that every GPU has its series and its pod, with the pod's label,
// and no fault shows.
func whole(p page) bool {
	for i := range gpus {
		if p.devices(fmt.Sprintf(`%s*pod="%s"`, gpu(i), pod(i))) != 1 {
			return false
		}
	}
	return p.devices("") == gpus && p.value("gpupilot_pod_resources_up") == 1 && !strings.Contains(p.text, `marker=`)
}

func TestMain(m *testing.M) {
	flag.Parse()
	if _, err := os.Stat(filepath.Join(bin, "gpupilot-agent")); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err, "(make all fakes)")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
