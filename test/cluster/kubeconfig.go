// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig makes a client certificate and writes a kubeconfig with it to a file of its own in dir: the same path for the same user and
// groups, another for any other. It embeds the certificates, so that it can be copied.
func (p *pki) writeKubeconfig(dir, server, user string, groups []string) (string, error) {
	cert, key, err := p.clientPEM(p.cluster, user, groups...)
	if err != nil {
		return "", err
	}
	const name = "gpupilot"
	path := filepath.Join(dir, kubeconfigName(user, groups))
	return path, clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: name,
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: server, CertificateAuthorityData: encodeCert(p.cluster.cert.Raw)}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: cert, ClientKeyData: key}},
	}, path)
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
