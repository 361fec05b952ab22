// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// write puts a file into a folder and returns its path.
func write(t *testing.T, dir, name string, body []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certificate makes the agent's own, for the name gpupilot-agent. Without an authority, it
// is its own.
func certificate(t *testing.T, dir string, by authority) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "gpupilot-agent"}, DNSNames: []string{"gpupilot-agent"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by.cert == nil, BasicConstraintsValid: true,
	}
	if by.cert == nil {
		by = authority{is, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, is, by.cert, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, dir, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
	return authority{is, key}
}

// The controller's scraper reads an agent with TLS and a password, its values
// and its health, and nobody else does.
func TestScrapedWithTLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, authority{})
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	web := write(t, dir, "web.yaml", []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users: {prom: '"+string(hash)+"'}\n"))
	client := write(t, dir, "http.yaml", []byte("basic_auth: {username: prom, password_file: password}\ntls_config: {ca_file: tls.crt, server_name: gpupilot-agent}\n"))
	write(t, dir, "password", []byte("secret"))
	a := start(t, agentrig.Config{Args: []string{"--backend", "sim", "--sim-gpus", "2", "--collect-interval", "100", "--web-config-file", web}})
	address, err := url.Parse("https" + strings.TrimPrefix(a.URL, "http") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}

	configured, err := scrape.NewConfiguredClient(client, "", true)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := scrape.ReadHealth(t.Context(), configured, *address); err != nil || len(h.GPUs) != 2 {
		t.Errorf("health: %+v, %v", h, err)
	}
	if _, err := scrape.ReadHealth(t.Context(), scrape.NewClient(), *address); err == nil {
		t.Error("a client without the configuration reads it")
	}
	delivered := make(chan string, 100)
	s := scrape.New(scrape.Config{Interval: 100 * time.Millisecond}, scrape.Deps{
		Client: scrape.NewClient(), Exporters: configured, Store: series.New(series.Config{}),
		Deliver: func(target string, _ time.Time) {
			select {
			case delivered <- target:
			default:
			}
		},
	})
	s.Sync([]scrape.Target{{Name: "agent", URL: *address, Kind: scrape.Agent}, {Name: "pod", URL: *address, Kind: scrape.Pod}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for range 3 {
		select {
		case name := <-delivered:
			if name != "agent" {
				t.Errorf("%s was read", name)
			}
		case <-ctx.Done():
			t.Fatalf("nothing is read: %+v", s.States())
		}
	}
}

// The agent's Secret is replaced every few seconds, with a new certificate and a new password
// beside the old one, as the kubelet does it. The scraper changes its password, other
// clients send wrong ones, and no scrape fails.
func TestSecretsRotateUnderLoad(t *testing.T) {
	ours, mount := t.TempDir(), t.TempDir()
	ca := certificate(t, ours, authority{})
	hash := func(i int) string {
		h, err := bcrypt.GenerateFromPassword(fmt.Append(nil, "secret", i), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		return string(h)
	}
	replace := func(i int) { // the passwords i and i+1
		next := filepath.Join(mount, fmt.Sprint("..v", i))
		if err := os.Mkdir(next, 0o700); err != nil {
			t.Fatal(err)
		}
		certificate(t, next, ca)
		write(t, next, "web.yaml", fmt.Appendf(nil, "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users: {u%d: '%s', u%d: '%s'}\n", i%2, hash(i), (i+1)%2, hash(i+1)))
		link := filepath.Join(mount, "..tmp")
		if err := errors.Join(os.Symlink(next, link), os.Rename(link, filepath.Join(mount, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	replace(0)
	for _, name := range []string{"web.yaml", "tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	a := start(t, agentrig.Config{Args: []string{"--backend", "sim", "--sim-gpus", "2", "--collect-interval", "100", "--web-config-file", filepath.Join(mount, "web.yaml")}})
	address, err := url.Parse("https" + strings.TrimPrefix(a.URL, "http") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	scraper := func(user int) *http.Client {
		file := write(t, ours, fmt.Sprintf("http%d.yaml", user), fmt.Appendf(nil, "basic_auth: {username: u%d, password: secret%d}\ntls_config: {ca_file: tls.crt, server_name: gpupilot-agent}\n", user%2, user))
		c, err := scrape.NewConfiguredClient(file, "", true)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var current atomic.Pointer[http.Client]
	var scrapes [2]atomic.Int64 // by scraper; of more, one address has more connections than an agent keeps
	current.Store(scraper(0))
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not after %v", what, patience)
			}
		}
	}
	await("something is collected", func() bool {
		_, err := scrape.ReadHealth(t.Context(), current.Load(), *address)
		return err == nil
	})
	for i := range scrapes {
		all.Go(func() {
			for ctx.Err() == nil {
				c := current.Load()
				if _, err := scrape.ReadHealth(t.Context(), c, *address); err != nil && !isTimeout(err) {
					t.Errorf("scrape %d: %v", scrapes[i].Load(), err)
				}
				c.CloseIdleConnections() // the next one has a handshake
				scrapes[i].Add(1)
			}
		})
	}
	// awaitScrapes waits until all scrapes have ended that began before, and as many more that have begun since.
	awaitScrapes := func(n int64) {
		t.Helper()
		for i := range scrapes {
			from := scrapes[i].Load()
			await("scrapes", func() bool { return scrapes[i].Load() > from+n })
		}
	}
	wrong := scraper(1000)
	all.Go(func() {
		for ctx.Err() == nil {
			if _, err := scrape.ReadHealth(t.Context(), wrong, *address); err == nil {
				t.Error("a wrong password is accepted")
			}
		}
	})
	reloads := func() int { return strings.Count(a.Log(), "web configuration reloaded") }
	for i := 1; i <= 5; i++ {
		current.Store(scraper(i))
		awaitScrapes(3)
		replace(i)
		await("the agent reads its Secret again", func() bool { return reloads() == i })
	}
	awaitScrapes(3)
	cancel()
	all.Wait()
	if n := reloads(); n != 5 {
		t.Errorf("%d reloads, want 5", n)
	}
}

// isTimeout reports whether a scrape took too long for its client: the machine does other work.
func isTimeout(err error) bool {
	x, ok := errors.AsType[net.Error](err)
	return ok && x.Timeout()
}
