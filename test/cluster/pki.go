// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	// validity is how long every certificate lasts.
	validity = 365 * 24 * time.Hour
	// clockSlack is how far in the past a certificate becomes valid, in case the clock is set back.
	clockSlack = time.Hour
)

// pki holds the secrets of one cluster, in files under dir.
type pki struct {
	dir        string
	now        time.Time
	cluster    *authority // signs the API server's certificate and client certificates
	frontProxy *authority // signs only the certificate by which the API server passes requests on
	server     pair       // the API server's
	names      []string   // that the API server's certificate is good for
	// serviceAccountKey is the file of the key that signs service accounts' tokens (PEM, EC).
	serviceAccountKey string
}

// pair holds the files of a certificate and its key (PEM).
type pair struct{ certPath, keyPath string }

// authority is a certificate authority.
type authority struct {
	pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(dir string, serverNames []string, now time.Time) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &pki{dir: dir, now: now, names: serverNames, serviceAccountKey: filepath.Join(dir, "service-account.key")}
	var err error
	if p.cluster, err = p.newAuthority("ca", "gpupilot-test-ca"); err != nil {
		return nil, err
	}
	if p.frontProxy, err = p.newAuthority("front-proxy-ca", "gpupilot-test-front-proxy-ca"); err != nil {
		return nil, err
	}
	if err := p.issueServer(p.now.Add(validity)); err != nil {
		return nil, err
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return p, writeKey(p.serviceAccountKey, key)
}

// issueServer writes a new certificate of the API server, good until notAfter.
func (p *pki) issueServer(notAfter time.Time) (err error) {
	server := p.template(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	server.NotAfter = notAfter
	for _, name := range p.names {
		if ip := net.ParseIP(name); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, name)
		}
	}
	p.server, err = p.writePair(p.cluster, "apiserver", server)
	return err
}

func (p *pki) newAuthority(file, name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := p.template(pkix.Name{CommonName: name})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{pair: p.paths(file), cert: cert, key: key}
	return a, a.write(der, key)
}

// template returns a certificate without key and signature, and without the names of a server.
func (p *pki) template(subject pkix.Name, usage ...x509.ExtKeyUsage) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    p.now.Add(-clockSlack),
		NotAfter:     p.now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usage,
	}
}

// issue makes a key and a certificate for it, in DER.
func (a *authority) issue(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = newKey(); err != nil {
		return nil, nil, err
	}
	der, err = x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	return der, key, err
}

// clientPEM makes a client certificate and its key. The common name is the Kubernetes user, and the organizations are its
// groups.
func (p *pki) clientPEM(a *authority, user string, groups ...string) (certPEM, keyPEM []byte, err error) {
	der, key, err := a.issue(p.template(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth))
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(der), keyPEM, err
}

// client writes a new client certificate to files named after the user.
func (p *pki) client(a *authority, user string, groups ...string) (pair, error) {
	return p.writePair(a, user, p.template(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth))
}

// httpClient makes a client that trusts the cluster's authority and has a new client certificate.
func (p *pki) httpClient(user string, groups ...string) (*http.Client, error) {
	certPEM, keyPEM, err := p.clientPEM(p.cluster, user, groups...)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.cluster.cert)
	return &http.Client{Transport: &http.Transport{ // no Proxy: the server is on this machine
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
	}}, nil
}

func (p *pki) writePair(a *authority, file string, template *x509.Certificate) (pair, error) {
	der, key, err := a.issue(template)
	if err != nil {
		return pair{}, fmt.Errorf("certificate %s: %w", file, err)
	}
	files := p.paths(file)
	return files, files.write(der, key)
}

func (p *pki) paths(file string) pair {
	return pair{certPath: filepath.Join(p.dir, file+".crt"), keyPath: filepath.Join(p.dir, file+".key")}
}

func (f pair) write(der []byte, key *ecdsa.PrivateKey) error {
	if err := os.WriteFile(f.certPath, encodeCert(der), 0o644); err != nil {
		return err
	}
	return writeKey(f.keyPath, key)
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func writeKey(path string, key *ecdsa.PrivateKey) error {
	text, err := encodeKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
