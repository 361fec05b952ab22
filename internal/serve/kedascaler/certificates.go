// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
)

// KeyPair is a serving certificate that is parsed once per content.
type KeyPair struct {
	content func() (cert, key []byte, err error)

	mu        sync.Mutex
	cert, key []byte
	pair      *tls.Certificate
}

// KeyPairOf returns the certificate and key (PEM) that content returns; empty: none yet.
func KeyPairOf(content func() (cert, key []byte)) *KeyPair {
	return &KeyPair{content: func() (cert, key []byte, err error) {
		if cert, key = content(); len(cert) == 0 {
			return nil, nil, errors.New("there is no serving certificate yet")
		}
		return cert, key, nil
	}}
}

// KeyPairFiles returns the certificate and key of two files.
func KeyPairFiles(certFile, keyFile string) *KeyPair {
	return &KeyPair{content: func() (cert, key []byte, err error) {
		if cert, err = os.ReadFile(certFile); err != nil {
			return nil, nil, err
		}
		key, err = os.ReadFile(keyFile)
		return cert, key, err
	}}
}

// Current returns the certificate as it is now.
func (c *KeyPair) Current() (*tls.Certificate, error) {
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

// Authorities are the certificates of a PEM file, parsed once per content.
type Authorities struct {
	file string

	mu   sync.Mutex
	text []byte
	pool *x509.CertPool
}

// NewAuthorities returns the certificates of a file.
func NewAuthorities(file string) *Authorities { return &Authorities{file: file} }

// Current returns the certificates as they are now.
func (a *Authorities) Current() (*x509.CertPool, error) {
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
