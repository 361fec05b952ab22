// SPDX-License-Identifier: Apache-2.0

// Package certificates keeps the serving certificate in a Secret, and the APIServices that
// trust it.
package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
)

// Config holds the settings of Certs.
type Config struct {
	Secrets  corev1client.SecretInterface // of the namespace
	Name     string                       // of the Secret
	DNSNames []string                     // of the certificate; see ServiceNames
	Labels   map[string]string            // of a new Secret
	Owner    *kube.Owner                  // of a new Secret; may be nil

	// Leads reports whether this replica renews certificates that are still valid.
	// Any replica may replace a missing or unusable certificate. nil: always true.
	Leads func() bool

	// CALifetime (10 years) and LeafLifetime (1 year) are the lifetimes of new
	// certificates, LookAhead (90 days) is the time of renewal before expiry, and
	// Recheck (1 minute) is the interval at which the Secret is read.
	CALifetime, LeafLifetime, LookAhead, Recheck time.Duration

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil discards
}

const (
	oneDay          = 24 * time.Hour
	defaultCALife   = 10 * 365 * oneDay
	defaultLeafLife = 365 * oneDay
	defaultAhead    = 90 * oneDay
	// defaultRecheck bounds the time for which a replica serves a replaced certificate
	// after the Secret, with its authority, was deleted.
	defaultRecheck = time.Minute
	// minRetry is the first wait after a failed read; it doubles up to Recheck.
	minRetry = 500 * time.Millisecond
	// renewRounds bounds the attempts of one check after conflicts with other replicas.
	renewRounds = 5
)

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.CALifetime, defaultCALife)
	set(&c.LeafLifetime, defaultLeafLife)
	set(&c.LookAhead, defaultAhead)
	set(&c.Recheck, defaultRecheck)
	// Otherwise a new certificate would be due for renewal at once.
	c.LookAhead = min(c.LookAhead, c.LeafLifetime/2, c.CALifetime/2)
	if c.Leads == nil {
		c.Leads = func() bool { return true }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Certs manages a serving certificate, signed by our own authority, in a Secret that
// all replicas share: the first replica creates it, the leader renews it, and all
// replicas serve it. A Secret with a certificate but without our authority's key
// belongs to another program: its certificate is served, and it is never written.
//
// Its methods are safe for concurrent use.
type Certs struct {
	cfg Config

	mu        sync.Mutex
	current   certSet
	changed   chan struct{} // closed at the next change
	listeners []func()
}

// New makes a Certs without a certificate. Run or Sync loads it.
func New(cfg Config) *Certs {
	return &Certs{cfg: cfg.withDefaults(), changed: make(chan struct{})}
}

// ServiceNames returns the DNS names of a Service within the cluster. The API server
// uses SERVICE.NAMESPACE.svc.
func ServiceNames(service, namespace string) []string {
	return []string{service + "." + namespace + ".svc", service + "." + namespace + ".svc.cluster.local", service + "." + namespace, service}
}

// CurrentCertKeyContent returns the serving certificate and its key (PEM), or nil
// while there is none.
func (c *Certs) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.leaf, c.current.leafKey
}

// CABundle returns the certificates to trust (PEM): the authority's, and that of its
// predecessor while it is valid. It is nil while there is none.
func (c *Certs) CABundle() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.ca
}

// OnChange registers f, which is called after each change and must not block.
func (c *Certs) OnChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, f)
}

