// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	r, err := NewTable("f.csv", strings.NewReader("\ufefft_s, gpu\n1, a100 \n,x\n-2,y\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Has("t_s", "gpu") || r.Has("t_s", "rate") || r.Columns() != "gpu,t_s" {
		t.Errorf("columns %s", r.Columns())
	}
	next := func() {
		t.Helper()
		if ok, err := r.Next(); !ok || err != nil {
			t.Fatalf("%v, %v; want a row", ok, err)
		}
	}
	next()
	if x, err := r.Required("t_s", 10); x != 1 || err != nil || r.Text("gpu") != "a100" || r.Text("rate") != "" {
		t.Errorf("first row: %v, %v, %q", x, err, r.Text("gpu"))
	}
	if x, err := r.Number("rate", 10, 7); x != 7 || err != nil {
		t.Errorf("a column that is absent: %v, %v; want the default", x, err)
	}
	next()
	if x, err := r.Number("t_s", 10, 7); x != 7 || err != nil {
		t.Errorf("an empty cell: %v, %v; want the default", x, err)
	}
	if _, err := r.Required("t_s", 10); err == nil || err.Error() != `f.csv:3:1: column "t_s": is empty` {
		t.Errorf("a required cell that is empty: %v", err)
	}
	next()
	if _, err := r.Number("t_s", 10, 0); err == nil || err.Error() != `f.csv:4:1: column "t_s": "-2" is not a number from 0 to 10` {
		t.Errorf("a negative number: %v", err)
	}
	if ok, err := r.Next(); ok || err != nil {
		t.Errorf("after the last row: %v, %v", ok, err)
	}
}
