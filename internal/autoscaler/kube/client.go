// SPDX-License-Identifier: Apache-2.0

// Package kube connects to the API server: clients, the cache and what it keeps of each
// object, the kinds that are served, and the owner of the objects that the controller
// creates for itself.
package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Config holds the settings of the connection to the API server.
type Config struct {
	Kubeconfig string  // a file; empty: the service account of this pod
	QPS        float32 // requests/s of each client, for each kind of object; 100
	Burst      int     // requests in a burst; 200
	UserAgent  string  // default: gpupilot
	// Timeout bounds each request but watches and the lists of informers, so that one that
	// the API server takes and never answers is tried again. Zero: 15 s.
	Timeout time.Duration
	// GPUResources are names of resources that count GPUs, in addition to those of
	// gpu.IsResource. The cache keeps only such resources of pods and nodes.
	GPUResources []string
	Trusted      func(namespace string) bool // whether objects of a namespace may be as large as an operator's; nil: of none
	Log          *slog.Logger
}

// Clients holds the clients of one API server.
type Clients struct {
	Config *rest.Config
	Cache  cache.Cache          // started by Run
	Client client.Client        // reads cached kinds from the cache; other reads and all writes go to the API server
	Live   client.Reader        // reads from the API server, never from the cache
	Set    kubernetes.Interface // for kinds that are not cached
	Mapper meta.RESTMapper

	// What scaling needs. It has a connection and limits of its own, and so has the lease:
	// neither waits for watches, statuses, Events and reviews.
	Scale     client.Client // as Client
	ScaleLive client.Reader // as Live
	Leases    coordinationv1client.LeasesGetter

	http     *http.Client // without a time-out: for watches
	scheme   *runtime.Scheme
	decoder  runtime.Decoder // of objects of scheme, and of errors of the API server
	decoding turn            // of large objects of watches
	timeout  time.Duration
	trusted  func(namespace string) bool
	running  sync.WaitGroup // of the watches without an informer
	log      *slog.Logger
}

// Connect makes clients. It sends no requests, so that an unreachable API server is
// not an error.
func Connect(cfg Config) (*Clients, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", rc.Host, err)
	}
	boundBuffers(httpClient.Transport)
	scheme := Scheme()
	c := &Clients{
		Config: rc, http: httpClient, decoding: newTurn(), scheme: scheme,
		decoder: runtime.WithoutVersionDecoder{Decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer()},
		timeout: cmp.Or(cfg.Timeout, 15*time.Second),
		trusted: cfg.Trusted, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)),
	}
	if c.Mapper, err = apiutil.NewDynamicRESTMapper(rc, c.limit(httpClient)); err != nil {
		return nil, fmt.Errorf("make a REST mapper: %w", err)
	}
	if err := c.buildClients(rc, httpClient, cfg.GPUResources); err != nil {
		return nil, err
	}
	if err := c.buildUrgent(rc); err != nil {
		return nil, err
	}
	return c, nil
}

// limit returns a client with the same connections whose requests time out.
func (c *Clients) limit(httpClient *http.Client) *http.Client {
	limited := *httpClient
	limited.Timeout = c.timeout
	return &limited
}

// buildUrgent makes the clients with connections of their own.
func (c *Clients) buildUrgent(rc *rest.Config) error {
	rc = rest.CopyConfig(rc)
	connection := func() (*http.Client, error) {
		rc.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext // client-go shares no connection of a config with one
		return rest.HTTPClientFor(rc)
	}
	forScale, err := connection()
	if err != nil {
		return fmt.Errorf("connect to %s: %w", rc.Host, err)
	}
	if c.Scale, c.ScaleLive, err = c.pair(rc, forScale); err != nil {
		return err
	}
	forLeases, err := connection()
	if err != nil {
		return fmt.Errorf("connect to %s: %w", rc.Host, err)
	}
	if c.Leases, err = coordinationv1client.NewForConfigAndClient(rc, c.limit(forLeases)); err != nil {
		return fmt.Errorf("make a client of leases: %w", err)
	}
	return nil
}

// pair makes a client that reads from the cache, and one that does not.
func (c *Clients) pair(rc *rest.Config, httpClient *http.Client) (cached, live client.Client, err error) {
	o := client.Options{HTTPClient: c.limit(httpClient), Scheme: c.scheme, Mapper: c.Mapper}
	if live, err = client.New(rc, o); err == nil {
		o.Cache = &client.CacheOptions{Reader: c.Cache}
		cached, err = client.New(rc, o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a client: %w", err)
	}
	return cached, live, nil
}

func (c *Clients) buildClients(rc *rest.Config, httpClient *http.Client, gpuResources []string) (err error) {
	slim := Slim(gpuResources)
	c.Cache, err = cache.New(rc, cache.Options{
		HTTPClient: httpClient, Scheme: c.scheme, Mapper: c.Mapper,
		DefaultTransform: slim, NewInformer: c.newInformer(slim), // per-kind options (ByObject) would send requests to the API server here
		DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
			c.log.Debug("watch failed, restarting it", "kind", r.TypeDescription(), "err", err)
		},
	})
	if err != nil {
		return fmt.Errorf("make a cache: %w", err)
	}
	if c.Client, c.Live, err = c.pair(rc, httpClient); err != nil {
		return err
	}
	if c.Set, err = kubernetes.NewForConfigAndClient(rc, c.limit(httpClient)); err != nil {
		return fmt.Errorf("make a clientset: %w", err)
	}
	return nil
}

