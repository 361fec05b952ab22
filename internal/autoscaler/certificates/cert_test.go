// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

var (
	secrets = schema.GroupResource{Resource: "secrets"}
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	svc     = ServiceNames("gpupilot", "gpu")
)

// secretStore is a namespace's Secrets with the API server's rules for writes.
type secretStore struct {
	corev1client.SecretInterface

	mu      sync.Mutex
	secret  *corev1.Secret
	version int
	writes  int
	err     error  // of every call, if set
	between func() // runs once, after the next read
}

func (s *secretStore) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	secret, err, between := s.secret.DeepCopy(), s.err, s.between
	s.between = nil
	s.mu.Unlock()
	if between != nil {
		between()
	}
	if err == nil && secret == nil {
		err = apierrors.NewNotFound(secrets, "cert")
	}
	return secret, err
}

func (s *secretStore) Create(_ context.Context, secret *corev1.Secret, _ metav1.CreateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secret != nil {
		return nil, apierrors.NewAlreadyExists(secrets, secret.Name)
	}
	return s.put(secret)
}

func (s *secretStore) Update(_ context.Context, secret *corev1.Secret, _ metav1.UpdateOptions) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.secret == nil:
		return nil, apierrors.NewNotFound(secrets, secret.Name)
	case secret.ResourceVersion != s.secret.ResourceVersion:
		return nil, apierrors.NewConflict(secrets, secret.Name, errors.New("changed"))
	}
	return s.put(secret)
}

func (s *secretStore) put(secret *corev1.Secret) (*corev1.Secret, error) {
	if s.err != nil {
		return nil, s.err
	}
	s.version++
	s.writes++
	s.secret = secret.DeepCopy()
	s.secret.ResourceVersion = strconv.Itoa(s.version)
	return s.secret, nil
}

func (s *secretStore) set(data map[string][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cert", ResourceVersion: strconv.Itoa(s.version)}, Data: data}
}

// replica returns the Certs of one of several controllers, which leads if *leads.
func replica(s *secretStore, now *time.Time, leads *bool) *Certs {
	return New(Config{
		Secrets: s, Name: "cert", DNSNames: svc,
		Now: func() time.Time { return *now }, Leads: func() bool { return *leads },
	})
}

// verify checks that a client that trusts bundle accepts leaf at now.
func verify(bundle, leaf, key []byte, name string, now time.Time) error {
	pair, err := tls.X509KeyPair(leaf, key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now})
	return err
}

