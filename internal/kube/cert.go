// SPDX-License-Identifier: Apache-2.0

package kube

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
)

// CertConfig says which certificate is kept where.
type CertConfig struct {
	Secrets  corev1client.SecretInterface // of the namespace
	Name     string                       // of the Secret
	DNSNames []string                     // of the certificate; see ServiceNames
	Labels   map[string]string            // of a Secret that is made

	// Leads says whether this replica may renew what is still good. Absent or
	// unusable certificates are made by whoever comes first. nil: it may.
	Leads func() bool

	// CALifetime (10 years) and LeafLifetime (1 year) are how long new
	// certificates last, LookAhead (90 days) is how long before its end one is
	// renewed, Recheck (1 minute) is how often the Secret is read again.
	CALifetime, LeafLifetime, LookAhead, Recheck time.Duration

	Now func() time.Time // nil: time.Now
	Log *slog.Logger     // nil discards
}

const (
	day             = 24 * time.Hour
	defaultCALife   = 10 * 365 * day
	defaultLeafLife = 365 * day
	defaultAhead    = 90 * day
	// defaultRecheck is how long a replica may serve a certificate that
	// another replaced, should the authority be lost with the Secret.
	defaultRecheck = time.Minute
	// minRetry is the first wait after a failed read; it doubles up to Recheck.
	minRetry = 500 * time.Millisecond
	// renewRounds bounds how often one check tries again after another replica
	// wrote first.
	renewRounds = 5
)

func (c CertConfig) withDefaults() CertConfig {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.CALifetime, defaultCALife)
	set(&c.LeafLifetime, defaultLeafLife)
	set(&c.LookAhead, defaultAhead)
	set(&c.Recheck, defaultRecheck)
	// Or a new one would be due at once, again and again.
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

// Certs is a serving certificate of our own authority, kept in a Secret that
// all replicas share: the first makes it, the leader renews it, and all serve
// what the Secret says. A Secret with a certificate but without our
// authority's key is somebody else's: it is served and never written.
//
// Its methods are safe for concurrent use.
type Certs struct {
	cfg CertConfig

	mu        sync.Mutex
	current   certSet
	changed   chan struct{} // closed at the next change
	listeners []func()
}

// NewCerts makes a Certs that holds nothing yet; Run or Sync fill it.
func NewCerts(cfg CertConfig) *Certs {
	return &Certs{cfg: cfg.withDefaults(), changed: make(chan struct{})}
}

// ServiceNames are the names by which a Service is reached within a cluster.
// The API server uses SERVICE.NAMESPACE.svc.
func ServiceNames(service, namespace string) []string {
	return []string{service + "." + namespace + ".svc", service + "." + namespace + ".svc.cluster.local", service + "." + namespace, service}
}

// CurrentCertKeyContent is the serving certificate and its key (PEM), nil
// while there is none.
func (c *Certs) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.leaf, c.current.leafKey
}

// CABundle is what to trust (PEM): the authority's certificate, and its
// predecessor's while that is good. nil while there is none.
func (c *Certs) CABundle() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.ca
}

// OnChange has f called after each change, from the goroutine that noticed it.
// f does not block.
func (c *Certs) OnChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, f)
}

// Changed is closed at the next change.
func (c *Certs) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run keeps the certificate until ctx is done, and returns nil then. An API
// server that does not answer is asked again; what is held is served meanwhile.
func (c *Certs) Run(ctx context.Context) error {
	retry, failing := minRetry, false
	for {
		err := c.Sync(ctx)
		wait := c.cfg.Recheck
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end was asked for
		case err != nil:
			if !failing {
				c.cfg.Log.Warn("certificate cannot be kept, trying again", "err", err)
			}
			wait, failing = retry, true
			retry = min(2*retry, c.cfg.Recheck)
		default:
			if failing {
				c.cfg.Log.Info("certificate can be kept again")
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

// errRace: another replica wrote the Secret first.
var errRace = errors.New("the secret was written meanwhile")

// Sync reads the Secret once, makes or renews what it lacks, and takes over
// what it says.
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
	if held.foreign() {
		if err := held.usable(c.cfg.Now()); err != nil {
			return fmt.Errorf("secret %s has a certificate that is not ours to renew: %w", c.cfg.Name, err)
		}
		c.take(held)
		return nil
	}
	next, why, err := c.renewed(held)
	if err != nil {
		return fmt.Errorf("make a certificate: %w", err)
	}
	if why != "" {
		if err := c.write(ctx, secret, absent, next); err != nil {
			return err
		}
		c.cfg.Log.Info("certificate made", "secret", c.cfg.Name, "why", why, "until", next.leafCert.NotAfter)
	}
	c.take(next)
	return nil
}

// renewed is the set that ought to be there, and why it is not the one held;
// an empty reason: it is.
func (c *Certs) renewed(held certSet) (next certSet, why string, err error) {
	now, soon := c.cfg.Now(), c.cfg.Now()
	if c.cfg.Leads() {
		soon = soon.Add(c.cfg.LookAhead)
	}
	if why = held.authorityLacks(now, soon); why != "" {
		next, err = newAuthority(now, c.cfg.CALifetime, held.previous(now))
		if err != nil {
			return certSet{}, "", err
		}
	} else if why = held.leafLacks(now, soon, c.cfg.DNSNames, c.cfg.Leads()); why == "" {
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
		_, err = c.cfg.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		// It carries the resourceVersion that was read.
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

// take makes set the current one and tells the listeners if it is another.
func (c *Certs) take(set certSet) {
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
