// SPDX-License-Identifier: Apache-2.0

// Package webconfig reads the web configuration file of Prometheus's exporters
// (exporter-toolkit): TLS, basic authentication and response headers. The file,
// its certificates and keys are read again when they change. If one cannot be
// read, the last configuration stays in force.
//
// It is our own reader of that format, because exporter-toolkit links
// Prometheus's client library (by way of prometheus/common's client
// configuration and go-conntrack), which the agent must not.
package webconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"
)

// document is the file, with exporter-toolkit's names.
type document struct {
	TLS   tlsDocument       `yaml:"tls_server_config"`
	HTTP  httpDocument      `yaml:"http_server_config"`
	Users map[string]string `yaml:"basic_auth_users"` // name to bcrypt hash
	Limit yaml.Node         `yaml:"rate_limit"`       // of newer versions; refused, so that it is not silently ignored
}

type tlsDocument struct {
	Cert       string   `yaml:"cert"` // inline PEM, or a file
	Key        string   `yaml:"key"`
	ClientCA   string   `yaml:"client_ca"`
	CertFile   string   `yaml:"cert_file"`
	KeyFile    string   `yaml:"key_file"`
	ClientCAs  string   `yaml:"client_ca_file"`
	ClientAuth string   `yaml:"client_auth_type"`
	SANs       []string `yaml:"client_allowed_sans"`
	Ciphers    []string `yaml:"cipher_suites"`
	Curves     []string `yaml:"curve_preferences"`
	Min        string   `yaml:"min_version"`
	Max        string   `yaml:"max_version"`
	Prefer     *bool    `yaml:"prefer_server_cipher_suites"` // ignored by Go since 1.17
}

type httpDocument struct {
	HTTP2   *bool             `yaml:"http2"`
	Headers map[string]string `yaml:"headers"`
}

// headers are the response headers that a file can set, as in exporter-toolkit.
var headers = []string{
	"Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options", "X-XSS-Protection",
}

// parse parses a file's text. Its relative paths are relative to dir.
func parse(text []byte, dir string) (*document, error) {
	var d document
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&d); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if !d.Limit.IsZero() {
		return nil, errors.New("rate_limit is not supported")
	}
	for name, hash := range d.Users {
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, fmt.Errorf("basic_auth_users: the hash of %q: %w", name, err)
		}
	}
	for _, h := range slices.Sorted(maps.Keys(d.HTTP.Headers)) {
		if !slices.Contains(headers, h) {
			return nil, fmt.Errorf("http_server_config: header %q is not one of %s", h, strings.Join(headers, ", "))
		}
	}
	for _, p := range []*string{&d.TLS.CertFile, &d.TLS.KeyFile, &d.TLS.ClientCAs} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	return &d, nil
}

// wanted reports whether the file configures TLS.
func (t *tlsDocument) wanted() bool {
	return t.Cert+t.Key+t.CertFile+t.KeyFile+t.ClientCAs+t.ClientCA+t.ClientAuth != ""
}

// readFile returns the content of a file.
type readFile func(path string) ([]byte, error)

