// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// written are the pages that a tool writes whole; doctor.md has the texts that gpupilot doctor prints.
var written = []string{"docs/api.md", "docs/metrics.md", "docs/doctor.md", "deploy/chart/README.md", "test/hardware/RESULTS.md"}

// generated is what tools write into other pages: what stands behind a mark with -update, and the arena's tables.
var generated = regexp.MustCompile("(?s)-update -->\n.*?<!-- end[^\n]*|```text\n.*?\n```")

// A user of one task reads a few thousand words. What is written by hand is bounded, so that a page that grows has another
// one lose something first.
func TestSize(t *testing.T) {
	const maxReadme, maxPages, maxWords = 900, 60, 65_000
	count, words := 0, 0
	for _, p := range pages(t) {
		text := string(read(t, p.path))
		if strings.HasPrefix(p.path, "docs/") || !strings.Contains(p.path, "/") && p.path != "CHANGELOG.md" {
			count++
		}
		if !slices.Contains(written, p.path) {
			words += len(strings.Fields(generated.ReplaceAllStringFunc(text, func(part string) string {
				if strings.HasPrefix(part, "```") && p.path != "test/arena/RESULTS.md" {
					return part
				}
				return ""
			})))
		}
	}
	if words > maxWords || count > maxPages {
		t.Errorf("%d words are written by hand in %d pages: at most %d in %d", words, count, maxWords, maxPages)
	}
	t.Logf("%d words are written by hand, %d pages", words, count)
	readme := string(read(t, "README.md"))
	before, _, _ := strings.Cut(readme, "\n```\n")
	if n, first := len(strings.Fields(readme)), len(strings.Fields(before)); n > maxReadme || first > 60 {
		t.Errorf("README has %d words, %d before its first command: at most %d and 60", n, first, maxReadme)
	}
}
