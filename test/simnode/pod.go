// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/child"
)

// phase is the phase of a pod's lifecycle.
type phase int

const (
	loading phase = iota
	serving
	broken   // the process ended, or the readiness probe fails
	stopping // deleted, but still holding its GPUs
)

// defaultShutdown is how long a deleted pod holds its GPUs: the time in which a process
// frees its memory and ends.
const defaultShutdown = 500 * time.Millisecond

// The intervals of a process's readiness probe, before and after it is Ready.
const (
	probeUnready = 100 * time.Millisecond
	probeReady   = time.Second
	probeTimeout = 30 * time.Second // a busy machine delays the answer
)

// podRun simulates one pod. Nodes.mu guards the fields below it.
type podRun struct {
	nodes *Nodes
	node  *node
	pod   *corev1.Pod // as first observed
	addr  netip.Addr
	stop  chan struct{} // closed when the pod is deleted
	cut   func()        // ends it as a power cut does, without writes to the API server

	admitted bool
	stopped  bool          // stop is closed
	gone     bool          // the object was deleted
	grace    time.Duration // of the deletion
	phase    phase
	started  time.Time
	process  *child.Process // of an ExecAnnotation; nil: none runs
	restarts int32
	exit     exit    // of the last process
	served   float64 // requests completed, of a workload
	times    times   // their latencies
	closed   bool    // a readiness gate of the pod is not open
	regate   chan struct{}
	writing  sync.Mutex // of the status; taken before Nodes.mu
}

func newPodRun(n *Nodes, nd *node, pod *corev1.Pod) *podRun {
	return &podRun{nodes: n, node: nd, pod: pod, addr: n.addrs.pod(), stop: make(chan struct{}), regate: make(chan struct{}, 1), exit: exit{code: 1}, closed: len(pod.Spec.ReadinessGates) > 0}
}

// remove starts the shutdown of the pod; pod is nil if the object was deleted. Nodes.mu
// is held.
func (p *podRun) remove(pod *corev1.Pod) {
	p.gone = p.gone || pod == nil
	if p.stopped {
		return
	}
	p.stopped, p.phase = true, stopping
	if pod != nil && pod.DeletionGracePeriodSeconds != nil {
		p.grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	close(p.stop)
}

// run simulates the pod, from its admission to the deletion of its object.
func (p *podRun) run(ctx context.Context) {
	defer p.forget()
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with life, which run always ends
		select {
		case <-p.stop:
			cancel()
		case <-life.Done():
		}
	}()
	if !p.admit(life) {
		p.patch(life, p.rejected())
		<-life.Done()
	} else {
		p.report(life, false)
		gates := make(chan struct{})
		go func() {
			defer close(gates)
			p.followGates(life)
		}()
		p.live(life)
		<-gates
	}
	p.end(ctx)
}

// admit allocates the pod's devices.
func (p *podRun) admit(ctx context.Context) bool {
	var claims []claimed
	var err error
	p.retry(ctx, func() error {
		claims, err = p.claims(ctx)
		return err
	})
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	p.started = time.Now()
	p.admitted = err == nil && p.node.allocate(p.pod, claims)
	return p.admitted
}

// live runs the pod until life ends.
func (p *podRun) live(life context.Context) {
	if argv := p.pod.Annotations[ExecAnnotation]; argv != "" {
		p.liveProcess(life, argv)
		return
	}
	if !wait(life, p.duration(StartupAnnotation, 0)) {
		return
	}
	closeMetrics, err := p.serveMetrics()
	if err != nil {
		p.nodes.log.Error("pod serves no metrics", "pod", p.pod.Name, "err", err)
	}
	p.enter(life, serving)
	<-life.Done()
	closeMetrics()
}

// liveProcess runs the pod's process until life ends, and restarts it if RestartDelay is
// set.
func (p *podRun) liveProcess(life context.Context, annotation string) {
	for {
		argv, err := p.argv(annotation)
		if err == nil {
			err = p.runOnce(life, argv)
		}
		if life.Err() != nil {
			return
		}
		p.nodes.log.Warn("process ended", "pod", p.pod.Name, "node", p.node.name, "err", err)
		p.enter(life, broken)
		if p.nodes.cfg.RestartDelay == 0 {
			<-life.Done()
			return
		}
		if !wait(life, p.nodes.cfg.RestartDelay) {
			return
		}
		p.nodes.mu.Lock()
		p.restarts++
		p.nodes.mu.Unlock()
	}
}