// config returns the server's TLS configuration; nil if the file has none.
func (d *document) config(read readFile) (*tls.Config, error) {
	t := &d.TLS
	if !t.wanted() {
		return nil, nil
	}
	cert, err := pemOf(read, "cert", t.Cert, t.CertFile)
	if err != nil {
		return nil, err
	}
	key, err := pemOf(read, "key", t.Key, t.KeyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls_server_config: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if err := errors.Join(t.versions(c), t.suites(c), t.clients(c, read)); err != nil {
		return nil, fmt.Errorf("tls_server_config: %w", err)
	}
	return c, nil
}

func pemOf(read readFile, what, inline, file string) ([]byte, error) {
	switch {
	case inline != "" && file != "":
		return nil, fmt.Errorf("tls_server_config: give one of %s and %s_file", what, what)
	case inline != "":
		return []byte(inline), nil
	case file == "":
		return nil, fmt.Errorf("tls_server_config: %s_file is missing", what)
	}
	b, err := read(file)
	if err != nil {
		return nil, fmt.Errorf("tls_server_config: %w", err)
	}
	return b, nil
}

func (t *tlsDocument) versions(c *tls.Config) error {
	known := map[string]uint16{"TLS13": tls.VersionTLS13, "TLS12": tls.VersionTLS12, "TLS11": tls.VersionTLS11, "TLS10": tls.VersionTLS10}
	c.MinVersion = tls.VersionTLS12
	for _, v := range []struct {
		name string
		to   *uint16
	}{{t.Min, &c.MinVersion}, {t.Max, &c.MaxVersion}} {
		if v.name == "" {
			continue
		}
		n, ok := known[v.name]
		if !ok {
			return fmt.Errorf("unknown TLS version %q: want TLS13, TLS12, TLS11 or TLS10", v.name)
		}
		*v.to = n
	}
	return nil
}

func (t *tlsDocument) suites(c *tls.Config) error {
	for _, name := range t.Ciphers {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return fmt.Errorf("cipher_suites: unknown cipher suite %q: want a secure suite of Go's crypto/tls, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
		c.CipherSuites = append(c.CipherSuites, tls.CipherSuites()[i].ID)
	}
	curves := map[string]tls.CurveID{"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519}
	for _, name := range t.Curves {
		id, ok := curves[name]
		if !ok {
			return fmt.Errorf("curve_preferences: unknown curve %q: want CurveP256, CurveP384, CurveP521 or X25519", name)
		}
		c.CurvePreferences = append(c.CurvePreferences, id)
	}
	return nil
}

func (t *tlsDocument) clients(c *tls.Config, read readFile) error {
	types := map[string]tls.ClientAuthType{
		"": tls.NoClientCert, "NoClientCert": tls.NoClientCert, "RequestClientCert": tls.RequestClientCert,
		"RequireAnyClientCert": tls.RequireAnyClientCert, "RequireClientCert": tls.RequireAnyClientCert,
		"VerifyClientCertIfGiven": tls.VerifyClientCertIfGiven, "RequireAndVerifyClientCert": tls.RequireAndVerifyClientCert,
	}
	auth, ok := types[t.ClientAuth]
	if !ok {
		return fmt.Errorf("unknown client_auth_type %q", t.ClientAuth)
	}
	c.ClientAuth = auth
	if t.ClientCA+t.ClientCAs == "" {
		if auth == tls.VerifyClientCertIfGiven || auth == tls.RequireAndVerifyClientCert {
			return fmt.Errorf("client_auth_type %s needs client_ca_file", t.ClientAuth)
		}
		return t.sans(c)
	}
	if auth == tls.NoClientCert {
		return errors.New("client_ca_file needs a client_auth_type that asks for certificates")
	}
	pem, err := pemOf(read, "client_ca", t.ClientCA, t.ClientCAs)
	if err != nil {
		return err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return errors.New("client_ca_file holds no certificate")
	}
	return t.sans(c)
}

// sans limits the clients to those whose certificate has one of the names.
func (t *tlsDocument) sans(c *tls.Config) error {
	if len(t.SANs) == 0 {
		return nil
	}
	if c.ClientAuth != tls.RequireAndVerifyClientCert {
		return errors.New("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
	}
	allowed := t.SANs
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) > 0 && slices.ContainsFunc(namesOf(s.PeerCertificates[0]), func(n string) bool { return slices.Contains(allowed, n) }) {
			return nil
		}
		return errors.New("the client's certificate has none of the allowed names")
	}
	return nil
}

func namesOf(c *x509.Certificate) []string {
	out := slices.Concat(c.DNSNames, c.EmailAddresses)
	for _, ip := range c.IPAddresses {
		out = append(out, ip.String())
	}
	for _, u := range c.URIs {
		out = append(out, u.String())
	}
	return out
}
