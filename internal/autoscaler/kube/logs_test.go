// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// What the libraries did not expect is for debugging; what they report is not lost.
func TestLinesOfLibraries(t *testing.T) {
	defer klog.ClearLogger()
	f := func(level slog.Level, want, without string) {
		t.Helper()
		var out bytes.Buffer
		BridgeLogs(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		utilruntime.HandleError(errors.New("http2: stream closed"))
		utilruntime.HandleErrorWithContext(t.Context(), nil, "Timeout or abort while handling", "URI", "/apis")
		klog.ErrorS(nil, "a real error")
		klog.InfoS("a detail")
		text := out.String()
		for _, line := range strings.Split(want, "; ") {
			if !strings.Contains(text, line) {
				t.Errorf("at %s: no line with %s in\n%s", level, line, text)
			}
		}
		if without != "" && strings.Contains(text, without) {
			t.Errorf("at %s: %s in\n%s", level, without, text)
		}
	}
	f(slog.LevelInfo, `level=ERROR msg="a real error"`, "stream closed")
	f(slog.LevelInfo, `level=ERROR msg="a real error"`, "Timeout or abort")
	f(slog.LevelDebug, `level=DEBUG msg="Timeout or abort while handling"; URI=/apis`, "level=ERROR msg=\"Timeout")
	f(slog.LevelDebug, `level=DEBUG msg="Unhandled Error"; stream closed; level=ERROR msg="a real error"`, "level=ERROR msg=\"Unhandled")
}
