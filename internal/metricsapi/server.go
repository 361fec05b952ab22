// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
	generatedcore "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/core"
	generatedcustom "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/custommetrics"
)

// name is what the API calls itself in its OpenAPI document and its logs.
const name = "gpupilot"

// Config says where and as whom the API is served.
type Config struct {
	BindAddress string // an IP address; empty: all of this machine's
	Port        int    // 0: any free one, see Server.Addr

	// CertFile and KeyFile are PEM files, read again when they change. Where
	// they are set, Cert is not used.
	CertFile, KeyFile string
	Cert              Cert

	// Kubeconfig is the file for the API server to which authentication and
	// authorization are delegated; empty: the service account of the pod.
	Kubeconfig string

	MaxAge     time.Duration // older values are absent; gpu.MaxAge of the agents' interval
	RateWindow time.Duration // over which the store takes a counter's rate, for windowSeconds; 0: not said
	Version    string        // of the program, for the OpenAPI document
	Log        *slog.Logger  // nil discards
}

// Cert is a serving certificate that may change.
type Cert interface {
	// CurrentCertKeyContent is the certificate chain and its key in PEM; nil
	// while there is none yet, and no connection is accepted meanwhile.
	CurrentCertKeyContent() (cert, key []byte)
	// OnChange has f called after each change. f does not block.
	OnChange(f func())
}

// Server is the API on its port.
type Server struct {
	cfg      Config
	provider *Provider
	listener net.Listener
}

// New takes the port; Run serves on it. Until then connections wait.
func New(cfg Config, deps Deps) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("certificate file %q, key file %q: give both or neither", cfg.CertFile, cfg.KeyFile)
	}
	if cfg.CertFile == "" && cfg.Cert == nil {
		return nil, errors.New("the metrics API has no serving certificate")
	}
	if cfg.BindAddress != "" && net.ParseIP(cfg.BindAddress) == nil {
		return nil, fmt.Errorf("bind address %q is not an IP address", cfg.BindAddress)
	}
	if _, err := loadKubeconfig(cfg.Kubeconfig); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cfg.BindAddress, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for the metrics API: %w", err)
	}
	return &Server{cfg: cfg, provider: NewProvider(cfg.MaxAge, cfg.RateWindow, deps), listener: listener}, nil
}

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// The waits between attempts to set the server up while the API server, whose
// front proxy's authority it has to know, does not answer.
const (
	minRetry = 500 * time.Millisecond
	maxRetry = 15 * time.Second
)

// Run serves until ctx is done, then lets requests in flight finish and
// returns nil. An API server that cannot be reached is waited for, at the
// start and later; only what no waiting cures is an error.
func (s *Server) Run(ctx context.Context) error {
	defer s.listener.Close()
	retry := minRetry
	for said := ""; ; retry = min(2*retry, maxRetry) {
		server, err := s.build()
		if err == nil {
			s.cfg.Log.Info("metrics API serving", "address", s.Addr().String())
			if err = server.GenericAPIServer.PrepareRun().RunWithContext(ctx); err != nil {
				return fmt.Errorf("serve the metrics API: %w", err)
			}
			return nil
		}
		if said != err.Error() {
			said = err.Error()
			s.cfg.Log.Warn("metrics API cannot start yet, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// build makes a server that is ready to run. It asks the API server for its
// authentication settings, and fails where it does not answer.
func (s *Server) build() (*apiserver.CustomMetricsAdapterServer, error) {
	if err := s.observeFreshness(); err != nil {
		return nil, err
	}
	// Neither profiling nor priority and fairness: the API is asked by the
	// API server alone, and whoever may read a metric need not read our heap.
	config := genericapiserver.NewConfig(apiserver.Codecs)
	config.EnableProfiling = false
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(newLists(s.provider, api), c)
	}
	config.AggregatedDiscoveryGroupManager = newDiscovery(s.provider)
	s.describe(config)
	if err := s.secure(config); err != nil {
		return nil, err
	}
	complete := (&apiserver.Config{GenericConfig: config}).Complete(nil)
	server, err := complete.New(name, s.provider, nil)
	if err != nil {
		return nil, fmt.Errorf("make the metrics API: %w", err)
	}
	return server, nil
}

// observeFreshness has the provider observe the age of each value that it gives,
// in the metric that the library would observe it in, but for the look-up of its
// labels for each value. The library's own is not registered, which makes it
// none.
func (s *Server) observeFreshness() error {
	ages := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "metrics_apiserver", Name: "metric_freshness_seconds", Help: "Freshness of metrics exported",
		StabilityLevel: metrics.ALPHA, Buckets: metrics.ExponentialBuckets(1, 1.364, 20),
	}, []string{"group"})
	if err := legacyregistry.Register(ages); err != nil {
		var known prometheus.AlreadyRegisteredError // by another server of this process, or by an attempt that failed
		if !errors.As(err, &known) {
			return fmt.Errorf("register the freshness of metrics: %w", err)
		}
		existing, ok := known.ExistingCollector.(*metrics.HistogramVec)
		if !ok {
			return fmt.Errorf("register the freshness of metrics: %w", err)
		}
		ages = existing
	}
	s.provider.observe = ages.WithLabelValues(custom_metrics.GroupName).Observe
	return nil
}

// describe has OpenAPI v2 and v3 served.
func (s *Server) describe(config *genericapiserver.Config) {
	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		all := generatedcore.GetOpenAPIDefinitions(ref)
		maps.Copy(all, generatedcustom.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = name, name
	config.OpenAPIConfig.Info.Version, config.OpenAPIV3Config.Info.Version = s.cfg.Version, s.cfg.Version
}

// secure sets the port, the certificate and who may ask.
func (s *Server) secure(config *genericapiserver.Config) error {
	serving := genericoptions.NewSecureServingOptions().WithLoopback()
	serving.Listener = s.listener
	serving.ServerCert.CertKey.CertFile = s.cfg.CertFile
	serving.ServerCert.CertKey.KeyFile = s.cfg.KeyFile
	if err := serving.ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return fmt.Errorf("certificate of the metrics API: %w", err)
	}
	if s.cfg.CertFile == "" {
		config.SecureServing.Cert = servedCert{s.cfg.Cert}
	}
	authentication := genericoptions.NewDelegatingAuthenticationOptions()
	authentication.RemoteKubeConfigFile = s.cfg.Kubeconfig
	if err := authentication.ApplyTo(&config.Authentication, config.SecureServing, config.OpenAPIConfig); err != nil {
		return fmt.Errorf("delegate authentication: %w", err)
	}
	authorization := genericoptions.NewDelegatingAuthorizationOptions()
	authorization.RemoteKubeConfigFile = s.cfg.Kubeconfig
	authorization.AlwaysAllowPaths = []string{"/healthz", "/livez", "/readyz"}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("delegate authorization: %w", err)
	}
	return nil
}

// loadKubeconfig finds what is wrong with the file, or with not being in a
// cluster, before anything waits for an API server.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig was given: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}
