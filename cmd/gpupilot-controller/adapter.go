// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/client"
)

// makeAdapter makes the server of prometheus-adapter's rules; nil without
// --adapter-config.
func (p *program) makeAdapter() error {
	c := p.cfg
	if c.adapterConfig == "" || !c.has(roleAPI) {
		return nil
	}
	backend, err := p.adapterBackend()
	if err != nil {
		return err
	}
	p.adapter = adapter.New(adapter.ServerConfig{File: c.adapterConfig, Refresh: c.interval, Resolve: p.customResource},
		adapter.Deps{Backend: backend, Log: p.log.With("file", c.adapterConfig)})
	p.adapter.ReadFile()
	p.sources = append(p.sources, p.adapter.Source())
	p.registry.MustRegister(meter.Func(p.adapter.Meter))
	return nil
}

// customResource finds a custom resource of an adapter's overrides.
func (p *program) customResource(ctx context.Context, group, resource string) (adapter.Kind, bool, error) {
	r, found, err := p.clients.Resource(ctx, group, resource)
	return adapter.Kind{
		GroupResource: schema.GroupResource{Group: r.Group, Resource: r.Name}, Singular: r.SingularName, Namespaced: r.Namespaced,
	}, found, err
}

// adapterBackend returns where the adapter's queries run: at --prometheus-url, else over
// the windows.
func (p *program) adapterBackend() (adapter.Backend, error) {
	c := p.cfg
	if c.prometheus != "" {
		remote, err := client.New(client.Config{
			URL: c.prometheus, HTTPConfig: c.prometheusHTTP, Timeout: c.prometheusTimeout, MaxAge: c.prometheusMaxAge,
			MaxAnswer: adapter.MaxAnswer, UserAgent: "gpupilot-controller/" + version,
		})
		if err != nil {
			return adapter.Backend{}, fmt.Errorf("--prometheus-url: %w", err)
		}
		return adapter.Remote(remote), nil
	}
	if p.promql == nil {
		return adapter.Backend{}, errors.New("--adapter-config needs the role query in --roles, or --prometheus-url: the rules' queries run there")
	}
	over := &adapter.Windows{Engine: p.promql.engine, Timeout: c.prometheusTimeout, MaxAge: c.prometheusMaxAge}
	return over.Backend(), nil
}
