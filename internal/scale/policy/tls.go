// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// TLS is how the certificate of a pod's server is verified: by CA and ServerName, or not at
// all. It names no file, no Secret and no host.
type TLS struct {
	CA                 string // certificates of authorities, in PEM
	ServerName         string // that the certificate has
	InsecureSkipVerify bool   // every certificate is accepted
}

// maxCA bounds the certificates of a signal, in bytes: one has less than 2 KiB.
const maxCA = 8 << 10

// parseTLS validates the scheme of a port, and the settings of its certificate. The result is
// nil for plain HTTP.
func parseTLS(scheme v1alpha1.Scheme, in *v1alpha1.TLS, path *field.Path) (*TLS, *field.Error) {
	at := path.Child("tls")
	switch scheme {
	case "", v1alpha1.SchemeHTTP:
		if in != nil {
			return nil, field.Forbidden(at, "is for the scheme HTTPS: set scheme: HTTPS, or remove tls")
		}
		return nil, nil
	case v1alpha1.SchemeHTTPS:
	default:
		return nil, field.NotSupported(path.Child("scheme"), scheme, []v1alpha1.Scheme{v1alpha1.SchemeHTTP, v1alpha1.SchemeHTTPS})
	}
	switch {
	case in == nil:
		return nil, field.Required(at, "scheme HTTPS needs tls: set ca and serverName, or insecureSkipVerify: true")
	case in.InsecureSkipVerify && (in.CA != "" || in.ServerName != ""):
		return nil, field.Forbidden(at.Child("insecureSkipVerify"), "accepts every certificate: remove it, or remove ca and serverName")
	case in.InsecureSkipVerify:
		return &TLS{InsecureSkipVerify: true}, nil
	case in.CA == "":
		return nil, field.Required(at.Child("ca"), "write the certificate of the authority in PEM, or set insecureSkipVerify: true instead")
	case in.ServerName == "":
		return nil, field.Required(at.Child("serverName"), "write a name that the certificate has, such as chat.llm.svc: the pod's IP address is seldom in it")
	case len(validation.IsDNS1123Subdomain(in.ServerName)) > 0:
		return nil, field.Invalid(at.Child("serverName"), excerpt.Of(in.ServerName, validation.DNS1123SubdomainMaxLength), "must be a DNS name in lower case, such as chat.llm.svc")
	}
	if err := checkCA(in.CA); err != nil {
		return nil, field.Invalid(at.Child("ca"), "(PEM)", err.Error())
	}
	return &TLS{CA: in.CA, ServerName: in.ServerName}, nil
}

// checkCA validates the certificates of authorities. Its error has no text of theirs: a
// private key may be among it.
func checkCA(text string) error {
	if len(text) > maxCA {
		return fmt.Errorf("has %d bytes, at most %d are supported: leave the certificates of the authorities that sign", len(text), maxCA)
	}
	rest := []byte(text)
	begun := bytes.Count(rest, []byte("-----BEGIN"))
	for n := 0; ; n++ {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && n < begun:
			return fmt.Errorf("has %d blocks, and only %d of them are PEM", begun, n)
		case block == nil && n == 0:
			return fmt.Errorf("has no certificate: it begins with -----BEGIN CERTIFICATE-----")
		case block == nil:
			return nil
		case block.Type != "CERTIFICATE" || len(block.Headers) > 0:
			return fmt.Errorf("block %d is not a certificate: only certificates of authorities belong here, and never a private key", n+1)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d is not a valid certificate", n+1)
		}
	}
}
