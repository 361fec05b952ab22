// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"io"
	"log/slog"
)

// IsLogFormat checks that a value is a format of Logger.
func IsLogFormat(p *string) func() error { return OneOf(p, "text", "json") }

// Logger returns a logger that writes in a format that IsLogFormat has checked.
func Logger(out io.Writer, format string, level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, o))
	}
	return slog.New(slog.NewTextHandler(out, o))
}
