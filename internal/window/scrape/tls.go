// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"net"
	"net/http"
	"time"
)

// TLS is how the certificate of a pod's server is verified: by CA and ServerName, or not at
// all. Neither a certificate of ours nor a credential is sent.
type TLS struct {
	CA                 string // certificates of authorities, in PEM
	ServerName         string // that the certificate has
	InsecureSkipVerify bool   // every certificate is accepted
}

const (
	// maxHandshake bounds the bytes of a server's handshake. Usual ones have 2 to 6 KiB.
	maxHandshake = 64 << 10
	// probeAgain is the time between two attempts to find out whether a port that does not
	// answer as expected speaks the other protocol, and probeTimeout is for one.
	probeAgain, probeTimeout = time.Minute, 2 * time.Second
)

var errHandshakeTooLong = errors.New("the TLS handshake is too long")

// handshake is a connection that reads no more than left bytes.
type handshake struct {
	net.Conn
	left int
}

// Read implements net.Conn.
func (h *handshake) Read(b []byte) (int, error) {
	if h.left <= 0 {
		return 0, errHandshakeTooLong
	}
	n, err := h.Conn.Read(b[:min(len(b), h.left)])
	if h.left != math.MaxInt {
		h.left -= n
	}
	return n, err
}

// clientConfig returns the configuration of a connection to a server. asked is called if the
// server asks for a certificate; it gets none.
func clientConfig(t TLS, roots *x509.CertPool, asked func()) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		RootCAs: roots, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked()
			return &tls.Certificate{}, nil
		},
	}
}

// openTLS opens a connection to an address, and speaks TLS over it.
func openTLS(ctx context.Context, dial Dialer, address string, cfg *tls.Config) (net.Conn, error) {
	plain, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	limited := &handshake{Conn: plain, left: maxHandshake}
	conn := tls.Client(limited, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	limited.left = math.MaxInt
	return conn, nil
}

// dialer returns what opens connections to the runner's target.
func (r *runner) dialer() Dialer {
	dial := r.s.deps.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	if r.have.URL.Scheme != "https" {
		return dial
	}
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		r.asksCertificate = false
		return openTLS(ctx, dial, address, clientConfig(r.have.TLS, r.s.rootsOf(r.have.TLS.CA), func() { r.asksCertificate = true }))
	}
}

// rootsOf returns the pool of these authorities, which targets share. Nobody is trusted
// without authorities.
func (s *Scraper) rootsOf(ca string) *x509.CertPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pool := s.roots[ca]
	if pool == nil {
		pool = x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(ca))
		if s.roots == nil {
			s.roots = map[string]*x509.CertPool{}
		}
		s.roots[ca] = pool
	}
	return pool
}

// dropRoots forgets the pools of authorities that no target names any more. The caller
// holds s.mu.
func (s *Scraper) dropRoots() {
	if len(s.roots) == 0 {
		return
	}
	named := map[string]bool{}
	for i := range s.wanted {
		named[s.wanted[i].TLS.CA] = true
	}
	for ca := range s.roots {
		if !named[ca] {
			delete(s.roots, ca)
		}
	}
}

// protocol is what a port was found to speak.
type protocol struct {
	checked time.Time // zero: not checked since the last success
	tls     bool      // the port speaks TLS
	asks    bool      // and asks for a certificate
}

// The ends of messages about a port that wants a certificate of the client. The proxies of
// meshes do: Istio with STRICT mTLS, and Linkerd.
const asksForCertificate = "asks for a certificate of the client, as the proxies of meshes do, and none is sent: exclude the port from the mesh"

// mismatch returns why a failed scrape of a target without credentials has failed, if its port
// speaks another protocol than its scheme says; nil: it does not, or that is not known.
func (s *Scraper) mismatch(ctx context.Context, r *runner, err error, status int) error {
	if r.have.URL.Scheme == "https" {
		return mismatchOverTLS(err, r.asksCertificate)
	}
	if status != 0 && status != http.StatusBadRequest || isDial(err) {
		return nil
	}
	if p := &r.protocol; p.checked.IsZero() || time.Since(p.checked) >= probeAgain {
		p.tls, p.asks = s.speaksTLS(ctx, r.req.address)
		p.checked = time.Now()
	}
	switch {
	case !r.protocol.tls:
		return nil
	case r.have.Kind != Pod:
		return errors.New("the port speaks TLS: set --agent-scheme=https")
	case r.protocol.asks:
		return errors.New("the port speaks TLS and " + asksForCertificate)
	}
	return errors.New("the port speaks TLS: set scheme: HTTPS")
}

// mismatchOverTLS is mismatch for a pod with TLS.
func mismatchOverTLS(err error, asksCertificate bool) error {
	var (
		record   tls.RecordHeaderError
		hostname x509.HostnameError
		unknown  x509.UnknownAuthorityError
	)
	switch {
	case err == nil: // an answer
	case errors.As(err, &record) && string(record.RecordHeader[:]) == "HTTP/":
		return errors.New("the port speaks plain HTTP: set scheme: HTTP, without tls")
	case errors.As(err, &record):
		return errors.New("the port does not speak TLS: if it speaks plain HTTP, set scheme: HTTP, without tls")
	case errors.As(err, &hostname):
		return errors.New("the TLS certificate does not have the name in tls.serverName")
	case errors.As(err, &unknown):
		return errors.New("the TLS certificate is not signed by an authority of tls.ca")
	case asksCertificate:
		return errors.New("the port " + asksForCertificate)
	}
	return nil
}

// isDial reports whether no connection was made.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// speaksTLS reports whether the port at an address speaks TLS, and whether it asks for a
// certificate. No request is sent.
func (s *Scraper) speaksTLS(ctx context.Context, address string) (speaks, asks bool) {
	ctx, cancel := context.WithTimeout(ctx, min(probeTimeout, cmp.Or(s.cfg.Timeout, probeTimeout)))
	defer cancel()
	cfg := clientConfig(TLS{InsecureSkipVerify: true}, nil, func() { asks = true })
	conn, err := openTLS(ctx, s.deps.Dial, address, cfg)
	if err == nil {
		_ = conn.(*tls.Conn).NetConn().Close()
		return true, asks
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error", asks // an alert
}
