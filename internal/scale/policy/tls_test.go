// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// authority returns a certificate of an authority and its key, in PEM.
func authority(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", secret)
}

// overTLS is an object with each kind of signal that is read from pods.
func overTLS(scheme v1alpha1.Scheme, verify *v1alpha1.TLS) *v1alpha1.GPUAutoscaler {
	return &v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 8, Signals: []v1alpha1.Signal{
		{Pods: &v1alpha1.PodsSignal{Metric: "queue", Scheme: scheme, TLS: verify}, Target: &v1alpha1.Target{Value: resource.MustParse("4")}},
		{Preset: v1alpha1.PresetVLLM, Scheme: scheme, TLS: verify},
		{Preset: v1alpha1.PresetEPP, Scheme: scheme, TLS: verify},
	}}}
}

// The scheme HTTPS needs to know how the certificate is verified. Nothing but certificates and
// a name can be given.
func TestTLSIsValidated(t *testing.T) {
	cert, key := authority(t)
	f := func(scheme v1alpha1.Scheme, verify *v1alpha1.TLS, field, want string) {
		t.Helper()
		_, err := Compile(overTLS(scheme, verify))
		for _, at := range []string{"spec.signals[0].pods.", "spec.signals[1].", "spec.signals[2]."} {
			if err == nil || !strings.Contains(err.Error(), at+field+":") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %+v: %v; want %s%s, %q", scheme, verify, err, at, field, want)
			}
		}
		if err != nil && strings.Contains(err.Error(), "MIG") { // the beginning of the key
			t.Errorf("the error shows a key: %v", err)
		}
	}
	const https = v1alpha1.SchemeHTTPS
	f("http", nil, "scheme", "HTTPS")
	f("", &v1alpha1.TLS{InsecureSkipVerify: true}, "tls", "set scheme: HTTPS")
	f(v1alpha1.SchemeHTTP, &v1alpha1.TLS{InsecureSkipVerify: true}, "tls", "set scheme: HTTPS")
	f(https, nil, "tls", "insecureSkipVerify: true")
	f(https, &v1alpha1.TLS{}, "tls.ca", "insecureSkipVerify: true")
	f(https, &v1alpha1.TLS{CA: cert}, "tls.serverName", "chat.llm.svc")
	f(https, &v1alpha1.TLS{CA: cert, ServerName: "-"}, "tls.serverName", "DNS name")
	f(https, &v1alpha1.TLS{CA: cert, ServerName: "a/../b"}, "tls.serverName", "DNS name")
	f(https, &v1alpha1.TLS{CA: cert, ServerName: "a", InsecureSkipVerify: true}, "tls.insecureSkipVerify", "remove")
	f(https, &v1alpha1.TLS{CA: "/etc/ssl/ca.crt", ServerName: "a"}, "tls.ca", "has no certificate")
	f(https, &v1alpha1.TLS{CA: key, ServerName: "a"}, "tls.ca", "never a private key")
	f(https, &v1alpha1.TLS{CA: cert + key, ServerName: "a"}, "tls.ca", "block 2 is not a certificate")
	f(https, &v1alpha1.TLS{CA: cert + "-----BEGIN CERTIFICATE-----\nMIG\n", ServerName: "a"}, "tls.ca", "has 2 blocks, and only 1 of them are PEM")
	f(https, &v1alpha1.TLS{CA: strings.Repeat(cert, 40), ServerName: "a"}, "tls.ca", "at most 8192")

	g := func(scheme v1alpha1.Scheme, verify *v1alpha1.TLS, want *TLS) {
		t.Helper()
		c, err := Compile(overTLS(scheme, verify))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range c.Sources {
			got := s.TLS
			if s.Gateway != nil {
				got = s.Gateway.TLS
			}
			if (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	}
	g("", nil, nil)
	g(v1alpha1.SchemeHTTP, nil, nil)
	g(https, &v1alpha1.TLS{InsecureSkipVerify: true}, &TLS{InsecureSkipVerify: true})
	two := "# two\n" + cert + "\n" + cert
	g(https, &v1alpha1.TLS{CA: two, ServerName: "chat.llm.svc"}, &TLS{CA: two, ServerName: "chat.llm.svc"})

	gpu := &v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 8, Signals: []v1alpha1.Signal{{
		GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Scheme: https, Target: &v1alpha1.Target{Value: resource.MustParse("60")},
	}}}}
	if _, err := Compile(gpu); err == nil || !strings.Contains(err.Error(), "pods.scheme") {
		t.Errorf("a scheme of GPUs: %v", err)
	}
}

// Authorities that are accepted are certificates, every one of them.
func FuzzAuthorities(f *testing.F) {
	cert, key := authority(f)
	for _, seed := range []string{cert, key, cert + key, "", "-----BEGIN CERTIFICATE-----", cert + cert, "-----BEGIN PRIVATE KEY-----\n" + cert, strings.ReplaceAll(cert, "\n", "\r\n")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := checkCA(text)
		if err != nil {
			if len(err.Error()) > 200 {
				t.Errorf("a long error: %v", err)
			}
			return
		}
		if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM([]byte(text)) || strings.Contains(text, "BEGIN PRIVATE KEY") || len(text) > maxCA {
			t.Errorf("%q is accepted", text)
		}
	})
}
