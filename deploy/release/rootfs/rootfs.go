// SPDX-License-Identifier: Apache-2.0

// Package rootfs holds the files of an image and writes them as a tar archive. The same files give the same bytes.
package rootfs

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Entry is a regular file, a directory or a symbolic link. Everything belongs to root.
type Entry struct {
	Mode   fs.FileMode // type and permissions
	Target string      // of a symbolic link
	Data   []byte      // of a regular file
}

// Tree is a set of entries by path. A path is relative to the root and clean: "usr/bin/x".
type Tree map[string]Entry

// Add adds a regular file, readable by all, and executable if its permissions say so.
func (t Tree) Add(name string, perm fs.FileMode, data []byte) {
	t[clean(name)] = Entry{Mode: perm, Data: data}
}

// Link adds a symbolic link.
func (t Tree) Link(name, target string) {
	t[clean(name)] = Entry{Mode: fs.ModeSymlink | 0o777, Target: target}
}

// Dir adds a directory. The parents of entries need not be added.
func (t Tree) Dir(name string) {
	t[clean(name)] = Entry{Mode: fs.ModeDir | 0o755}
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// Merge adds all entries of other. An entry that both have must be the same in both.
func (t Tree) Merge(other Tree) error {
	for name, e := range other {
		if old, ok := t[name]; ok && (old.Mode != e.Mode || old.Target != e.Target || string(old.Data) != string(e.Data)) {
			return fmt.Errorf("merge %s: two different files have this path", name)
		}
		t[name] = e
	}
	return nil
}

// WriteTar writes the entries and their parent directories, sorted by path, with the time mtime and owner 0:0.
func (t Tree) WriteTar(w io.Writer, mtime time.Time) error {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = Entry{Mode: fs.ModeDir | 0o755}
			}
		}
	}
	out := tar.NewWriter(w)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := writeEntry(out, name, all[name], mtime); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	return out.Close()
}

func writeEntry(out *tar.Writer, name string, e Entry, mtime time.Time) error {
	h := &tar.Header{Name: name, Mode: int64(e.Mode.Perm()), ModTime: mtime.UTC(), Format: tar.FormatUSTAR}
	switch e.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.Data))
	}
	if len(h.Name) > 100 || len(h.Linkname) > 100 {
		h.Format = tar.FormatPAX
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err := out.Write(e.Data)
	return err
}
