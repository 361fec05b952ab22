// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func nameOf(name string) pkix.Name { return pkix.Name{CommonName: name} }

func testPKI(t *testing.T) *pki {
	t.Helper()
	p, err := newPKI(filepath.Join(t.TempDir(), "pki"), []string{"localhost", "127.0.0.1", "10.255.255.1", "gpu.example"}, testTime)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func readCert(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		t.Fatalf("not a certificate: %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// verify is nil if the authority of that file signed cert for that use, at the PKI's own time.
func verify(t *testing.T, caPath string, cert *x509.Certificate, use x509.ExtKeyUsage, server string) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(readCert(t, readFile(t, caPath)))
	_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: server, CurrentTime: testTime, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

func TestServerCertificate(t *testing.T) {
	p := testPKI(t)
	cert := readCert(t, readFile(t, p.server.certPath))
	for _, name := range []string{"localhost", "127.0.0.1", "10.255.255.1", "gpu.example"} {
		if err := verify(t, p.cluster.certPath, cert, x509.ExtKeyUsageServerAuth, name); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if err := verify(t, p.cluster.certPath, cert, x509.ExtKeyUsageServerAuth, "other.example"); err == nil {
		t.Error("good for a name that it was not made for")
	}
	if err := verify(t, p.frontProxy.certPath, cert, x509.ExtKeyUsageServerAuth, ""); err == nil {
		t.Error("signed by the front proxy's authority")
	}
}

func TestClientCertificate(t *testing.T) {
	p := testPKI(t)
	text, _, err := p.clientPEM(p.cluster, "system:node:n1", "system:nodes", "gpus")
	if err != nil {
		t.Fatal(err)
	}
	cert := readCert(t, text)
	if got := cert.Subject; got.CommonName != "system:node:n1" || !slices.Contains(got.Organization, "system:nodes") || !slices.Contains(got.Organization, "gpus") {
		t.Errorf("subject %v", got)
	}
	if err := verify(t, p.cluster.certPath, cert, x509.ExtKeyUsageClientAuth, ""); err != nil {
		t.Error(err)
	}
	if err := verify(t, p.cluster.certPath, cert, x509.ExtKeyUsageServerAuth, ""); err == nil {
		t.Error("a client's certificate is good for a server")
	}
	// Otherwise every client could pass requests on in anyone's name.
	if err := verify(t, p.frontProxy.certPath, cert, x509.ExtKeyUsageClientAuth, ""); err == nil {
		t.Error("a client's certificate is good for the front proxy")
	}
}

func TestKeysAreTheirOwnersOnly(t *testing.T) {
	p := testPKI(t)
	for _, path := range []string{p.cluster.keyPath, p.frontProxy.keyPath, p.server.keyPath, p.serviceAccountKey} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, info.Mode())
		}
		if block, _ := pem.Decode(readFile(t, path)); block == nil || block.Type != "EC PRIVATE KEY" {
			t.Errorf("%s holds no EC key", path)
		}
	}
}

func TestKubeconfigName(t *testing.T) {
	f := func(user string, groups []string, want string) {
		t.Helper()
		got := kubeconfigName(user, groups)
		if !strings.HasPrefix(got, want+"-") || !strings.HasSuffix(got, ".kubeconfig") || strings.ContainsAny(got, "/: ") {
			t.Errorf("kubeconfigName(%q, %q) = %q, want %s-HASH.kubeconfig", user, groups, got, want)
		}
	}
	f("kubernetes-admin", []string{"system:masters"}, "kubernetes-admin")
	f("system:node:n1", []string{"system:nodes"}, "system-node-n1")
	f("../../etc/passwd", nil, "..-..-etc-passwd")
	if kubeconfigName("a:b", nil) == kubeconfigName("a-b", nil) {
		t.Error("two users share a file")
	}
	if kubeconfigName("a", nil) == kubeconfigName("a", []string{"g"}) {
		t.Error("a user with and without a group share a file")
	}
}
