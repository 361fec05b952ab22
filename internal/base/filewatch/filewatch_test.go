// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "counters.csv")
	changes := make(chan string, 16)
	tell := func() {
		b, _ := os.ReadFile(file)
		changes <- string(b)
	}
	if err := Watch(t.Context(), file, tell); err != nil {
		t.Fatal(err)
	}
	await := func(want string) {
		t.Helper()
		deadline := time.After(time.Minute) // only a failure takes that long
		for {
			select {
			case got := <-changes:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("%q was not told", want)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(file, []byte("one"), 0o600))
	await("one")
	must(os.WriteFile(file+".tmp", []byte("two"), 0o600))
	must(os.Rename(file+".tmp", file))
	await("two")
	// As the kubelet mounts a ConfigMap: file -> ..data/file, ..data -> a directory.
	must(os.Mkdir(filepath.Join(dir, "..v1"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "..v1", "counters.csv"), []byte("three"), 0o600))
	must(os.Symlink("..v1", filepath.Join(dir, "..data")))
	must(os.Remove(file))
	must(os.Symlink("..data/counters.csv", file))
	await("three")
	must(os.Mkdir(filepath.Join(dir, "..v2"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "..v2", "counters.csv"), []byte("four"), 0o600))
	must(os.Symlink("..v2", filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	await("four")

	if err := Watch(t.Context(), "/no/such/directory/file", tell); err == nil {
		t.Error("a directory that is not there can be watched")
	}
}
