// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// kubeconfigText embeds the certificates, so that the file can be copied. Its quotes are Go's, which YAML parses to the
// same text for all names in certificates.
const kubeconfigText = `apiVersion: v1
kind: Config
current-context: gpupilot
contexts:
- name: gpupilot
  context: {cluster: gpupilot, user: {{printf "%q" .User}}}
clusters:
- name: gpupilot
  cluster:
    server: {{printf "%q" .Server}}
    certificate-authority-data: {{.CA}}
users:
- name: {{printf "%q" .User}}
  user:
    client-certificate-data: {{.Cert}}
    client-key-data: {{.Key}}
`

// writeKubeconfig makes a client certificate and writes a kubeconfig with it to a file of its own in dir: the same path for the same user and
// groups, another for any other.
func (p *pki) writeKubeconfig(dir, server, user string, groups []string) (string, error) {
	certPEM, keyPEM, err := p.clientPEM(p.cluster, user, groups...)
	if err != nil {
		return "", err
	}
	parsed, err := template.New("kubeconfig").Parse(kubeconfigText)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, map[string]string{
		"Server": server, "User": user, "CA": base64.StdEncoding.EncodeToString(encodeCert(p.cluster.cert.Raw)),
		"Cert": base64.StdEncoding.EncodeToString(certPEM), "Key": base64.StdEncoding.EncodeToString(keyPEM),
	}); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, kubeconfigName(user, groups))
	return path, os.WriteFile(path, text.Bytes(), 0o600)
}

// kubeconfigName returns a readable file name; the hash distinguishes similar users.
func kubeconfigName(user string, groups []string) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		default:
			return '-'
		}
	}, user)
	hash := sha256.Sum256([]byte(fmt.Sprintf("%q %q", user, groups)))
	return fmt.Sprintf("%.100s-%x.kubeconfig", readable, hash[:3])
}