func serves(t *testing.T, c *Certs, bundle []byte, now time.Time) {
	t.Helper()
	leaf, key := c.CurrentCertKeyContent()
	for _, name := range svc {
		if err := verify(bundle, leaf, key, name, now); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
}

func mustSync(t *testing.T, c *Certs) {
	t.Helper()
	if err := c.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFirstReplicaMakesTheCertificate(t *testing.T) {
	store, now, no := &secretStore{}, start, false
	c := replica(store, &now, &no)
	if leaf, key := c.CurrentCertKeyContent(); leaf != nil || key != nil || c.CABundle() != nil {
		t.Error("a certificate before there is one")
	}
	mustSync(t, c)
	serves(t, c, c.CABundle(), now)
	if store.secret.Type != corev1.SecretTypeTLS {
		t.Errorf("secret type %q", store.secret.Type)
	}
	cert := readCertSet(store.secret.Data)
	if got := cert.leafCert.NotAfter.Sub(now); got != 365*oneDay {
		t.Errorf("certificate lasts %v", got)
	}
	if got := cert.caCerts[0].NotAfter.Sub(now); got != 3650*oneDay {
		t.Errorf("authority lasts %v", got)
	}
}

func TestReplicasAgree(t *testing.T) {
	store, now, no := &secretStore{}, start, false
	a, b := replica(store, &now, &no), replica(store, &now, &no)
	store.between = func() { mustSync(t, b) } // b writes between a's read and a's write
	mustSync(t, a)
	if !bytes.Equal(a.CABundle(), b.CABundle()) {
		t.Error("two authorities after a race to create")
	}
	serves(t, a, b.CABundle(), now)

	yes := true
	a, b = replica(store, &now, &yes), replica(store, &now, &yes)
	now = now.Add(300 * oneDay)
	store.between = func() { mustSync(t, b) }
	mustSync(t, a)
	la, _ := a.CurrentCertKeyContent()
	if lb, _ := b.CurrentCertKeyContent(); !bytes.Equal(la, lb) || store.writes != 2 {
		t.Errorf("two certificates after a race to renew, %d writes", store.writes)
	}
}

func TestOnlyTheLeaderRenews(t *testing.T) {
	store, now, leads := &secretStore{}, start, false
	c := replica(store, &now, &leads)
	mustSync(t, c)
	f := func(what string, after time.Duration, leader bool, wantWrites int) {
		t.Helper()
		now, leads = start.Add(after), leader
		mustSync(t, c)
		if store.writes != wantWrites {
			t.Errorf("%s: %d writes, want %d", what, store.writes, wantWrites)
		}
		serves(t, c, c.CABundle(), now)
	}
	f("young", 274*oneDay, true, 1)
	f("within 90 days of its end, not leading", 300*oneDay, false, 1)
	f("within 90 days of its end, leading", 300*oneDay, true, 2)
	f("nobody led until it ended", 700*oneDay, false, 3)
	f("a year at a time", 1000*oneDay, true, 4)
}

func TestRenewedAuthorityKeepsItsPredecessor(t *testing.T) {
	store, now, yes, no := &secretStore{}, start, true, false
	leader, other := replica(store, &now, &yes), replica(store, &now, &no)
	now = start.Add(0)
	mustSync(t, leader)
	for now = start; now.Before(start.Add(3550 * oneDay)); now = now.Add(100 * oneDay) {
		mustSync(t, leader)
	}
	mustSync(t, other)
	old := other.CABundle()
	now = start.Add(3570 * oneDay)
	mustSync(t, leader)
	if bytes.Equal(old, leader.CABundle()) {
		t.Fatal("the authority was not renewed")
	}
	serves(t, leader, leader.CABundle(), now)
	serves(t, other, leader.CABundle(), now) // which has not read the Secret again
	leaf, key := leader.CurrentCertKeyContent()
	if verify(old, leaf, key, svc[0], now) == nil {
		t.Error("the new certificate is the old authority's")
	}
}

func TestForeignSecretIsNotWritten(t *testing.T) {
	now, yes := start, true
	made := &secretStore{}
	mustSync(t, replica(made, &now, &yes))
	theirs := maps.Clone(made.secret.Data)
	delete(theirs, caKeyKey)

	store := &secretStore{}
	store.set(theirs)
	c := replica(store, &now, &yes)
	now = start.Add(300 * oneDay) // ours would be renewed
	mustSync(t, c)
	serves(t, c, c.CABundle(), now)
	now = start.Add(400 * oneDay)
	if err := c.Sync(t.Context()); err == nil {
		t.Error("a foreign certificate that has ended is no error")
	}
	if store.writes != 0 {
		t.Error("a foreign secret was written")
	}
}

func TestUnusableSecretIsReplaced(t *testing.T) {
	now, no := start, false
	good := &secretStore{}
	mustSync(t, replica(good, &now, &no))
	other := &secretStore{}
	mustSync(t, replica(other, &now, &no))
	change := func(key string, value []byte) map[string][]byte {
		data := maps.Clone(good.secret.Data)
		data[key] = value
		return data
	}
	for what, data := range map[string]map[string][]byte{
		"empty, as a chart may make it": nil,
		"garbage":                       {caCertKey: []byte("x"), caKeyKey: []byte("y"), "tls.crt": []byte("z")},
		"another authority's key":       change(caKeyKey, other.secret.Data[caKeyKey]),
		"another's certificate":         change(caCertKey, other.secret.Data[caCertKey]),
		"another's leaf key":            change("tls.key", other.secret.Data["tls.key"]),
		"no leaf":                       change("tls.crt", nil),
	} {
		store := &secretStore{}
		store.set(data)
		c := replica(store, &now, &no)
		mustSync(t, c)
		serves(t, c, c.CABundle(), now)
		if store.writes != 1 {
			t.Errorf("%s: %d writes", what, store.writes)
		}
		mustSync(t, c)
		if store.writes != 1 {
			t.Errorf("%s: written again", what)
		}
	}
}

func TestOnlyTheLeaderChecksNames(t *testing.T) {
	store, now, leads := &secretStore{}, start, false
	mustSync(t, replica(store, &now, &leads))
	c := replica(store, &now, &leads)
	c.cfg.DNSNames = ServiceNames("renamed", "gpu")
	mustSync(t, c)
	if store.writes != 1 {
		t.Error("a follower changed the names")
	}
	leads = true
	mustSync(t, c)
	leaf, key := c.CurrentCertKeyContent()
	if err := verify(c.CABundle(), leaf, key, "renamed.gpu.svc", now); err != nil {
		t.Error(err)
	}
}

func TestRunOutlivesTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &secretStore{err: errors.New("connection refused")}
		c := New(Config{Secrets: store, Name: "cert", DNSNames: svc})
		var changes atomic.Int32
		c.OnChange(func() { changes.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		pass := func(d time.Duration) { // of the bubble's clock, until all that was due is done
			time.Sleep(d)
			synctest.Wait()
		}

		pass(10 * time.Minute)
		if n := changes.Load(); n != 0 {
			t.Errorf("%d changes while nothing can be read", n)
		}
		setErr := func(err error) {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.err = err
		}
		setErr(nil)
		pass(2 * time.Minute)
		first := c.CABundle()
		serves(t, c, first, time.Now())
		setErr(errors.New("connection refused"))
		pass(24 * time.Hour)
		serves(t, c, first, time.Now())
		if n := changes.Load(); n != 1 {
			t.Errorf("%d changes, want 1", n)
		}
		changed := c.Changed()
		setErr(nil)
		store.set(nil) // and somebody emptied it
		pass(3 * time.Minute)
		select {
		case <-changed:
		default:
			t.Error("the change was not announced")
		}
		serves(t, c, c.CABundle(), time.Now())
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Whatever a Secret holds, what is made of it can be served and is kept; a
// foreign one is never an occasion to write.
func FuzzReadCertSet(f *testing.F) {
	now, no := start, false
	store := &secretStore{}
	if err := replica(store, &now, &no).Sync(context.Background()); err != nil {
		f.Fatal(err)
	}
	d := store.secret.Data
	f.Add(d[caCertKey], d[caKeyKey], d["tls.crt"], d["tls.key"])
	f.Add([]byte("x"), []byte(nil), []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"), []byte{})
	f.Fuzz(func(t *testing.T, ca, caKey, leaf, leafKey []byte) {
		held := readCertSet(map[string][]byte{caCertKey: ca, caKeyKey: caKey, "tls.crt": leaf, "tls.key": leafKey})
		if held.isForeign() {
			if held.validateForeign(start) == nil && held.leafCert == nil {
				t.Error("usable without a certificate")
			}
			return
		}
		c := replica(nil, &now, &no)
		next, _, err := c.renewIfNeeded(held)
		if err != nil {
			t.Fatal(err)
		}
		if _, why, _ := c.renewIfNeeded(readCertSet(next.data(nil))); why != "" {
			t.Errorf("what was made is made anew: %s", why)
		}
	})
}
