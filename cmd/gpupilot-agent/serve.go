// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/base/regularfile"
	"github.com/gpupilot/gpupilot/internal/node/webconfig"
)

// listen opens the listener, and wraps the handler as the web configuration
// requires.
func (c *config) listen(ctx context.Context, room *listen.Room, h http.Handler, log *slog.Logger) (net.Listener, http.Handler, error) {
	var web *webconfig.File
	if c.webConfig != "" {
		var err error
		if web, err = webconfig.Load(ctx, c.webConfig, regularfile.New(regularfile.DefaultTimeout), log); err != nil {
			return nil, nil, fmt.Errorf("--web-config-file: %w", err)
		}
		if c.auth == authToken && web.Users() {
			return nil, nil, errors.New("--auth token and basic_auth_users of --web-config-file use the same header, Authorization: remove one of them")
		}
		h = web.Wrap(h)
	}
	if c.pprof && c.auth != authToken && (web == nil || !web.Users()) {
		log.Warn("profiles are served without authentication; --web-config-file can require a password")
	}
	l, err := c.listener(ctx)
	if err != nil {
		return nil, nil, err
	}
	l = room.Of(l)
	if web != nil {
		if conf := web.TLS(); conf != nil {
			l = tls.NewListener(l, conf)
		}
	}
	return l, h, nil
}

func (c *config) listener(ctx context.Context) (net.Listener, error) {
	if c.systemdSocket {
		l, err := systemdListener(os.Getenv)
		if err != nil {
			return nil, fmt.Errorf("--web-systemd-socket: %w", err)
		}
		return l, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.address)
	if err != nil {
		return nil, fmt.Errorf("--address %s: %w", c.address, err)
	}
	return l, nil
}

// firstSystemdFD is SD_LISTEN_FDS_START of sd_listen_fds(3).
const firstSystemdFD = 3

// systemdListener returns the one socket that systemd has passed.
func systemdListener(getenv func(string) string) (net.Listener, error) {
	if pid, err := strconv.Atoi(getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil, errors.New("no socket from systemd: LISTEN_PID is not this process")
	}
	if n, err := strconv.Atoi(getenv("LISTEN_FDS")); err != nil || n != 1 {
		return nil, fmt.Errorf("want one socket from systemd, LISTEN_FDS is %q", getenv("LISTEN_FDS"))
	}
	f := os.NewFile(firstSystemdFD, "systemd")
	defer func() { _ = f.Close() }() // FileListener has a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("file descriptor %d: %w", firstSystemdFD, err)
	}
	return l, nil
}
