// SPDX-License-Identifier: Apache-2.0

// Package config stands in for Knative's.
package config

type (
	// MeshCompatibilityMode says whether pods can be reached past a mesh.
	MeshCompatibilityMode string
	// HTTPProtocol says what becomes of plain HTTP.
	HTTPProtocol string
	// EncryptionConfig says whether a part of the traffic is encrypted.
	EncryptionConfig string
)

// Their values.
const (
	MeshCompatibilityModeEnabled  MeshCompatibilityMode = "enabled"
	MeshCompatibilityModeDisabled MeshCompatibilityMode = "disabled"

	HTTPEnabled    HTTPProtocol = "enabled"
	HTTPDisabled   HTTPProtocol = "disabled"
	HTTPRedirected HTTPProtocol = "redirected"

	EncryptionEnabled EncryptionConfig = "enabled"
)

// Config is what the autoscaler's neighbours read of config-network.
type Config struct {
	HTTPProtocol                  HTTPProtocol
	ExternalDomainTLS             bool
	ClusterLocalDomainTLS         EncryptionConfig
	NamespaceWildcardCertSelector any
}

// SystemInternalTLSEnabled says no.
func (*Config) SystemInternalTLSEnabled() bool { return false }
