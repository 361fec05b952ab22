// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Config says which API server to speak to, and how much.
type Config struct {
	Kubeconfig string  // a file; empty: the service account of the pod that this runs in
	QPS        float32 // requests a second, of each kind of object; 100
	Burst      int     // as many at once; 200
	UserAgent  string  // how we name ourselves; gpupilot
	// GPUResources are names of resources that count GPUs, beside those of
	// gpu.IsResource. Only such resources of pods and nodes are kept in the cache.
	GPUResources []string
	Log          *slog.Logger
}

// Clients are the ways to one API server.
type Clients struct {
	Config *rest.Config
	Cache  cache.Cache          // runs in Run
	Client client.Client        // reads what is cached from the cache, the rest and all writes go to the API server
	Live   client.Reader        // asks the API server, whatever is cached
	Set    kubernetes.Interface // for what is not cached
	Mapper meta.RESTMapper

	log *slog.Logger
}

// Connect makes clients. It asks the API server nothing yet: one that is away
// is no error.
func Connect(cfg Config) (*Clients, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", rc.Host, err)
	}
	c := &Clients{Config: rc, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))}
	if c.Mapper, err = apiutil.NewDynamicRESTMapper(rc, httpClient); err != nil {
		return nil, fmt.Errorf("make a REST mapper: %w", err)
	}
	if err := c.connect(rc, httpClient, cfg.GPUResources); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Clients) connect(rc *rest.Config, httpClient *http.Client, gpuResources []string) (err error) {
	scheme := Scheme()
	c.Cache, err = cache.New(rc, cache.Options{
		HTTPClient: httpClient, Scheme: scheme, Mapper: c.Mapper,
		DefaultTransform: slim(gpuResources), // an option of one kind, ByObject, would have the mapper ask the API server now
		DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
			c.log.Debug("watch broke, watching again", "kind", r.TypeDescription(), "err", err)
		},
	})
	if err != nil {
		return fmt.Errorf("make a cache: %w", err)
	}
	c.Client, err = client.New(rc, client.Options{
		HTTPClient: httpClient, Scheme: scheme, Mapper: c.Mapper,
		Cache: &client.CacheOptions{Reader: c.Cache},
	})
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.Live, err = client.New(rc, client.Options{HTTPClient: httpClient, Scheme: scheme, Mapper: c.Mapper}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.Set, err = kubernetes.NewForConfigAndClient(rc, httpClient); err != nil {
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
		return nil, fmt.Errorf("no kubeconfig was given: %w", err)
	}
	// A decision is at most a few requests, and none of them may wait in our
	// own queue: the API server's fairness bounds us, these are for bugs.
	rc.QPS, rc.Burst = cmp.Or(cfg.QPS, 100), cmp.Or(cfg.Burst, 200)
	rc.UserAgent = cmp.Or(cfg.UserAgent, "gpupilot")
	return rc, nil
}

// Scheme knows the kinds that we read and write.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme,
		coordinationv1.AddToScheme, eventsv1.AddToScheme, resourcev1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two types of one name, our own bug
		}
	}
	return s
}

// Run watches what informers were asked for, until ctx is done.
func (c *Clients) Run(ctx context.Context) error {
	if err := c.Cache.Start(ctx); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	return nil
}

// informerRetry is how soon a kind that cannot be watched is tried again: its
// CRD may yet be installed, the API server may yet answer.
const informerRetry = time.Second

// Watch has h called for each object of the kind of obj, and waits until the
// first listing was delivered. A kind that the API server does not know, or an
// API server that is away, is waited for. An error means that ctx is done.
func (c *Clients) Watch(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
	said := ""
	for {
		informer, err := c.Cache.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err == nil {
			return c.follow(ctx, informer, h)
		}
		if ctx.Err() == nil && said != err.Error() {
			said = err.Error()
			c.log.Warn("cannot watch yet, trying again", "kind", kindOf(obj), "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(informerRetry):
		}
	}
}

func (c *Clients) follow(ctx context.Context, informer cache.Informer, h toolscache.ResourceEventHandler) error {
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), reg.HasSynced) {
		return ctx.Err()
	}
	return nil
}

// kindOf names the kind of obj for a log line.
func kindOf(obj client.Object) string {
	if kind := obj.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	_, name, _ := strings.Cut(fmt.Sprintf("%T", obj), ".")
	return name
}

// Installed says whether the API server serves the kind of obj.
func (c *Clients) Installed(obj client.Object) bool {
	gvk := obj.GetObjectKind().GroupVersionKind()
	_, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	return err == nil
}
