// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"crypto/x509"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// NamespaceURI is the prefix of a certificate's URI that limits its holder to the
// ScaledObjects of one namespace, whose name follows.
const NamespaceURI = "gpupilot://namespaces/"

// Clients says who may ask about which namespaces. A client needs a certificate of the
// authority in ServerConfig. A certificate whose common name is one of Names may ask
// about all namespaces: KEDA's operator, whose Secret no tenant can read. Another one
// may ask about the namespaces in its URIs, which start with NamespaceURI: for a
// TriggerAuthentication whose Secret the tenant can read.
type Clients struct {
	Names []string
	// Anyone permits every client all namespaces, without certificates. Then only the
	// network limits who may read the signals that ScaledObjects use.
	Anyone bool
}

// mayAsk reports whether the certificate's holder may ask about a namespace.
func (c *Clients) mayAsk(cert *x509.Certificate, namespace string) bool {
	if slices.Contains(c.Names, cert.Subject.CommonName) {
		return true
	}
	for _, uri := range cert.URIs {
		if ns, ok := strings.CutPrefix(uri.String(), NamespaceURI); ok && ns == namespace {
			return true
		}
	}
	return false
}

// authorize checks the client of a request.
func (s *Server) authorize(ctx context.Context, namespace string) error {
	if s.cfg.Clients.Anyone {
		return nil
	}
	cert := clientCertificate(ctx)
	if cert == nil {
		return status.Error(codes.Unauthenticated, "no client certificate; set tlsClientCert and tlsClientKey in the trigger's TriggerAuthentication")
	}
	if !s.cfg.Clients.mayAsk(cert, namespace) {
		return status.Errorf(codes.PermissionDenied, "the client certificate of %q may not ask about namespace %s; it needs the URI %s%s, or a common name of --keda-clients",
			short(cert.Subject.CommonName), namespace, NamespaceURI, namespace)
	}
	return nil
}

// clientCertificate returns the verified certificate of a request's client; nil if it
// has none.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}
