// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/gpupilot/gpupilot/test/reviewtest"
)

// Names of files in the folder that client and server share.
const (
	certFile       = "tls.crt"
	keyFile        = "tls.key"
	kubeconfigFile = "kubeconfig"
)

// startReviewer answers what a server that delegates authentication and
// authorization asks an API server, and writes a kubeconfig for it, and a
// certificate for "localhost", into dir.
func startReviewer(ctx context.Context, dir string) (stop func(), err error) {
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
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
	s := &http.Server{Handler: reviewtest.Handler(cert), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // until stop
	return func() { _ = s.Close() }, nil
}
