// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/connlimit"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/group"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
)

// kedaConfig holds the flags of the KEDA scaler.
type kedaConfig struct {
	address string // empty: no scaler
	auth    string
	ca      string
	clients []string
}

// The values of --keda-auth.
const (
	kedaAuthCert = "certificate"
	kedaAuthNone = "none"
)

func defaultKEDA() kedaConfig {
	return kedaConfig{auth: kedaAuthCert, clients: []string{"keda-operator"}}
}

func (k *kedaConfig) rows() []option {
	return []option{
		{"keda-address", &k.address, "`address` of the external and external-push scaler for KEDA, gRPC over TLS with the metrics API's certificate; empty: none", flags.IsAddressOrEmpty(&k.address)},
		{"keda-auth", &k.auth, "who may use the KEDA scaler: certificate (a client certificate of --keda-client-ca-file) or none (everybody who reaches the port)", flags.OneOf(&k.auth, kedaAuthCert, kedaAuthNone)},
		{"keda-client-ca-file", &k.ca, "`file` with the authorities of KEDA's client certificates, read again when it changes", nil},
		{"keda-clients", &k.clients, "common `names` of client certificates that may ask about all namespaces; the other certificates may ask about the namespaces in their URIs, " + kedascaler.NamespaceURI + "NAMESPACE", nil},
	}
}

// check checks the flags together.
func (k *kedaConfig) check() error {
	if k.address != "" && k.auth == kedaAuthCert && k.ca == "" {
		return errors.New("--keda-address is set and --keda-client-ca-file is empty: give the authority of KEDA's client certificates, " +
			"or --keda-auth=none if the network limits who reaches the port")
	}
	return nil
}

// maxKEDAConnections bounds the connections to the KEDA scaler. KEDA's operator uses one
// for each address with its credentials.
const maxKEDAConnections = 256

// keda is the KEDA scaler: the ScaledObjects, which are watched with other objects, and
// the server of their triggers.
type keda struct {
	objects *kedascaler.Objects
	server  *kedascaler.Server // nil: no --keda-address
}

func (p *program) makeScaledObjects() *kedascaler.Objects {
	return kedascaler.NewObjects(p.clients.Live, func(about corev1.ObjectReference, reason string) {
		p.recorder.Event(about, corev1.EventTypeWarning, "TriggerRefused", "Observe", reason)
	})
}

// makeKEDA makes the server, if it has an address.
func (p *program) makeKEDA() (err error) {
	c := &p.cfg.keda
	if c.address == "" {
		return nil
	}
	cfg := kedascaler.Config{
		Certificate: p.servingCertificate().Current, Clients: kedascaler.Clients{Names: c.clients, Anyone: c.auth == kedaAuthNone},
		Report: p.keda.objects.Report, Log: p.log,
	}
	if c.auth == kedaAuthCert {
		ca := kedascaler.NewAuthorities(c.ca)
		if _, err := ca.Current(); err != nil {
			return fmt.Errorf("--keda-client-ca-file: %w", err)
		}
		cfg.Authorities = ca.Current
	}
	p.keda.server, err = kedascaler.New(cfg, &kedascaler.Sources{Objects: p.keda.objects, Workloads: p.values, Decisions: p.control, Queries: p.queries})
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", c.address, err)
	}
	p.registry.MustRegister(p.keda.server)
	return nil
}

// servingCertificate returns the metrics API's certificate.
func (p *program) servingCertificate() *kedascaler.KeyPair {
	if p.certs == nil {
		return kedascaler.KeyPairFiles(p.cfg.certFile, p.cfg.keyFile)
	}
	return kedascaler.NewKeyPair(func() (cert, key []byte, err error) {
		if cert, key = p.certs.CurrentCertKeyContent(); len(cert) == 0 {
			return nil, nil, errors.New("there is no serving certificate yet")
		}
		return cert, key, nil
	})
}

// runKEDA serves the KEDA scaler.
func (p *program) runKEDA(ctx context.Context, g *group.Group) error {
	if p.keda.server == nil {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.cfg.keda.address)
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", p.cfg.keda.address, err)
	}
	g.Run(func(ctx context.Context) error {
		return p.keda.server.Run(ctx, connlimit.New(maxKEDAConnections).Of(l))
	})
	return nil
}
