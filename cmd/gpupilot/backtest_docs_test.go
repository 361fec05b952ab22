// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// The page has the numbers of settings. Its results are those of make backtest with the
// full grid.
func TestDocsNameTheStudy(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	makefile, page := read("../../Makefile"), read("../../docs/backtest.md")
	study := regexp.MustCompile(`(?m)^BACKTEST_STUDY\s*=\s*(.*)$`).FindStringSubmatch(makefile)
	if study == nil || !strings.Contains(page, "`"+study[1]+"`") || strings.Contains(study[1], "--quick") {
		t.Errorf("the page does not name the study of make backtest: %q", study)
	}
	full, quick := contender.FullGrid(), contender.QuickGrid()
	for _, n := range []int{
		len(full.Peers(nil, "")), len(full.Peers(nil, contender.OnRequests)), len(full.Peers(nil, contender.OnGPU)), len(quick.Peers(nil, "")),
	} {
		text := fmt.Sprint(n)
		if n >= 1000 {
			text = fmt.Sprintf("%d,%03d", n/1000, n%1000)
		}
		if !strings.Contains(page, text) {
			t.Errorf("the page does not say %s", text)
		}
	}
}
