// SPDX-License-Identifier: Apache-2.0

package hpcjobs

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0": "1234\n", "1": "b\na\r\n\n a \n", "1.7": "x", "2": "\n", "README": "no", "00": "no", "1.2.3": "no", "-1": "no", ".": "",
		"GPU-5a": "u\n", "MIG-6b": "v", "GPU-7c": "", "nvidia2": "no", "0-3": "no", ".0.new": "half",
	} {
		if name != "." {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "3"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "4"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "5")); err != nil {
		t.Fatal(err)
	}
	files := regularfile.New(time.Minute)
	got, err := Read(t.Context(), files, dir)
	for _, name := range []string{"3", "4", "5"} {
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)+": not a regular file") {
			t.Errorf("the error %v does not name %s", err, name)
		}
	}
	want := map[string][]string{
		"0": {"1234"}, "1": {"a", "b"}, "1.7": {"x"}, "GPU-5a": {"u"}, "MIG-6b": {"v"},
		"README": nil, "00": nil, "1.2.3": nil, "-1": nil, "nvidia2": nil, "0-3": nil,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Read(t.Context(), files, filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there is no error")
	}
}

// No job is empty, has blanks around it, or comes twice.
func FuzzParse(f *testing.F) {
	f.Add("1\n2\n\n2 \r\n")
	f.Fuzz(func(t *testing.T, s string) {
		jobs := parseJobs(s)
		for i, j := range jobs {
			if j == "" || strings.TrimSpace(j) != j || strings.Contains(j, "\n") {
				t.Errorf("job %q of %q", j, s)
			}
			if slices.Contains(jobs[:i], j) {
				t.Errorf("%q twice of %q", j, s)
			}
		}
	})
}

// A name without a UUID is a GPU's only as the number is written: no other file can be of the same GPU.
func FuzzDeviceName(f *testing.F) {
	for _, name := range []string{"0", "00", "1.7", "1.7.0", "0-3", "nvidia2", "GPU-5a", "MIG-6b", "65536", "+1", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if !isDeviceName(name) || strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
			return
		}
		index, instance, mig := strings.Cut(name, ".")
		a, err := strconv.Atoi(index)
		b, err2 := strconv.Atoi(cmp.Or(instance, "0"))
		again := strconv.Itoa(a)
		if mig {
			again += "." + strconv.Itoa(b)
		}
		if err != nil || err2 != nil || again != name {
			t.Errorf("%q is taken for a GPU's name", name)
		}
	})
}
