// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"log/slog"

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

// unhandled is the message of k8s.io/apimachinery/pkg/util/runtime.HandleError.
const unhandled = "Unhandled Error"

// Handle implements slog.Handler.
func (h librariesHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == unhandled {
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
