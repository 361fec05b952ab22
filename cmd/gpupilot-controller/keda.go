// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/connlimit"
	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	"github.com/gpupilot/gpupilot/internal/window/usage"
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
		{"keda-address", &k.address, "`address` of the external and external-push scaler for KEDA, gRPC over TLS with the metrics API's certificate; empty: none", k.checkAddress},
		{"keda-auth", &k.auth, "who may use the KEDA scaler: certificate (a client certificate of --keda-client-ca-file) or none (everybody who reaches the port)", flags.OneOf(&k.auth, kedaAuthCert, kedaAuthNone)},
		{"keda-client-ca-file", &k.ca, "`file` with the authorities of KEDA's client certificates, read again when it changes", nil},
		{"keda-clients", &k.clients, "common `names` of client certificates that may ask about all namespaces; the other certificates may ask about the namespaces in their URIs, " + kedascaler.NamespaceURI + "NAMESPACE", nil},
	}
}

func (k *kedaConfig) checkAddress() error {
	if k.address == "" {
		return nil
	}
	return flags.IsAddress(&k.address)()
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

// keda is the KEDA scaler with what it reads.
type keda struct {
	server *kedascaler.Server
	p      *program

	mu      sync.RWMutex
	objects map[types.NamespacedName]*kedaObject

	ca authorities
}

// kedaObject is a ScaledObject in memory.
type kedaObject struct {
	*kedascaler.ScaledObject
	uid      types.UID
	reported string // in the last Event about this version of the object
}

// report records an Event about a ScaledObject, once for each version of the object and
// reason.
func (k *keda) report(namespace, name, reason string) {
	k.mu.Lock()
	o := k.objects[types.NamespacedName{Namespace: namespace, Name: name}]
	if o == nil || o.reported == reason {
		k.mu.Unlock()
		return
	}
	o.reported = reason
	uid := o.uid
	k.mu.Unlock()
	k.p.recorder.Event(corev1.ObjectReference{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Namespace: namespace, Name: name, UID: uid},
		corev1.EventTypeWarning, "TriggerRefused", "Observe", reason)
}

// makeKEDA makes the KEDA scaler, if it has an address.
func (p *program) makeKEDA() (err error) {
	c := &p.cfg.keda
	if c.address == "" {
		return nil
	}
	p.keda.ca.file = c.ca
	if c.auth == kedaAuthCert {
		if _, err := p.keda.ca.current(); err != nil {
			return fmt.Errorf("--keda-client-ca-file: %w", err)
		}
	}
	certificate := newPairCache(p.certificateContent)
	p.keda.server, err = kedascaler.New(kedascaler.Config{
		Certificate: certificate.current, Authorities: p.keda.ca.current,
		Clients: kedascaler.Clients{Names: c.clients, Anyone: c.auth == kedaAuthNone}, Report: p.keda.report, Log: p.log,
	}, p.keda)
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", c.address, err)
	}
	p.registry.MustRegister(p.keda.server)
	return nil
}

// runKEDA serves the KEDA scaler.
func (p *program) runKEDA(g *group) error {
	if p.keda.server == nil {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(g.ctx, "tcp", p.cfg.keda.address)
	if err != nil {
		return fmt.Errorf("--keda-address %s: %w", p.cfg.keda.address, err)
	}
	g.run(func(ctx context.Context) error {
		return p.keda.server.Run(ctx, connlimit.New(maxKEDAConnections).Of(l))
	})
	return nil
}

// scaledObjectChanged keeps what the scaler reads of a ScaledObject.
func (k *keda) scaledObjectChanged(u *unstructured.Unstructured, gone bool) {
	key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	k.mu.Lock()
	defer k.mu.Unlock()
	if gone {
		delete(k.objects, key)
		return
	}
	next := &kedaObject{ScaledObject: scaledObjectOf(u), uid: u.GetUID()}
	if before := k.objects[key]; before != nil && before.uid == next.uid && reflect.DeepEqual(before.ScaledObject, next.ScaledObject) {
		next.reported = before.reported // only the status changed
	}
	k.objects[key] = next
}

// maxKEDATriggers bounds the triggers of a ScaledObject that are read.
const maxKEDATriggers = 64

func scaledObjectOf(u *unstructured.Unstructured) *kedascaler.ScaledObject {
	o := &kedascaler.ScaledObject{Namespace: u.GetNamespace(), Name: u.GetName()}
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "scaleTargetRef")
	o.Target.APIVersion, _, _ = unstructured.NestedString(ref, "apiVersion")
	o.Target.Kind, _, _ = unstructured.NestedString(ref, "kind")
	o.Target.Name, _, _ = unstructured.NestedString(ref, "name")
	if o.Target.Kind == "" {
		o.Target.Kind = "Deployment" // KEDA's default
	}
	if n, found, err := unstructured.NestedInt64(u.Object, "spec", "minReplicaCount"); found && err == nil {
		o.MinReplicas = int32(min(max(n, 0), 1<<30))
	}
	triggers, _, _ := unstructured.NestedSlice(u.Object, "spec", "triggers")
	for _, t := range triggers[:min(len(triggers), maxKEDATriggers)] {
		m, _ := t.(map[string]any)
		x := kedascaler.ObjectTrigger{}
		x.Type, _, _ = unstructured.NestedString(m, "type")
		x.MetricType, _, _ = unstructured.NestedString(m, "metricType")
		x.Metadata, _, _ = unstructured.NestedStringMap(m, "metadata")
		o.Triggers = append(o.Triggers, x)
	}
	return o
}