// Changed returns a channel that is closed at the next change.
func (c *Certs) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run maintains the certificate until ctx is done, and then returns nil. If the API
// server does not answer, it retries and serves the current certificate meanwhile.
func (c *Certs) Run(ctx context.Context) error {
	retry, failing := minRetry, false
	for {
		err := c.Sync(ctx)
		wait := c.cfg.Recheck
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctx is done: a normal end
		case err != nil:
			if !failing {
				c.cfg.Log.Warn("cannot maintain the serving certificate, retrying", "err", err)
			}
			wait, failing = retry, true
			retry = min(2*retry, c.cfg.Recheck)
		default:
			if failing {
				c.cfg.Log.Info("serving certificate is maintained again")
			}
			retry, failing = minRetry, false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// errRace means that another replica wrote the Secret first.
var errRace = errors.New("another replica wrote the secret meanwhile")

// Sync reads the Secret once, creates or renews the certificate if necessary, and uses
// the result.
func (c *Certs) Sync(ctx context.Context) error {
	for range renewRounds {
		err := c.syncOnce(ctx)
		if !errors.Is(err, errRace) {
			return err
		}
	}
	return fmt.Errorf("secret %s: %w", c.cfg.Name, errRace)
}

func (c *Certs) syncOnce(ctx context.Context) error {
	secret, err := c.cfg.Secrets.Get(ctx, c.cfg.Name, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		return fmt.Errorf("read secret %s: %w", c.cfg.Name, err)
	}
	if absent {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: c.cfg.Name, Labels: c.cfg.Labels},
			Type:       corev1.SecretTypeTLS,
		}
	}
	held := readCertSet(secret.Data)
	if held.isForeign() {
		if err := held.validateForeign(c.cfg.Now()); err != nil {
			return fmt.Errorf("secret %s has an unusable certificate of another program, which is not renewed: %w", c.cfg.Name, err)
		}
		c.setCurrent(held)
		return nil
	}
	next, why, err := c.renewIfNeeded(held)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	if why != "" {
		if err := c.write(ctx, secret, absent, next); err != nil {
			return err
		}
		c.cfg.Log.Info("created a serving certificate", "secret", c.cfg.Name, "why", why, "until", next.leafCert.NotAfter)
	}
	c.setCurrent(next)
	return nil
}

// renewIfNeeded returns a renewed set and the reason for it. If the reason is empty,
// the result is the set held.
func (c *Certs) renewIfNeeded(held certSet) (next certSet, why string, err error) {
	now, soon := c.cfg.Now(), c.cfg.Now()
	if c.cfg.Leads() {
		soon = soon.Add(c.cfg.LookAhead)
	}
	if why = held.authorityProblem(now, soon); why != "" {
		next, err = newAuthority(now, c.cfg.CALifetime, held.previousCA(now))
		if err != nil {
			return certSet{}, "", err
		}
	} else if why = held.leafProblem(now, soon, c.cfg.DNSNames, c.cfg.Leads()); why == "" {
		return held, "", nil
	} else {
		next = held
	}
	err = next.issue(now, c.cfg.LeafLifetime, c.cfg.DNSNames)
	return next, why, err
}

func (c *Certs) write(ctx context.Context, secret *corev1.Secret, absent bool, set certSet) error {
	secret = secret.DeepCopy()
	secret.Data = set.data(secret.Data)
	var err error
	if absent {
		if secret.OwnerReferences, err = c.cfg.Owner.References(ctx); err != nil {
			return fmt.Errorf("create secret %s: %w", c.cfg.Name, err)
		}
		_, err = c.cfg.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		// The update has the resourceVersion that was read.
		_, err = c.cfg.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), !absent && apierrors.IsNotFound(err):
		return errRace
	case err != nil:
		return fmt.Errorf("write secret %s: %w", c.cfg.Name, err)
	}
	return nil
}

// setCurrent replaces the current set, and notifies the listeners if it changed.
func (c *Certs) setCurrent(set certSet) {
	c.mu.Lock()
	same := bytes.Equal(set.leaf, c.current.leaf) && bytes.Equal(set.leafKey, c.current.leafKey) && bytes.Equal(set.ca, c.current.ca)
	c.current = set
	listeners := slices.Clone(c.listeners)
	if !same {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.mu.Unlock()
	if same {
		return
	}
	for _, f := range listeners {
		f()
	}
}
