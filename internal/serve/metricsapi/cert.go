// SPDX-License-Identifier: Apache-2.0

package metricsapi

import "k8s.io/apiserver/pkg/server/dynamiccertificates"

// servedCert adapts a Cert to the generic API server, which reads it again after each
// change. New connections use the new certificate.
type servedCert struct{ Cert }

var _ dynamiccertificates.CertKeyContentProvider = servedCert{}

// Name returns the certificate's name in the library's log lines.
func (servedCert) Name() string { return "serving-cert" }

// AddListener calls the library's listener after each change of the certificate.
func (c servedCert) AddListener(l dynamiccertificates.Listener) { c.OnChange(l.Enqueue) }
