// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/access"
	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
)

// serving is what clients reach.
type serving struct {
	page    *webui.Page
	mux     *http.ServeMux      // of --address
	conns   *listen.Room        // of --address
	adapter *adapter.Server     // nil: no --adapter-config
	keyPair *kedascaler.KeyPair // of the metrics API
}

// maxConnections bounds the open connections of --address. Each open page takes a few,
// Prometheus and the kubelet one each.
const maxConnections = 512

// pageTimeouts are those of --address.
var pageTimeouts = listen.Timeouts{Read: 10 * time.Second, Write: 30 * time.Second}

// Bounds of /metrics.
const (
	metricsAtOnce  = 4
	metricsTimeout = 10 * time.Second
)

// makePage makes what --address serves.
func (p *program) makePage() error {
	source := webui.WithMinutes{Control: p.control, Store: p.history.Store}
	if p.cfg.pageAuth == pageAuthNone {
		if !webui.IsLoopback(p.cfg.address) {
			p.log.Warn("the page shows all namespaces without authentication: bind --address to loopback, or set --page-auth=token",
				"address", p.cfg.address, "page-auth", p.cfg.pageAuth)
		}
		p.page = webui.New(source, nil)
	} else {
		reviewer, err := access.New(p.clients.Config, p.log)
		if err != nil {
			return fmt.Errorf("--page-auth %s: %w", p.cfg.pageAuth, err)
		}
		p.page = webui.New(source, webui.Tokens(reviewer))
		p.registry.MustRegister(meter.Func(reviewer.Meter))
	}
	p.page.Prices = p.cfg.prices
	p.registry.MustRegister(meter.Func(p.page.Meter))
	p.mux, p.conns = http.NewServeMux(), listen.New(listen.Limits{Connections: maxConnections})
	p.mux.Handle("/", p.page.Handler())
	p.mux.Handle("GET /metrics", p.page.GuardMetrics(promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{
		Registry: p.registry, MaxRequestsInFlight: metricsAtOnce, Timeout: metricsTimeout,
	})))
	webui.AddProbes(p.mux, p.ready.Load)
	if p.cfg.has(roleQuery) {
		p.addQueryAPI(p.mux)
	}
	return nil
}

// makeAdapter makes the server of prometheus-adapter's rules, whose queries run at
// --prometheus-url, else over the windows.
func (p *program) makeAdapter() error {
	c := p.cfg
	deps := adapter.Deps{Log: p.log.With("file", c.adapterConfig)}
	switch {
	case c.adapterConfig == "":
		return nil
	case c.prometheus != "":
		backend, err := c.backend(signalTimeout, adapter.MaxAnswer)
		if err != nil {
			return err
		}
		deps.Backend = adapter.Remote(backend)
	case c.has(roleQuery):
		over := &adapter.Windows{Engine: p.engine, Timeout: signalTimeout, MaxAge: c.prometheusMaxAge}
		deps.Backend = over.Backend()
	default:
		return errors.New("--adapter-config needs the role query in --roles, or --prometheus-url: the rules' queries run there")
	}
	p.adapter = adapter.New(adapter.ServerConfig{
		File: c.adapterConfig, Refresh: c.interval,
		Resolve: func(ctx context.Context, group, resource string) (adapter.Kind, bool, error) {
			r, found, err := p.clients.Resource(ctx, group, resource)
			kind := schema.GroupResource{Group: r.Group, Resource: r.Name}
			return adapter.Kind{GroupResource: kind, Singular: r.SingularName, Namespaced: r.Namespaced}, found, err
		},
	}, deps)
	p.adapter.ReadFile()
	p.addLoop(p.adapter.Run)
	p.sources = append(p.sources, p.adapter.Source())
	p.registry.MustRegister(meter.Func(p.adapter.Meter))
	return nil
}

// rateWindow is series.Config's default for the span of a counter's rate.
const rateWindow = 15 * time.Second

