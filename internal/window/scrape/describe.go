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

// describe returns a text for a failed request that has none of the server's bytes.
// The errors of net/http ("malformed HTTP response …") and of certificates (their
// names) quote the server. A tenant chooses a target's port and path, and must not
// read another server's response in an error.
func describe(err error) string {
	var (
		op       *net.OpError
		errno    syscall.Errno
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		unknown  x509.UnknownAuthorityError
		record   tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &hostname):
		return "the TLS certificate is not valid for this address"
	case errors.As(err, &unknown):
		return "the TLS certificate is not signed by a trusted authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the TLS certificate has expired or is not valid yet"
	case errors.As(err, &invalid):
		return "the TLS certificate is not valid"
	case errors.As(err, &op) && op.Op == "remote error": // an alert, whose text is crypto/tls's
		return "the TLS handshake failed: " + op.Err.Error()
	case errors.Is(err, errHandshakeTooLong):
		return errHandshakeTooLong.Error()
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "the server does not speak TLS"
	case errors.As(err, &op) && op.Op == "dial":
		if errors.As(op.Err, &errno) {
			return "connect: " + errno.Error()
		}
		return "connect: " + kindOf(op.Err)
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the response was cut short"
	case errors.Is(err, io.EOF):
		return "the connection was closed without a response"
	}
	return kindOf(err)
}

// kindOf describes an error of an unknown type.
func kindOf(err error) string {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return "timeout"
	}
	return "the server does not speak HTTP as expected"
}