// restConfig reads the kubeconfig, or the pod's service account.
func restConfig(cfg Config) (*rest.Config, error) {
	var rc *rest.Config
	var err error
	if cfg.Kubeconfig != "" {
		rc, err = clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig %s: %w", cfg.Kubeconfig, err)
		}
	} else if rc, err = rest.InClusterConfig(); err != nil {
		return nil, fmt.Errorf("set --kubeconfig, or run in a pod with a service account: %w", err)
	}
	// A decision takes a few requests, which must not wait in the client's queue. The
	// API server limits us by priority and fairness; these limits only contain bugs.
	rc.QPS, rc.Burst = cmp.Or(cfg.QPS, 100), cmp.Or(cfg.Burst, 200)
	rc.UserAgent = cmp.Or(cfg.UserAgent, "gpupilot")
	return rc, nil
}

// Scheme returns a scheme of the kinds that the controller reads and writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme,
		coordinationv1.AddToScheme, eventsv1.AddToScheme, policyv1.AddToScheme, resourcev1.AddToScheme, v1alpha1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two types with the same name: a bug in this program
		}
	}
	return s
}

// Run runs the informers until ctx is done.
func (c *Clients) Run(ctx context.Context) error {
	defer c.running.Wait()
	if err := c.Cache.Start(ctx); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	return nil
}

// informerRetry is the interval at which a failed watch is retried: the CRD may be
// installed later, or the API server may not answer yet.
const informerRetry = time.Second

// Watch calls h for each object of the kind of obj, and returns after the first list
// was delivered. It retries while the API server does not serve the kind or does not
// answer. An error means that ctx is done. Objects of a kind without a Go type are not
// cached; of a deleted one, h gets the names only.
func (c *Clients) Watch(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
	logged := ""
	for {
		started, err := c.watch(ctx, obj, h)
		if started {
			return err
		}
		if ctx.Err() == nil && logged != err.Error() {
			logged = err.Error()
			c.log.Warn("cannot watch yet, retrying", "kind", kindOf(obj), "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(informerRetry):
		}
	}
}

// watch starts a watch, and waits for its first list. An error of one that has not started
// is the API server's.
func (c *Clients) watch(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) (started bool, err error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return c.watchCustom(ctx, u.GroupVersionKind(), h)
	}
	informer, err := c.Cache.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
	if err != nil {
		return false, err
	}
	return true, c.addHandler(ctx, informer, h)
}

// maxSpec returns the most bytes of an object's spec that are read.
func (c *Clients) maxSpec(namespace string) int {
	if c.trusted != nil && c.trusted(namespace) {
		return maxTrustedSpec
	}
	return maxSpec
}

func (c *Clients) addHandler(ctx context.Context, informer cache.Informer, h toolscache.ResourceEventHandler) error {
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), reg.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// kindOf returns the kind of obj for a log line.
func kindOf(obj client.Object) string {
	if kind := obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	_, name, _ := strings.Cut(fmt.Sprintf("%T", obj), ".")
	return name
}

// Installed reports whether the API server serves the kind of obj.
func (c *Clients) Installed(obj client.Object) bool {
	gvk := obj.GetObjectKind().GroupVersionKind()
	_, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	return err == nil
}

// installedRetry is the interval at which AwaitInstalled looks for a kind.
const installedRetry = 10 * time.Second

// AwaitInstalled waits until the API server serves the kind of obj, such as that of a CRD
// that is installed later. An error means that ctx is done.
func (c *Clients) AwaitInstalled(ctx context.Context, obj client.Object) error {
	tick := time.NewTicker(installedRetry)
	defer tick.Stop()
	for !c.Installed(obj) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// WatchInstalled is Watch for a kind without a Go type, from the time when its CRD is
// installed.
func (c *Clients) WatchInstalled(ctx context.Context, gvk schema.GroupVersionKind, h toolscache.ResourceEventHandler) {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(gvk)
	if c.AwaitInstalled(ctx, kind) == nil && c.Watch(ctx, kind, h) == nil {
		c.log.Info("watching", "kind", gvk.Kind)
	}
}

const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// OwnNamespace returns the namespace of the pod's service account; empty: there is none.
func OwnNamespace() string {
	b, err := os.ReadFile(namespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
