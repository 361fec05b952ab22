// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// bareHandler is the name of the reference of scrapes.
const bareHandler = "bare net/http"

// startReference starts this program as a server of page and of nothing else:
// what Go's HTTP server costs by itself on this machine.
func startReference(ctx context.Context, dir string, page []byte) (*agentrig.Agent, error) {
	file := filepath.Join(dir, "page")
	if err := os.WriteFile(file, page, 0o600); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return agentrig.Start(ctx, agentrig.Config{Binary: self, Args: []string{"-reference", file}})
}

// serveReference is that server. It says where it serves in the agent's words.
func serveReference(ctx context.Context, cfg config, out io.Writer) error {
	page, err := os.ReadFile(cfg.reference)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.address)
	if err != nil {
		return err
	}
	length := []string{strconv.Itoa(len(page))}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = length
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(page)
	})}
	fmt.Fprintf(out, "msg=serving address=%s\n", l.Addr())
	go func() {
		<-ctx.Done()
		_ = s.Close()
	}()
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
