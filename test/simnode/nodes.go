// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// Config holds the settings of the simulated nodes.
type Config struct {
	Client kubernetes.Interface
	// Dir has a folder per node, with the state file of its GPUs, its pod-resources
	// socket and the logs of its processes. It must be short, because the length of a
	// socket's path is limited.
	Dir    string
	Nodes  int    // default 3
	GPUs   int    // per node; default 8
	Prefix string // of the nodes' names; default gpu-node
	// DeviceID returns the device id of GPU i of a node; default sim.UUID.
	DeviceID func(node string, i int) string
	// Exec has command lines by the names that ExecAnnotation may contain.
	Exec map[string][]string
	// Images has programs by the images of containers, for ExecImage.
	Images map[string]string
	// RestartDelay is the time after which an ended process is restarted; 0: it is not
	// restarted.
	RestartDelay time.Duration
	// Workloads are the workloads that pods can serve.
	Workloads []Workload
	Log       *slog.Logger // nil discards
}

// Nodes are the simulated nodes of one cluster.
type Nodes struct {
	cfg    Config
	log    *slog.Logger
	client kubernetes.Interface
	addrs  *addresses
	run    context.Context // of the goroutines, until Close
	cancel context.CancelFunc
	done   sync.WaitGroup

	writing   sync.Mutex // of the GPUs' states
	mu        sync.Mutex
	closed    bool
	order     []*node
	pods      map[types.UID]*podRun
	workloads map[string]*workload
}

// Start registers the nodes and simulates them until Close. ctx bounds the
// registration only.
func Start(ctx context.Context, cfg Config) (*Nodes, error) {
	cfg.Nodes, cfg.GPUs = cmp.Or(cfg.Nodes, 3), cmp.Or(cfg.GPUs, 8)
	cfg.Prefix = cmp.Or(cfg.Prefix, "gpu-node")
	if cfg.DeviceID == nil {
		cfg.DeviceID = sim.UUID
	}
	n := &Nodes{
		cfg: cfg, log: cfg.Log, client: cfg.Client,
		pods: map[types.UID]*podRun{}, workloads: map[string]*workload{},
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	for _, w := range cfg.Workloads {
		n.workloads[w.Name] = newWorkload(w)
	}
	n.run, n.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Nodes) start(ctx context.Context) error {
	var err error
	if n.addrs, err = newAddresses(); err != nil {
		return err
	}
	if err := n.Add(ctx, n.cfg.Nodes); err != nil {
		return err
	}
	n.done.Go(func() { n.stepLoop(n.run) })
	return n.watchPods(ctx)
}

// Add registers so many more nodes. Only one call runs at a time.
func (n *Nodes) Add(ctx context.Context, nodes int) error {
	for range nodes {
		nd, err := n.newNode(len(n.all()))
		if err != nil {
			return err
		}
		n.mu.Lock()
		n.order = append(n.order, nd)
		n.mu.Unlock()
		if err := n.writeState(nd, time.Now()); err != nil {
			return err
		}
		if err := nd.register(ctx, n.client); err != nil {
			return err
		}
		n.done.Go(func() { n.heartbeat(n.run, nd) })
	}
	return nil
}

// all returns the nodes.
func (n *Nodes) all() []*node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.order)
}

// named returns a node; nil if there is none. Nodes.mu is held.
func (n *Nodes) named(name string) *node {
	if i := slices.IndexFunc(n.order, func(nd *node) bool { return nd.name == name }); i >= 0 {
		return n.order[i]
	}
	return nil
}

// watchPods starts to watch the pods of all nodes.
func (n *Nodes) watchPods(ctx context.Context) error {
	run := n.run
	factory := informers.NewSharedInformerFactory(n.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.observe(run, obj) },
		UpdateFunc: func(_, obj any) { n.observe(run, obj) },
		DeleteFunc: func(obj any) {
			if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = d.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				n.stopPod(pod.UID)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(run)
	n.done.Go(func() { <-run.Done(); factory.Shutdown() })
	// The informer may have synced although ctx has ended.
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) || ctx.Err() != nil {
		return fmt.Errorf("watch pods: %w", context.Cause(ctx))
	}
	return nil
}

// observe handles a new or changed pod.
func (n *Nodes) observe(run context.Context, obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	nd := n.named(pod.Spec.NodeName)
	if nd == nil {
		return
	}
	p := n.pods[pod.UID]
	if p == nil && !n.closed && !nd.off && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		p = newPodRun(n, nd, pod)
		n.pods[pod.UID] = p
		power, cut := context.WithCancel(run)
		p.cut = cut
		n.done.Go(func() { defer cut(); p.run(power) })
	}
	if p != nil && pod.DeletionTimestamp != nil {
		p.remove(pod)
	}
	if p != nil {
		p.observeGates(pod)
	}
}

// stopPod ends the simulation of a pod whose object was deleted.
func (n *Nodes) stopPod(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[uid]; p != nil {
		p.remove(nil)
	}
}

// Close ends all processes, sockets and listeners of Start. The API objects stay
// unchanged, as after a power cut.
func (n *Nodes) Close() error {
	n.mu.Lock()
	again := n.closed
	n.closed = true
	n.mu.Unlock()
	if again {
		return nil
	}
	n.cancel()
	for _, nd := range n.all() {
		nd.server.Stop()
	}
	n.done.Wait()
	var errs []error
	if n.addrs != nil {
		errs = append(errs, n.addrs.close())
	}
	return errors.Join(errs...)
}

// NodeNames returns the names of the nodes.
func (n *Nodes) NodeNames() []string {
	var names []string
	for _, nd := range n.all() {
		names = append(names, nd.name)
	}
	return names
}

// StateFile returns the file with the state of a node's GPUs; see sim.State.
func (n *Nodes) StateFile(node string) string { return filepath.Join(n.cfg.Dir, node, "gpus.json") }

// Socket returns the path of a node's pod-resources socket.
func (n *Nodes) Socket(node string) string {
	return filepath.Join(n.cfg.Dir, node, "pod-resources.sock")
}

// Kill kills a pod's process, as a crash would.
func (n *Nodes) Kill(namespace, name string) error { return n.signal(namespace, name, syscall.SIGKILL) }

// Hang stops a pod's process, as a call that does not return would, until Resume.
func (n *Nodes) Hang(namespace, name string) error { return n.signal(namespace, name, syscall.SIGSTOP) }

// Resume ends Hang.
func (n *Nodes) Resume(namespace, name string) error {
	return n.signal(namespace, name, syscall.SIGCONT)
}

func (n *Nodes) signal(namespace, name string, s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if p.pod.Namespace == namespace && p.pod.Name == name && p.process != nil {
			return p.process.Signal(s)
		}
	}
	return fmt.Errorf("%v for %s/%s: %w", s, namespace, name, os.ErrProcessDone)
}
