// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
)

// describe says in our own words why a request failed. What the other side
// sent is in the error of net/http ("malformed HTTP response …") and in those
// of certificates (their names), and must not be shown: whoever may have us
// connect to something must not read its answer.
func describe(err error) string {
	var (
		op       *net.OpError
		errno    syscall.Errno
		alert    tls.AlertError
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		unknown  x509.UnknownAuthorityError
		record   tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &hostname):
		return "the TLS certificate is not for this address"
	case errors.As(err, &unknown):
		return "the TLS certificate is not signed by a trusted authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the TLS certificate has expired or is not valid yet"
	case errors.As(err, &invalid):
		return "the TLS certificate is not valid"
	case errors.As(err, &alert):
		return "the TLS handshake failed: " + alert.Error()
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "it does not speak TLS"
	case errors.As(err, &op) && op.Op == "dial":
		if errors.As(op.Err, &errno) {
			return "connect: " + errno.Error()
		}
		return "connect: " + kindOf(op.Err)
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the answer was cut short"
	case errors.Is(err, io.EOF):
		return "the connection was closed without an answer"
	}
	return kindOf(err)
}

// kindOf is all that is told of an error of which nothing else is known.
func kindOf(err error) string {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return "it took too long"
	}
	return "what answers does not speak HTTP as expected"
}
