// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package fleet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/test/stack"
)

// writers bounds the concurrent requests to the API server.
const writers = 16

// kubelets are the nodes' side of a control plane: they register nodes, bind and run pods, and serve the agents' pages.
type kubelets struct {
	*fleet
	stack *stack.Stack
	k     kubernetes.Interface
	port  uint16 // of every agent
	slots chan struct{}
	all   sync.WaitGroup
	fail  func(format string, args ...any)
}

// serve serves all agents: Linux routes all of 127.0.0.0/8 to this one listener.
func (k *kubelets) serve(ctx context.Context) error {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		return err
	}
	k.port = l.Addr().(*net.TCPAddr).AddrPort().Port()
	server := &http.Server{Handler: http.HandlerFunc(k.answer), ReadHeaderTimeout: 5 * time.Second}
	k.all.Go(func() { _ = server.Serve(l) }) // ends with Close
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

func (k *kubelets) answer(w http.ResponseWriter, r *http.Request) {
	local := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	page, wrong, known := k.page(local.AddrPort().Addr().Unmap(), time.Now())
	switch {
	case !known: // the agent is gone
		panic(http.ErrAbortHandler)
	case wrong == silent:
		<-r.Context().Done()
	case wrong == garbage:
		_, _ = w.Write([]byte("\x00\xff}{ 1e999 \nDCGM_FI_DEV_GPU_UTIL{UUID=\"x\" 17\n")) // a client that went away is no error
	default:
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write(page)
	}
}

// do runs a write in the background, at most writers at a time. Missing and concurrently changed objects are not errors.
func (k *kubelets) do(ctx context.Context, what string, write func() error) {
	k.slots <- struct{}{}
	k.all.Go(func() {
		defer func() { <-k.slots }()
		err := write()
		if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			k.fail("%s: %v", what, err)
		}
	})
}

// join registers a node and starts its agent, at a new address.
func (k *kubelets) join(ctx context.Context, n *node) error {
	if err := k.stack.JoinHollow(ctx, n.name, gpusPerNode); err != nil {
		return err
	}
	k.mu.Lock()
	ip := k.address()
	k.mu.Unlock()
	return k.stack.StartHollowAgent(ctx, n.name, netip.AddrPortFrom(ip, k.port), func(pod string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		n.agent, n.ip, n.fault, n.gone = pod, ip, well, false
		k.byIP[ip] = n
	})
}

// watch runs the workloads' pods.
func (k *kubelets) watch(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(k.k, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { k.observe(ctx, obj.(*corev1.Pod)) },
		UpdateFunc: func(_, obj any) { k.observe(ctx, obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.vacate(obj.(*corev1.Pod).UID)
		},
	})
	if err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	k.all.Go(func() { <-ctx.Done(); factory.Shutdown() })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the pods were not listed")
	}
	return nil
}

// observe advances a pod of a workload: it binds, runs or ends it.
func (k *kubelets) observe(ctx context.Context, is *corev1.Pod) {
	if what, write := k.next(ctx, is); write != nil {
		k.all.Go(func() { k.do(ctx, what, write) }) // a slow API server must not delay what is observed next
	}
}

func (k *kubelets) next(ctx context.Context, is *corev1.Pod) (what string, write func() error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[is.UID]
	switch {
	case is.DeletionTimestamp != nil:
		k.vacate(is.UID)
		return "end a pod", func() error { return k.end(ctx, is) }
	case p == nil && is.Spec.NodeName == "":
		p = &pod{name: is.Name, of: k.workloads[is.Labels["app"]]}
		if p.of == nil || !k.occupy(p) {
			return "", nil
		}
		k.pods[is.UID] = p
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: is.Name, UID: is.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: p.at.name},
		}
		return "bind a pod", func() error {
			return k.k.CoreV1().Pods(namespace).Bind(ctx, binding, metav1.CreateOptions{})
		}
	case p != nil && is.Spec.NodeName != "" && !p.ip.IsValid():
		ip := k.address()
		p.ip = ip
		return "run a pod", func() error {
			err := k.stack.RunHollow(ctx, is, ip)
			if err == nil {
				k.beginServing(is.UID)
			}
			return err
		}
	}
	return "", nil
}

func (k *kubelets) end(ctx context.Context, is *corev1.Pod) error {
	zero := int64(0)
	return k.k.CoreV1().Pods(is.Namespace).Delete(ctx, is.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(is.UID)),
	})
}

// stopAgent ends a node's agent.
func (k *kubelets) stopAgent(ctx context.Context, n *node) error {
	k.mu.Lock()
	name := n.agent
	delete(k.byIP, n.ip)
	n.agent = ""
	k.mu.Unlock()
	if name == "" {
		return nil
	}
	zero := int64(0)
	return k.k.CoreV1().Pods(stack.Namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
}

// leave removes a node with its agent and its pods.
func (k *kubelets) leave(ctx context.Context, n *node) error {
	k.mu.Lock()
	n.gone = true
	var pods []string
	for _, p := range n.gpus {
		if p != nil {
			pods = append(pods, p.name)
		}
	}
	k.mu.Unlock()
	zero := int64(0)
	errs := []error{k.stopAgent(ctx, n), k.k.CoreV1().Nodes().Delete(ctx, n.name, metav1.DeleteOptions{})}
	for _, name := range pods {
		errs = append(errs, k.k.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	}
	for _, err := range errs {
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (w *workload) String() string {
	return w.name + ": " + strconv.Itoa(w.serving) + " serve, a load of " + strconv.FormatFloat(w.load, 'f', 1, 64)
}