// runOnce runs the process until it or life ends. It returns after the process has ended.
func (p *podRun) runOnce(life context.Context, argv []string) error {
	logPath := filepath.Join(p.nodes.cfg.Dir, p.node.name, p.pod.Name+".log")
	following, unfollow := context.WithCancel(life)
	defer unfollow()
	if err := p.mountConfigMaps(following); err != nil {
		return err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = p.environment()
	proc, err := child.StartLogged(cmd, logPath)
	if err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	p.setProcess(proc)
	defer func() { p.setExit(proc); p.setProcess(nil) }()
	probing, cancel := context.WithCancel(life)
	defer cancel()
	probed := make(chan struct{})
	go func() { defer close(probed); p.probe(probing, life) }()
	defer func() { cancel(); <-probed }()
	select {
	case <-proc.Done:
		return cmp.Or(proc.Err, errors.New("exited with code 0"))
	case <-life.Done():
		p.nodes.mu.Lock()
		grace := p.grace
		p.nodes.mu.Unlock()
		proc.End(syscall.SIGTERM, min(max(grace, time.Second), 5*time.Second))
		return nil
	}
}

func (p *podRun) setProcess(proc *child.Process) {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	p.process = proc
}

// probe updates the pod's readiness from the HTTP probe of its first container. Without
// a probe, the pod is Ready while its process runs.
func (p *podRun) probe(ctx, life context.Context) {
	url := p.probeURL()
	if url == "" {
		p.enter(life, serving)
		return
	}
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for every := probeUnready; ; {
		if probeOK(ctx, client, url) {
			p.enter(life, serving)
			every = probeReady
		} else if p.current() == serving {
			p.enter(life, broken)
			every = probeUnready
		}
		if !wait(ctx, every) {
			return
		}
	}
}

func probeOK(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // the body is not needed
	return resp.StatusCode < 400
}

func (p *podRun) probeURL() string {
	c := p.pod.Spec.Containers[0]
	if c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet == nil {
		return ""
	}
	get := c.ReadinessProbe.HTTPGet
	port := get.Port.IntValue()
	for _, cp := range c.Ports {
		if cp.Name == get.Port.String() {
			port = int(cp.ContainerPort)
		}
	}
	return fmt.Sprintf("http://%s:%d/%s", p.addr, port, strings.TrimPrefix(get.Path, "/"))
}

func (p *podRun) current() phase {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	return p.phase
}

// enter changes the phase and writes the status, unless the pod is already in the phase
// or is being deleted.
func (p *podRun) enter(ctx context.Context, to phase) {
	p.nodes.mu.Lock()
	same := p.phase == to || p.stopped
	if !same {
		p.phase = to
	}
	p.nodes.mu.Unlock()
	if !same {
		p.report(ctx, to == serving)
	}
}

// end holds the GPUs of a deleted pod during its shutdown, frees them and deletes the
// object. It does nothing if the whole simulation ends.
func (p *podRun) end(ctx context.Context) {
	shutdown := p.duration(ShutdownAnnotation, defaultShutdown)
	p.nodes.mu.Lock()
	if !p.stopped {
		p.nodes.mu.Unlock()
		return
	}
	shutdown = min(shutdown, p.grace)
	gone := p.gone
	p.nodes.mu.Unlock()
	if !gone && !wait(ctx, shutdown) {
		return
	}
	p.nodes.mu.Lock()
	p.node.free(p.pod.UID)
	p.admitted = false
	p.nodes.mu.Unlock()
	zero := int64(0)
	p.retry(ctx, func() error {
		return p.nodes.client.CoreV1().Pods(p.pod.Namespace).Delete(ctx, p.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(p.pod.UID)),
		})
	})
}

// forget deletes the entry of the pod, whose UID is never used again.
func (p *podRun) forget() {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	p.node.free(p.pod.UID)
	delete(p.nodes.pods, p.pod.UID)
}

// duration returns the value of an annotation. An invalid value is logged and ignored.
func (p *podRun) duration(annotation string, otherwise time.Duration) time.Duration {
	s, ok := p.pod.Annotations[annotation]
	if !ok {
		return otherwise
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		p.nodes.log.Error("annotation is not a duration", "pod", p.pod.Name, "annotation", annotation, "value", s)
		return otherwise
	}
	return d
}

// argv returns the command line of the exec annotation.
func (p *podRun) argv(annotation string) ([]string, error) {
	argv, known := p.nodes.cfg.Exec[annotation]
	switch {
	case annotation == ExecImage:
		var err error
		if argv, err = p.imageArgv(); err != nil {
			return nil, err
		}
	case !known:
		if err := json.Unmarshal([]byte(annotation), &argv); err != nil {
			return nil, fmt.Errorf("annotation %s: %q is neither a known name nor a JSON array: %w", ExecAnnotation, annotation, err)
		}
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("annotation %s: the command line is empty", ExecAnnotation)
	}
	fill := p.filler()
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = fill.Replace(a)
	}
	return out, nil
}

// filler fills the variables in.
func (p *podRun) filler() *strings.Replacer {
	var pairs []string
	for name, value := range p.variables() {
		pairs = append(pairs, "$("+name+")", value)
	}
	return strings.NewReplacer(pairs...)
}

func (p *podRun) variables() map[string]string {
	return map[string]string{
		"POD_IP": p.addr.String(), "POD_NAME": p.pod.Name, "POD_NAMESPACE": p.pod.Namespace, "NODE_NAME": p.node.name,
		"SIM_STATE": p.nodes.StateFile(p.node.name), "POD_RESOURCES_SOCKET": p.nodes.Socket(p.node.name),
		"TERMINATION_LOG": p.terminationLog(), "HOST_IP": p.node.addr.String(),
	}
}

func (p *podRun) environment() []string {
	env := os.Environ()
	for name, value := range p.variables() {
		env = append(env, name+"="+value)
	}
	if p.pod.Annotations[ExecAnnotation] == ExecImage {
		fill := p.filler()
		for _, v := range p.pod.Spec.Containers[0].Env {
			if v.ValueFrom == nil {
				env = append(env, v.Name+"="+fill.Replace(v.Value))
			}
		}
	}
	return env
}

// wait waits for d, and reports false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
