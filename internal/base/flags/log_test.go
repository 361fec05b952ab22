// SPDX-License-Identifier: Apache-2.0

package flags

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestLogger(t *testing.T) {
	for format, want := range map[string]string{"text": "level=WARN msg=seen", "json": `"level":"WARN","msg":"seen"`} {
		var b bytes.Buffer
		log := Logger(&b, format, slog.LevelWarn)
		log.Info("not seen")
		log.Warn("seen")
		if err := IsLogFormat(&format)(); err != nil || !strings.Contains(b.String(), want) || strings.Contains(b.String(), "not") {
			t.Errorf("%s: %v, %q", format, err, b.String())
		}
	}
	yaml := "yaml"
	if IsLogFormat(&yaml)() == nil {
		t.Error("yaml is a format")
	}
}

func TestIsAddress(t *testing.T) {
	for address, want := range map[string]bool{":9400": true, "127.0.0.1:1": true, "[::1]:0": true, "9400": false, "": false} {
		if err := IsAddress(&address)(); (err == nil) != want {
			t.Errorf("%q: %v", address, err)
		}
	}
}
