// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names of files in the folder that client and server share.
const (
	certFile       = "tls.crt"
	keyFile        = "tls.key"
	kubeconfigFile = "kubeconfig"

	goodToken = "bench"
)

// startReviewer answers what a server that delegates authentication and
// authorization asks an API server, and writes a kubeconfig for it, and a
// certificate for "localhost", into dir.
func startReviewer(ctx context.Context, dir string) (stop func(), err error) {
	cert, key, err := selfSigned()
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	kubeconfig := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": "http://%s"}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "users": [{"name": "x", "user": {}}]}`, l.Addr())
	for name, text := range map[string][]byte{certFile: cert, keyFile: key, kubeconfigFile: []byte(kubeconfig)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			_ = l.Close()
			return nil, err
		}
	}
	s := &http.Server{Handler: reviewer(cert), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // until stop
	return func() { _ = s.Close() }, nil
}

func reviewer(authority []byte) http.Handler {
	settings := corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication", Namespace: "kube-system", ResourceVersion: "1"},
		Data:       map[string]string{"client-ca-file": string(authority), "requestheader-client-ca-file": string(authority)},
	}
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	const path = "/api/v1/namespaces/kube-system/configmaps"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path+"/extension-apiserver-authentication", func(w http.ResponseWriter, _ *http.Request) { answer(w, settings) })
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("watch") != "" {
			<-r.Context().Done()
			return
		}
		answer(w, corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{settings}})
	})
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.TypeMeta = metav1.TypeMeta{Kind: "TokenReview", APIVersion: "authentication.k8s.io/v1"}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: review.Spec.Token == goodToken, User: authenticationv1.UserInfo{Username: "hpa"}}
		answer(w, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		review.Status.Allowed = review.Spec.User == "hpa"
		answer(w, review)
	})
	return mux
}

// selfSigned is a certificate for "localhost" and its key, in PEM.
func selfSigned() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}
