// SPDX-License-Identifier: Apache-2.0

package metricsapi

import "k8s.io/apiserver/pkg/server/dynamiccertificates"

// servedCert is a Cert as the generic API server wants it: asked again
// whenever it says that it changed, for the connections that come after.
type servedCert struct{ Cert }

var _ dynamiccertificates.CertKeyContentProvider = servedCert{}

// Name is what the library's log lines call the certificate.
func (servedCert) Name() string { return "serving-cert" }

// AddListener has the library told of changes.
func (c servedCert) AddListener(l dynamiccertificates.Listener) { c.OnChange(l.Enqueue) }