// makeMetricsAPI makes the server of custom.metrics.k8s.io and external.metrics.k8s.io.
func (p *program) makeMetricsAPI() (err error) {
	c := p.cfg
	cfg := metricsapi.Config{
		Port: c.securePort, CertFile: c.certFile, KeyFile: c.keyFile,
		Kubeconfig: c.kubeconfig, MaxAge: gpu.MaxAge(c.interval), RateWindow: rateWindow, Window: c.window, Version: version, Log: p.log,
	}
	if c.certFile != "" {
		p.keyPair = kedascaler.KeyPairFiles(c.certFile, c.keyFile)
	} else {
		certs := certificates.New(certificates.Config{
			Secrets: p.clients.Set.CoreV1().Secrets(c.namespace), Name: c.service + "-tls",
			DNSNames: certificates.ServiceNames(c.service, c.namespace), Owner: p.owner, Leads: p.leading, Log: p.log,
		})
		cfg.Cert, p.keyPair = certs, kedascaler.KeyPairOf(certs.CurrentCertKeyContent)
		p.addTask(certs.Run)
		if err := p.registerAPIs(certs); err != nil {
			return err
		}
	}
	deps := metricsapi.Deps{Pods: p.values, Statistics: p.values, Names: p.fields.Names, Objects: p.objects, Sources: p.sources, Programs: &p.programs}
	if c.external.enabled {
		deps.External = p.externalMetrics()
	}
	server, err := metricsapi.New(cfg, deps)
	if err != nil {
		return fmt.Errorf("--secure-port %d: %w", c.securePort, err)
	}
	p.addTask(server.Run)
	return nil
}

// apis returns the metrics APIs whose APIServices are the controller's.
func (c *config) apis() []certificates.APIVersion {
	return certificates.APIs(c.apiServices, c.external.enabled)
}

// registerAPIs has the leader keep the APIServices.
func (p *program) registerAPIs(certs *certificates.Certs) error {
	apis := p.cfg.apis()
	if len(apis) == 0 {
		return nil
	}
	client, err := apiregistration.NewForConfig(p.clients.Config)
	if err != nil {
		return fmt.Errorf("make a client for APIServices: %w", err)
	}
	owner := kube.NewClusterRoleOwner(p.clients.Set.RbacV1().ClusterRoles(), certificates.OwnerRole)
	p.addLoop(func(ctx context.Context) { _, _ = owner.References(ctx) }) // an error is repeated where it is used
	cfg := certificates.APIServiceConfig{
		APIs: apis, Namespace: p.cfg.namespace, Service: p.cfg.service, Port: p.cfg.servicePort,
		CreateIfMissing: true, Owner: owner, ServiceOwner: p.owner, Labels: map[string]string{"app.kubernetes.io/managed-by": "gpupilot-controller"},
	}
	p.addLeaderLoop(func(ctx context.Context) {
		certificates.KeepAPIServices(ctx, client.APIServices(), cfg, certs, p.log)
	})
	return nil
}

// externalMetrics returns the external metrics: the replicas of GPUAutoscalers,
// MetricQueries, and the rest of an adapter's externalRules, in this order.
func (p *program) externalMetrics() metricsapi.Externals {
	all := metricsapi.Externals{
		metricquery.Replicas{Autoscalers: p.control.AutoscalersOf, Desired: p.desiredReplicas}, metricquery.External{Keeper: p.queries},
	}
	if p.adapter != nil {
		all = append(all, p.adapter.ExternalSource())
	}
	return all
}

// makeKEDA makes the KEDA scaler.
func (p *program) makeKEDA() error {
	c := &p.cfg.keda
	cfg := kedascaler.Config{
		Certificate: p.keyPair.Current, Clients: kedascaler.Clients{Names: c.clients, Anyone: c.auth == kedaAuthNone},
		Report: p.scaledObjects.Report, Log: p.log,
	}
	if c.auth == kedaAuthCert {
		ca := kedascaler.NewAuthorities(c.ca)
		if _, err := ca.Current(); err != nil {
			return fmt.Errorf("--keda-client-ca-file: %w", err)
		}
		cfg.Authorities = ca.Current
	}
	server, err := kedascaler.New(cfg, &kedascaler.Sources{Objects: p.scaledObjects, Workloads: p.values, Decisions: p.control, Queries: p.queries})
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", c.address, err)
	}
	p.registry.MustRegister(server)
	p.addTask(func(ctx context.Context) error { return server.ListenAndRun(ctx, c.address) })
	return nil
}