// ScaledObject implements kedascaler.Signals.
func (k *keda) ScaledObject(ctx context.Context, namespace, name string, live bool) (*kedascaler.ScaledObject, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if !live {
		k.mu.RLock()
		o := k.objects[key]
		k.mu.RUnlock()
		if o == nil {
			return nil, errNoScaledObject(key)
		}
		return o.ScaledObject, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	switch err := k.p.clients.Live.Get(ctx, key, u); {
	case apierrors.IsNotFound(err):
		return nil, errNoScaledObject(key)
	case err != nil:
		return nil, fmt.Errorf("%w: read ScaledObject %s: the API server did not answer", kedascaler.ErrNoValue, key)
	}
	return scaledObjectOf(u), nil
}

func errNoScaledObject(key types.NamespacedName) error {
	return fmt.Errorf("%w: ScaledObject %s does not exist; ScaledJobs are not supported", kedascaler.ErrNotFound, key)
}

// Workload implements kedascaler.Signals.
func (k *keda) Workload(ctx context.Context, q *kedascaler.WorkloadQuery) (kedascaler.WorkloadValue, error) {
	v, err := k.p.values.WorkloadValue(ctx, &usage.WorkloadQuery{
		Namespace: q.Namespace, Target: v1alpha1.CrossVersionObjectReference(q.Target), Metric: q.Metric, Stat: q.Stat, Window: q.Window, Active: q.Active,
	}, time.Now())
	return kedascaler.WorkloadValue(v), kedaError(err)
}

// Desired implements kedascaler.Signals.
func (k *keda) Desired(namespace, autoscaler string) (kedascaler.Sample, error) {
	d, err := k.p.control.DesiredReplicas(namespace, autoscaler)
	return kedascaler.Sample{Value: float64(d.Replicas), At: d.At}, kedaError(err)
}

// kedaError converts an error of the controller to one of kedascaler.
func kedaError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, usage.ErrUnknownMetric):
		return fmt.Errorf("%w: metadata.metric: %w", kedascaler.ErrInvalid, err)
	case errors.Is(err, usage.ErrUnknownWorkload):
		return fmt.Errorf("%w: %w", kedascaler.ErrNotFound, err)
	case errors.Is(err, usage.ErrNoValue):
		return fmt.Errorf("%w: %w", kedascaler.ErrNoValue, err)
	}
	return err
}

// certificateContent returns the metrics API's certificate and key (PEM).
func (p *program) certificateContent() (cert, key []byte, err error) {
	if p.certs != nil {
		cert, key = p.certs.CurrentCertKeyContent()
		if len(cert) == 0 {
			return nil, nil, errors.New("there is no serving certificate yet")
		}
		return cert, key, nil
	}
	if cert, err = os.ReadFile(p.cfg.certFile); err != nil {
		return nil, nil, err
	}
	key, err = os.ReadFile(p.cfg.keyFile)
	return cert, key, err
}

// pairCache parses a certificate once per content.
type pairCache struct {
	content func() (cert, key []byte, err error)

	mu        sync.Mutex
	cert, key []byte
	pair      *tls.Certificate
}

func newPairCache(content func() (cert, key []byte, err error)) *pairCache {
	return &pairCache{content: content}
}

func (c *pairCache) current() (*tls.Certificate, error) {
	cert, key, err := c.content()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return c.pair, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return c.pair, nil
}

// authorities are the certificates of a PEM file, parsed once per content.
type authorities struct {
	file string

	mu   sync.Mutex
	text []byte
	pool *x509.CertPool
}

func (a *authorities) current() (*x509.CertPool, error) {
	text, err := os.ReadFile(a.file)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pool != nil && bytes.Equal(text, a.text) {
		return a.pool, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", a.file)
	}
	a.text, a.pool = text, pool
	return pool, nil
}
