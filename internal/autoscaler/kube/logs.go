// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// BridgeLogs sends the log lines of the Kubernetes libraries to log. Their lines below
// warnings become debug lines, and so do errors that they did not expect: most are
// connections that the other side has closed. It sets loggers that are global to the process.
func BridgeLogs(log *slog.Logger) {
	handler := librariesHandler{log.Handler()}
	klog.SetSlogLogger(slog.New(handler))
	ctrllog.SetLogger(logr.FromSlogHandler(handler))
}

// librariesHandler passes lines below a warning on only if debug lines are enabled.
type librariesHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (h librariesHandler) Enabled(ctx context.Context, l slog.Level) bool {
	if l < slog.LevelWarn {
		l = min(l, slog.LevelDebug)
	}
	return h.Handler.Enabled(ctx, l)
}

// unhandled ends the name of the logger of k8s.io/apimachinery/pkg/util/runtime.HandleError and its variants.
const unhandled = "UnhandledError"

// isUnhandled reports whether HandleError or a variant has written a line.
func isUnhandled(r slog.Record) (is bool) {
	r.Attrs(func(a slog.Attr) bool {
		is = a.Key == "logger" && strings.HasSuffix(a.Value.String(), unhandled)
		return !is
	})
	return is
}

// Handle implements slog.Handler.
func (h librariesHandler) Handle(ctx context.Context, r slog.Record) error {
	if isUnhandled(r) {
		if r.Level = slog.LevelDebug; !h.Handler.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h librariesHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return librariesHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h librariesHandler) WithGroup(name string) slog.Handler {
	return librariesHandler{h.Handler.WithGroup(name)}
}
