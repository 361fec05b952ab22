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
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

// certificate makes the agent's own, for the name gpupilot-agent.
func certificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gpupilot-agent"}, DNSNames: []string{"gpupilot-agent"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, is, is, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, dir, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}))
}

// The controller's scraper reads an agent with TLS and a password, its values
// and its health, and nobody else does.
func TestScrapedWithTLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
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
