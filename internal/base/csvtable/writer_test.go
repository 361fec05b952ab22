// SPDX-License-Identifier: Apache-2.0

package csvtable

import (
	"encoding/csv"
	"strings"
	"testing"
)

func TestWriter(t *testing.T) {
	var out strings.Builder
	w := NewWriter(&out)
	w.Write("name", nil, -1.5, 3, Number("-0.10"), "=HYPERLINK(\"http://x\",\"a\")", "+1", "-2", "@SUM(1)", "\t=1", "＝1", "plain=1", "a,b")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	const want = "name,,-1.5,3,-0.10,\"'=HYPERLINK(\"\"http://x\"\",\"\"a\"\")\",'+1,'-2,'@SUM(1),'\t=1,'＝1,plain=1,\"a,b\"\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// No text begins a formula, and all of it is there.
func FuzzWriter(f *testing.F) {
	f.Add("=1")
	f.Add("\r\n=1")
	f.Fuzz(func(t *testing.T, s string) {
		var out strings.Builder
		w := NewWriter(&out)
		w.Write(s, 1.0)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		row, err := csv.NewReader(strings.NewReader(out.String())).Read()
		if err != nil || len(row) != 2 || strings.ContainsAny(row[0][:min(1, len(row[0]))], "=+-@\t\r") {
			t.Fatalf("%q became %q, %v", s, out.String(), err)
		}
		plain := func(s string) string { return strings.ReplaceAll(s, "\r", "") } // the reader drops some of them
		if got := plain(row[0]); got != plain(s) && got != "'"+plain(s) {
			t.Errorf("%q became %q", s, got)
		}
	})
}
