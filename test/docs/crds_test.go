// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A description of a CRD has a line for each paragraph: kubectl explain keeps its breaks. make generate joins the lines.
func TestDescriptionsAreJoined(t *testing.T) {
	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		indent, last := -1, ""
		for i, line := range strings.Split(string(b), "\n") {
			text := strings.TrimLeft(line, " ")
			at := len(line) - len(text)
			switch {
			case strings.HasPrefix(text, "description: |"):
				indent, last = at, ""
			case indent < 0:
			case text != "" && at <= indent:
				indent = -1
			case text != "" && last != "" && !strings.HasPrefix(text, "- ") && !strings.HasPrefix(text, "* "):
				t.Errorf("%s:%d: %q continues a sentence", file, i+1, text)
			default:
				last = text
			}
		}
	}
}
