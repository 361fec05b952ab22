// SPDX-License-Identifier: Apache-2.0

package kube

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

// The Secret's keys: those of type kubernetes.io/tls, with the authority's.
const (
	caCertKey = "ca.crt"
	caKeyKey  = "ca.key"
)

// clockSlack is how far in the past a certificate begins, for clocks that run
// behind ours.
const clockSlack = time.Hour

// certSet is an authority and a serving certificate, as a Secret holds them
// (PEM) and, where they can be read, parsed.
type certSet struct {
	ca, caKey, leaf, leafKey []byte

	caCerts  []*x509.Certificate // the signer first
	signer   *ecdsa.PrivateKey
	leafCert *x509.Certificate // nil where leaf and leafKey are not a pair
}

// readCertSet never fails: what cannot be read is absent.
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

// parseCerts are the certificates of a bundle; those that cannot be read are
// left out.
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

// data is the Secret's data with the set in it.
func (s *certSet) data(was map[string][]byte) map[string][]byte {
	data := maps.Clone(was)
	if data == nil {
		data = map[string][]byte{}
	}
	data[caCertKey], data[caKeyKey] = s.ca, s.caKey
	data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = s.leaf, s.leafKey
	return data
}

// foreign says whether somebody else put a certificate here.
func (s *certSet) foreign() bool { return len(s.caKey) == 0 && len(s.leaf) > 0 }

// usable says what is wrong with a foreign certificate.
func (s *certSet) usable(now time.Time) error {
	switch {
	case s.leafCert == nil:
		return fmt.Errorf("%s and %s are no pair", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case now.After(s.leafCert.NotAfter):
		return fmt.Errorf("it ended at %s", s.leafCert.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// authorityLacks says why the authority has to be made anew, or nothing.
// What ends before soon is to be renewed.
func (s *certSet) authorityLacks(now, soon time.Time) string {
	switch {
	case len(s.ca) == 0 && len(s.caKey) == 0:
		return "there is none"
	case len(s.caCerts) == 0 || s.signer == nil || !s.signer.PublicKey.Equal(s.caCerts[0].PublicKey):
		return "the authority cannot be read"
	case !s.caCerts[0].IsCA:
		return "the authority may not sign"
	case now.After(s.caCerts[0].NotAfter):
		return "the authority has ended"
	case soon.After(s.caCerts[0].NotAfter):
		return "the authority ends soon"
	}
	return ""
}

// leafLacks says why a new serving certificate is to be issued, or nothing.
// Only a leader minds names, so that replicas that want different ones do not
// take turns.
func (s *certSet) leafLacks(now, soon time.Time, names []string, leads bool) string {
	switch {
	case s.leafCert == nil:
		return "the certificate cannot be read"
	case s.leafCert.CheckSignatureFrom(s.caCerts[0]) != nil:
		return "the certificate is another authority's"
	case now.After(s.leafCert.NotAfter):
		return "the certificate has ended"
	case soon.After(s.leafCert.NotAfter):
		return "the certificate ends soon"
	}
	for _, name := range names {
		if leads && s.leafCert.VerifyHostname(name) != nil {
			return "the certificate lacks the name " + name
		}
	}
	return ""
}

// previous is the authority's certificate (PEM) if it is still good: replicas
// serve what it signed until they read the Secret again.
func (s *certSet) previous(now time.Time) []byte {
	if len(s.caCerts) == 0 || now.After(s.caCerts[0].NotAfter) || !s.caCerts[0].IsCA {
		return nil
	}
	return encodeCert(s.caCerts[0].Raw)
}

// newAuthority makes an authority; previous goes into its bundle behind it.
func newAuthority(now time.Time, lifetime time.Duration, previous []byte) (certSet, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return certSet{}, err
	}
	// A name of its own, lest a verifier takes the predecessor for the signer.
	template := template(fmt.Sprintf("gpupilot-ca-%d", now.Unix()), now, lifetime)
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

// issue makes a new serving certificate, which does not outlive the authority.
func (s *certSet) issue(now time.Time, lifetime time.Duration, names []string) error {
	if len(names) == 0 {
		return errors.New("no names for a serving certificate")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := template(names[0], now, min(lifetime, s.caCerts[0].NotAfter.Sub(now)))
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

func template(name string, now time.Time, lifetime time.Duration) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	if len(name) > 64 { // a common name has no more; it is for people, the names that count are the DNSNames
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
