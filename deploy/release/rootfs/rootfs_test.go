// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestWriteTar(t *testing.T) {
	tree := Tree{}
	tree.Add("/usr/bin/b", 0o755, []byte("program"))
	tree.Link("lib", "usr/lib")
	tree.Add("usr/a", 0o644, nil)
	long := strings.Repeat("d/", 60) + "f"
	tree.Add(long, 0o600, []byte("x"))
	tree.Dir("tmp")
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := tree.WriteTar(w, time.Unix(1700000000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same tree gives different bytes")
	}
	var got []string
	for r := tar.NewReader(&first); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s has owner %d:%d and time %s", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		if !strings.HasPrefix(h.Name, "d/") || h.Name == long {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %o %s", h.Name, h.Mode, h.Linkname)))
		}
	}
	want := []string{long + " 600", "lib 777 usr/lib", "tmp/ 755", "usr/ 755", "usr/a 644", "usr/bin/ 755", "usr/bin/b 755"}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func TestMerge(t *testing.T) {
	a, b := Tree{}, Tree{}
	a.Add("x", 0o644, []byte("1"))
	b.Add("x", 0o644, []byte("1"))
	b.Add("y", 0o644, nil)
	if err := a.Merge(b); err != nil || len(a) != 2 {
		t.Errorf("merged to %d entries, error %v", len(a), err)
	}
	b.Add("x", 0o644, []byte("2"))
	if err := a.Merge(b); err == nil || !strings.Contains(err.Error(), "merge x") {
		t.Errorf("error of a conflict: %v", err)
	}
}
