// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"cmp"
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
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
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
	generatedexternal "sigs.k8s.io/custom-metrics-apiserver/pkg/generated/openapi/externalmetrics"

	"github.com/gpupilot/gpupilot/internal/base/listen"
)

// name is the API's name in its OpenAPI document and its logs.
const name = "gpupilot"

// Config is the configuration of a Server.
type Config struct {
	BindAddress string // an IP address; empty: all addresses
	Port        int    // 0: a free port, see Server.Addr

	// CertFile and KeyFile are PEM files, read again when they change. If they are
	// set, Cert is not used.
	CertFile, KeyFile string
	Cert              Cert

	// Kubeconfig is the file for the API server to which authentication and
	// authorization are delegated; empty: the service account of the pod.
	Kubeconfig string

	MaxAge     time.Duration // older values are absent; gpu.MaxAge of the agents' interval
	RateWindow time.Duration // of the store's counter rates, for windowSeconds; 0: omit windowSeconds
	Window     time.Duration // the longest window of a request; 10 min by default
	Version    string        // of the program, for the OpenAPI document
	Log        *slog.Logger  // nil discards
}

// Cert is a serving certificate that may change.
type Cert interface {
	// CurrentCertKeyContent returns the certificate chain and its key in PEM; nil if
	// there is none yet. Without a certificate, no connection is accepted.
	CurrentCertKeyContent() (cert, key []byte)
	// OnChange registers f to be called after each change. f must not block.
	OnChange(f func())
}

// Server is the API on its port.
type Server struct {
	cfg      Config
	provider *Provider
	listener net.Listener
}

// New listens on the port, and Run serves on it. Connections wait until Run is called.
func New(cfg Config, deps Deps) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("certificate file %q, key file %q: give both or neither", cfg.CertFile, cfg.KeyFile)
	}
	if cfg.CertFile == "" && cfg.Cert == nil {
		return nil, errors.New("the metrics API has no serving certificate: give certificate files or a Cert")
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
	p := NewProvider(cfg.MaxAge, cfg.RateWindow, deps)
	p.span = cmp.Or(cfg.Window, p.span)
	return &Server{cfg: cfg, provider: p, listener: listen.New(listen.Limits{Connections: maxConnections}).Of(listener)}, nil
}

// maxConnections bounds the connections of the metrics API. The API server has a few, over which it sends all requests.
const maxConnections = 512

// Addr returns the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// The delays between attempts to build the server while the API server does not
// answer. The server needs the certificate authority of the API server's front proxy.
const (
	minRetry = 500 * time.Millisecond
	maxRetry = 15 * time.Second
)

// Run serves until ctx is done, lets requests in flight finish, and returns nil. It
// waits for an unreachable API server. It returns only errors that a retry cannot
// mend.
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

// build returns a server that is ready to run. It reads the authentication settings
// from the API server, and fails if that does not answer.
func (s *Server) build() (*apiserver.CustomMetricsAdapterServer, error) {
	if err := s.observeFreshness(); err != nil {
		return nil, err
	}
	// Profiling is off: the right to read a metric must not include the heap. Priority
	// and fairness is off, and so is the bound of requests that knows no payer: shared has the bounds.
	config := genericapiserver.NewConfig(apiserver.Codecs)
	config.EnableProfiling = false
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = 0, 0
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(shared(newLists(s.provider, api)), c)
	}
	config.AggregatedDiscoveryGroupManager = newDiscovery(aggregated.NewResourceManager("apis"), s.provider.ListAllMetrics, publishCustom)
	external := s.externalProvider(config)
	s.describe(config)
	if err := s.secure(config); err != nil {
		return nil, err
	}
	complete := (&apiserver.Config{GenericConfig: config}).Complete(nil)
	server, err := complete.New(name, s.provider, external)
	if err != nil {
		return nil, fmt.Errorf("build the metrics API: %w", err)
	}
	return server, nil
}

// observeFreshness makes the provider record the age of each served value in the
// library's metric. Unlike the library, it looks the metric's labels up only once. The
// library's own metric is not registered and has no effect.
func (s *Server) observeFreshness() error {
	ages := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "metrics_apiserver", Name: "metric_freshness_seconds", Help: "Freshness of metrics exported",
		StabilityLevel: metrics.ALPHA, Buckets: metrics.ExponentialBuckets(1, 1.364, 20),
	}, []string{"group"})
	if err := legacyregistry.Register(ages); err != nil {
		var known prometheus.AlreadyRegisteredError // by another server of this process, or by an earlier attempt
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

// describe configures the OpenAPI v2 and v3 documents.
func (s *Server) describe(config *genericapiserver.Config) {
	definitions := func(ref openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
		all := generatedcore.GetOpenAPIDefinitions(ref)
		maps.Copy(all, generatedcustom.GetOpenAPIDefinitions(ref))
		maps.Copy(all, generatedexternal.GetOpenAPIDefinitions(ref))
		return all
	}
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = name, name
	config.OpenAPIConfig.Info.Version, config.OpenAPIV3Config.Info.Version = s.cfg.Version, s.cfg.Version
}

// secure configures the port, the certificate, authentication and authorization.
func (s *Server) secure(config *genericapiserver.Config) error {
	serving := genericoptions.NewSecureServingOptions().WithLoopback()
	serving.Listener = s.listener
	// A connection of HTTP/2 has 250 streams, and one that is not read holds 30 KiB whatever its answer is.
	serving.DisableHTTP2Serving = true
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

// loadKubeconfig loads the file, or the pod's service account if path is empty, so
// that errors show before Run waits for an API server.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("set --kubeconfig, or run in a pod with a service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return config, nil
}
