// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The Secret's keys in addition to those of type kubernetes.io/tls.
const (
	caCertKey = "ca.crt"
	caKeyKey  = "ca.key"
)

// clockSlack is how far in the past a certificate becomes valid, for clients whose
// clocks are behind.
const clockSlack = time.Hour

// certSet is an authority and a serving certificate: PEM as in the Secret, and parsed
// if valid.
type certSet struct {
	ca, caKey, leaf, leafKey []byte

	caCerts  []*x509.Certificate // the signer's is first
	signer   *ecdsa.PrivateKey
	leafCert *x509.Certificate // nil if leaf and leafKey do not match
}

// readCertSet parses the data of a Secret. Invalid parts are absent.
func readCertSet(data map[string][]byte) certSet {
	s := certSet{
		ca: data[caCertKey], caKey: data[caKeyKey],
		leaf: data[corev1.TLSCertKey], leafKey: data[corev1.TLSPrivateKeyKey],
	}
	s.caCerts = parseCerts(s.ca)
	if block, _ := pem.Decode(s.caKey); block != nil {
		s.signer, _ = x509.ParseECPrivateKey(block.Bytes)
	}
	if pair, err := tls.X509KeyPair(s.leaf, s.leafKey); err == nil {
		s.leafCert = pair.Leaf
	}
	return s
}

// parseCerts returns the certificates of a bundle, without invalid ones.
func parseCerts(bundle []byte) (certs []*x509.Certificate) {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return certs
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, cert)
		}
	}
}

// data returns a copy of the Secret's data with the set in it.
func (s *certSet) data(old map[string][]byte) map[string][]byte {
	data := maps.Clone(old)
	if data == nil {
		data = map[string][]byte{}
	}
	data[caCertKey], data[caKeyKey] = s.ca, s.caKey
	data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = s.leaf, s.leafKey
	return data
}

// isForeign reports whether another program created the certificate.
func (s *certSet) isForeign() bool { return len(s.caKey) == 0 && len(s.leaf) > 0 }

// validateForeign checks a certificate of another program.
func (s *certSet) validateForeign(now time.Time) error {
	switch {
	case s.leafCert == nil:
		return fmt.Errorf("%s and %s do not match", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case now.After(s.leafCert.NotAfter):
		return fmt.Errorf("it expired at %s", s.leafCert.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// authorityProblem returns the reason for a new authority, if there is one. An
// authority that expires before soon is renewed.
func (s *certSet) authorityProblem(now, soon time.Time) string {
	switch {
	case len(s.ca) == 0 && len(s.caKey) == 0:
		return "there is none"
	case len(s.caCerts) == 0 || s.signer == nil || !s.signer.PublicKey.Equal(s.caCerts[0].PublicKey):
		return "the authority cannot be read"
	case !s.caCerts[0].IsCA:
		return "the authority is not allowed to sign"
	case now.After(s.caCerts[0].NotAfter):
		return "the authority has expired"
	case soon.After(s.caCerts[0].NotAfter):
		return "the authority expires soon"
	}
	return ""
}

// leafProblem returns the reason for a new serving certificate, if there is one. Only
// the leader checks the names, so that replicas with different configurations do not
// replace the certificate by turns.
func (s *certSet) leafProblem(now, soon time.Time, names []string, leads bool) string {
	switch {
	case s.leafCert == nil:
		return "the certificate cannot be read"
	case s.leafCert.CheckSignatureFrom(s.caCerts[0]) != nil:
		return "the certificate was signed by another authority"
	case now.After(s.leafCert.NotAfter):
		return "the certificate has expired"
	case soon.After(s.leafCert.NotAfter):
		return "the certificate expires soon"
	}
	for _, name := range names {
		if leads && s.leafCert.VerifyHostname(name) != nil {
			return "the certificate lacks the name " + name
		}
	}
	return ""
}

// previousCA returns the authority's certificate (PEM) if it is still valid: replicas
// serve certificates that it signed until they read the Secret again.
func (s *certSet) previousCA(now time.Time) []byte {
	if len(s.caCerts) == 0 || now.After(s.caCerts[0].NotAfter) || !s.caCerts[0].IsCA {
		return nil
	}
	return encodeCert(s.caCerts[0].Raw)
}

// newAuthority creates an authority. Its bundle ends with the previous certificate.
func newAuthority(now time.Time, lifetime time.Duration, previous []byte) (certSet, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certSet{}, err
	}
	// The name is unique, so that verifiers do not confuse the signer with its predecessor.
	template := certTemplate(fmt.Sprintf("gpupilot-ca-%d", now.Unix()), now, lifetime)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return certSet{}, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return certSet{}, err
	}
	keyPEM, err := encodeKey(key)
	return certSet{ca: append(encodeCert(der), previous...), caKey: keyPEM, caCerts: []*x509.Certificate{cert}, signer: key}, err
}

// issue creates a new serving certificate, which expires no later than the authority.
func (s *certSet) issue(now time.Time, lifetime time.Duration, names []string) error {
	if len(names) == 0 {
		return errors.New("no names for a serving certificate")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := certTemplate(names[0], now, min(lifetime, s.caCerts[0].NotAfter.Sub(now)))
	template.DNSNames = names
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, s.caCerts[0], key.Public(), s.signer)
	if err != nil {
		return err
	}
	if s.leafCert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	s.leaf = encodeCert(der)
	s.leafKey, err = encodeKey(key)
	return err
}

func certTemplate(name string, now time.Time, lifetime time.Duration) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	if len(name) > 64 { // the limit of a common name, which is informational: clients verify DNSNames
		name = name[:64]
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-clockSlack),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
